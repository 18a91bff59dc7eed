"""What the threads of a rank did, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.summary import Summary
from pscale.analysis.threads import ThreadTime
from pscale.report import text
from pscale.report.grid import Column, Grid, Row

_MOST = 8  # threads told one by one


def threads(summary: Summary) -> Iterator[Grid]:
    """Yield how the cores of a rank were used, if any case has several threads."""
    found = {time.case: time for time in summary.threads}
    if not any(time.threads > 1 for time in found.values()):
        return
    rows: list[Row] = [
        ("", (text.clean(point.label), *_cells(found[point.case])))
        for point in summary.points
        if point.case in found
    ]
    caption = "shares of the cores' time; split: CPU time of the main thread and of the others, per step"
    if any(time.spins for time in found.values()):
        caption += (
            "; ≤: threads without work may spin, which is CPU time too: single and imbalance are at least "
            "what is told (docs/measurement.md says how to let them sleep)"
        )
    yield Grid(
        title="Threads of a rank",
        columns=(
            *(Column("case", right=False, fold=True), Column("efficiency")),
            *(Column("in MPI"), Column("single"), Column("imbal."), Column("off core")),
            Column("split", right=False, fold=True),
        ),
        rows=tuple(rows),
        caption=caption,
    )


def _cells(time: ThreadTime) -> tuple[str, ...]:
    most = "≤ " if time.spins and time.threads > 1 else ""
    shares = (time.in_mpi, time.single, time.imbalance, time.off_core)
    return (
        f"{most}{text.percent(time.efficiency, 1)}",
        *(text.percent(share, 1) for share in shares),
        _split(time.cpu_s),
    )


def _split(cpu_s: tuple[float, ...]) -> str:
    shown = ", ".join(f"{seconds * 1e3:.3g}" for seconds in cpu_s[:_MOST])
    more = f" and {len(cpu_s) - _MOST} more" if len(cpu_s) > _MOST else ""
    return f"{shown}{more} ms"
