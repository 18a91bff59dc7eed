"""What is shown of a run of very many cases: enough to see how it went; files for programs have all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pscale.analysis.summary import Summary

MANY = 1000  # cases that are shown one by one
SHOWN = 200  # of more than that

_OF_CASES = (
    *(
        "trees",
        "phase_trees",
        "axis_trees",
        "losses",
        "phases",
        "ranks",
        "calls",
        "bares",
        "ranking",
        "memory",
    ),
    *("bubbles", "what_ifs", "expectations", "threads", "late", "timelines"),
)


def shortened(summary: Summary) -> Summary:
    """Return the findings on the first cases of a run that has more than `MANY`; else all of them."""
    if len(summary.points) <= MANY:
        return summary
    series = {point.series for point in summary.points[:SHOWN]}
    verdicts = tuple(verdict for verdict in summary.verdicts if verdict.series in series)
    cases = {point.case for point in summary.points[:SHOWN]} | {verdict.case for verdict in verdicts}
    points = tuple(point for point in summary.points if point.case in cases)

    def of_shown(found: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(finding for finding in found if finding.case in cases or not finding.case)

    note = (
        f"Tables and figures show the first {SHOWN} of {len(summary.points)} cases; "
        "`pscale report --format csv` and `--format json` have all."
    )
    of_cases: dict[str, Any] = {name: of_shown(getattr(summary, name)) for name in _OF_CASES}
    return replace(
        summary,
        points=points,
        verdicts=verdicts,
        remarks=of_shown(summary.remarks),
        failures=summary.failures[:SHOWN],
        notes=(note, *summary.notes),
        **of_cases,
    )
