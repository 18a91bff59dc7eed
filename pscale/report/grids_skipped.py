"""The table of scaled losses: how the scale went, and which steps it cost."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.skipped import Skipped
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row


def loss_scales(summary: Summary) -> Iterator[Grid]:
    """Yield scales and skipped steps of the cases whose loss is scaled."""
    columns = (
        *(Column("case", right=False, fold=True), Column("scale"), Column("at first"), Column("at last")),
        *(Column("skipped"), Column("of these measured"), Column("loss")),
    )
    if summary.skipped:
        yield Grid(
            title="Loss scaling",
            columns=columns,
            rows=tuple(_row(summary, each) for each in summary.skipped),
            caption="skipped: steps whose gradients overflowed, warm-up included; no rank updates its "
            "weights in them; loss: of the last measured step",
        )


def _row(summary: Summary, each: Skipped) -> Row:
    point = summary.point(each.case)
    return "", (
        text.clean(point.label),
        each.asked,
        f"{each.first_scale:.10g}",
        f"{each.last_scale:.10g}",
        f"{each.skipped} of {each.steps}",
        str(each.skipped_measured),
        text.number(point.loss_last),
    )
