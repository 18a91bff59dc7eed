"""What recording the calls of the steps costs, as every launch measures it."""

from __future__ import annotations

from pscale.analysis.frames import Run


def recording_note(run: Run) -> str:
    """Say by how much recording lengthens steps, and what a call costs; empty where it was not measured."""
    good = run.cases[(run.cases["status"] == "ok") & run.cases["recording_ratio"].notna()]
    if good.empty:
        return ""
    of_case = good.groupby("case")["recording_ratio"].median() - 1
    call_s = good["recording_call_s"].median()
    low, high = of_case.min(), of_case.max()
    change = f"{low:+.1%}" if len(of_case) == 1 else f"{low:+.1%} to {high:+.1%}, case by case"
    said = (
        f"Recording: steps with it take {change}, beside those without "
        "(medians of pairs of steps; a difference below 0 is noise)"
    )
    spent = (run.ranks["notes"] * call_s / run.ranks["wall_s"]).max()
    if call_s > 0 and spent > 0:
        said += f"; a note takes {call_s * 1e6:.2g} µs, all of a rank {spent:.2%} of its steps at most"
    return f"{said}."
