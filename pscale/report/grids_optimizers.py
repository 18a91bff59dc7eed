"""The table of optimizers: what each of them reaches in as many steps, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.optimizers import Optimized
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row


def optimizers(summary: Summary) -> Iterator[Grid]:
    """Yield loss, memory and time of cases that differ in optimizer alone."""
    columns = (
        *(Column("case", right=False, fold=True), Column("loss"), Column("more"), Column("state")),
        *(Column("update"), Column("computing", wide=True), Column("step")),
        Column("× fastest", wide=True),
    )
    if summary.optimizers:
        yield Grid(
            title="Optimizers (per rank and step)",
            columns=columns,
            rows=tuple(_row(summary, each) for each in summary.optimizers),
            caption="loss: of the last measured step; more: beyond the least of the cases that differ "
            "in optimizer and its rate alone; state: of the optimizer, in memory of the fullest rank; "
            "update: the whole phase, with what is exchanged in it; × fastest: of the same cases",
        ).without(text.MISSING)


def _row(summary: Summary, each: Optimized) -> Row:
    point = summary.point(each.case)
    return "", (
        text.clean(point.label),
        text.number(each.loss_last),
        text.MISSING if each.loss_more is None else f"{each.loss_more:+.1%}",
        text.size_of(each.state_bytes),
        text.duration(each.update_s, 3),
        text.duration(each.update_compute_s, 3),
        text.duration(point.step_s.value if point.step_s else None),
        text.ratio(each.step_ratio),
    )
