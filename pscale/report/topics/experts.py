"""How evenly experts are used, and how many choices found no place."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Column, Table, listed
from pscale.report.topics.topic import Topic


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the use of experts by every case that has some."""
    columns = (
        Column("case", fold=True, get="label"),
        Column("dropped choices", text.percent_1, get="dropped_share"),
        Column("busiest expert", "{:.2f} × mean".format, get="expert_imbalance"),
        Column("loss", text.number, get="loss_last"),
    )
    found = [point for point in findings.rows("cases") if point.dropped_share is not None]
    return listed("Experts (mean over steps and blocks)", found, columns)


TOPIC = Topic(
    name="experts",
    title="Experts",
    lead="The balance of experts, and the choices beyond their capacity.",
    tables=tables,
    files=("cases",),
)
