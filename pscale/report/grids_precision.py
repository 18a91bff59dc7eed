"""The table of numbers of 16 bits: what is saved, what it costs here, and whether the model still learns."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.fewer_bits import FewerBits
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row

ON_TIME = (
    "NumPy has no products of 16 bits: operands are widened to float32 and results rounded, which takes "
    "time. Time is not what 16 bits would save on hardware that has them; bytes and memory are."
)


def precisions(summary: Summary) -> Iterator[Grid]:
    """Yield bytes, memory, time and loss of cases that differ in precision alone."""
    columns = (
        *(Column("case", right=False, fold=True), Column("sent"), Column("×"), Column("held"), Column("×")),
        *(Column("step"), Column("×"), Column("loss"), Column("more")),
    )
    if summary.precision:
        yield Grid(
            title="Precision (per rank and step)",
            columns=columns,
            rows=tuple(_row(summary, each) for each in summary.precision),
            caption="sent: payload of all calls; held: by the fullest rank; ×: beside the same case in "
            f"float32; loss: of the last measured step; more: than in float32. {ON_TIME}",
        ).without(text.MISSING)


def _row(summary: Summary, each: FewerBits) -> Row:
    point = summary.point(each.case)
    return "", (
        text.clean(point.label),
        text.size_of(each.sent_bytes),
        text.ratio(each.sent_ratio),
        text.MISSING if each.held_bytes is None else text.size_of(each.held_bytes),
        text.ratio(each.held_ratio),
        text.duration(point.step_s.value if point.step_s else None),
        text.ratio(each.step_ratio),
        text.number(each.loss_last),
        text.MISSING if each.loss_more is None else f"{each.loss_more:+.2%}",
    )
