"""How the threads of a rank used its cores."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Column, Columns, Table, Value, Written, listed
from pscale.report.topics.topic import Topic, case_column

_MOST = 8  # threads that are listed one by one


def _efficiency(time: Row) -> Value:
    most = "≤ " if time.spins and time.threads > 1 else ""
    return Written(time.efficiency, f"{most}{text.percent_1(time.efficiency)}")


def tables(findings: Findings) -> Iterator[Table]:
    """Yield how the cores of a rank were used, if any case has several threads."""
    times = findings.rows("threads")
    if not any(time.threads > 1 for time in times):
        return
    columns: Columns = (
        case_column(findings),
        Column("efficiency", text.percent_1, band=True, get=_efficiency),
        Column("in MPI", get="in_mpi"),
        "single",
        Column("imbal.", get="imbalance"),
        "off_core",
        Column("split", fold=True, get=lambda time: _split(time.cpu_s)),
    )
    caption = "shares of the cores' time; split: CPU time of the main thread and of the others, per step"
    if any(time.spins for time in times):
        caption += (
            "; ≤: threads without work may spin, which is CPU time too: single and imbalance are at least "
            "what is stated (docs/measurement.md says how to let them sleep)"
        )
    yield from listed("Threads of a rank", times, columns, caption=caption)


def _split(cpu_s: tuple[float, ...]) -> str:
    listed = ", ".join(f"{seconds * 1e3:.3g}" for seconds in cpu_s[:_MOST])
    more = f" and {len(cpu_s) - _MOST} more" if len(cpu_s) > _MOST else ""
    return f"{listed}{more} ms"


TOPIC = Topic(
    name="threads",
    title="Threads",
    lead="How the cores of a rank were used.",
    tables=tables,
    files=("threads",),
)
