"""Figures of merit: what the programs of others say of themselves."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Column, Table, Value, Written, listed
from pscale.report.topics.topic import Topic, case_column


def tables(findings: Findings) -> Iterator[Table]:
    """Yield every figure of every case."""

    def bounds(merit: Row) -> Value:
        stated = merit.value.stated
        return Written(stated[0], f"{text.number(stated[0])}–{text.number(stated[1])}") if stated else None

    columns = (
        case_column(findings),
        Column("figure", get="figure"),
        Column("value", text.number, get="value"),
        Column("95% interval", str, get=bounds),
        Column("unit", get="unit"),
        Column("better", get="better"),
        Column("launches", str, wide=True, get="launches"),
    )
    yield from listed("Figures of merit", findings.rows("merits"), columns, grouped=True, filled=True)


TOPIC = Topic(
    name="merits",
    title="Figures of merit",
    lead="Figures of merit printed by the program: means over launches.",
    tables=tables,
    files=("merits",),
)
