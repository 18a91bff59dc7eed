"""The table of compressed gradients: what is saved, what it costs, and whether the model still learns."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.compression import Compressed
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row


def compression(summary: Summary) -> Iterator[Grid]:
    """Yield bytes, time and loss of cases that differ in compression alone."""
    columns = (
        *(Column("case", right=False, fold=True), Column("sent"), Column("× none")),
        *(Column("step"), Column("× none's"), Column("sync compute"), Column("loss"), Column("more")),
    )
    if summary.compressed:
        yield Grid(
            title="Compressed gradients (per rank and step)",
            columns=columns,
            rows=tuple(_row(summary, each) for each in summary.compressed),
            caption="sent: payload of all calls; × none: beside the same case without compression; "
            "sync compute: encoding, decoding, adding up; loss: of the last measured step; "
            "more: than without compression",
        ).without(text.MISSING)


def _row(summary: Summary, each: Compressed) -> Row:
    point = summary.point(each.case)
    return "", (
        text.clean(point.label),
        text.size_of(each.sent_bytes),
        text.ratio(each.sent_ratio),
        text.duration(point.step_s.value if point.step_s else None),
        text.ratio(each.step_ratio),
        text.duration(each.sync_compute_s, 3),
        text.number(each.loss_last),
        text.MISSING if each.loss_more is None else f"{each.loss_more:+.1%}",
    )
