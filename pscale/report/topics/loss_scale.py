"""Scaled losses: how the scale went, and which steps it cost."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Column, Table, Written, listed
from pscale.report.topics.topic import Topic, case_column


def tables(findings: Findings) -> Iterator[Table]:
    """Yield scales and skipped steps of the cases whose loss is scaled."""
    columns = (
        case_column(findings),
        Column("scale", str, get="asked"),
        Column("at first", "{:.10g}".format, get="first_scale"),
        Column("at last", "{:.10g}".format, get="last_scale"),
        Column("skipped", str, get=lambda each: Written(each.skipped, f"{each.skipped} of {each.steps}")),
        Column("of these measured", str, get="skipped_measured"),
        Column("loss", text.number, get=lambda each: findings.case(each.case).loss_last),
    )
    caption = (
        "skipped: steps whose gradients overflowed, warm-up included; no rank updates its "
        "weights in them; loss: of the last measured step"
    )
    return listed("Loss scaling", findings.rows("loss_scaling"), columns, caption=caption)


TOPIC = Topic(
    name="loss-scale",
    title="Loss scaling",
    lead="The scale of the loss, and the steps whose gradients overflowed.",
    tables=tables,
    files=("loss_scaling",),
)
