"""What each case costs: core-hours for its work, and beside the base case."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Column, Table, listed
from pscale.report.topics.topic import Topic, case_column


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the cost of every measured case."""
    units = {cost.unit for cost in findings.rows("costs")} - {""}
    work = "samples" if units == {"sample"} else "units of work"
    return listed(
        "Cost",
        findings.rows("costs"),
        (
            case_column(findings),
            "cores",
            Column("core time of a step", text.duration, get="core_s"),
            Column(f"core-hours for 1M {work}", text.number_3, get="core_hours"),
            Column("cost over base", get="relative"),
            Column(get="relative", interval=True, wide=True),
        ),
        caption="cost over base: core time for the same work, over that of the base case (1 / efficiency)"
        if any(cost.relative for cost in findings.rows("costs"))
        else "",
        filled=True,
    )


TOPIC = Topic(
    name="costs",
    title="Cost",
    lead="Core time is cores × step time: what an allocation is charged for.",
    tables=tables,
    files=("costs",),
    rows_per_case=lambda _: 1,
)
