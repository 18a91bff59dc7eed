"""The table of what is offloaded: memory that it saves, bytes that it moves, time that it costs."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.offload import Offloaded
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row


def offload(summary: Summary) -> Iterator[Grid]:
    """Yield memory, bytes and time of cases that differ in offload alone."""
    columns = (
        *(Column("case", right=False, fold=True), Column("memory"), Column("× none"), Column("in a file")),
        *(Column("read"), Column("written"), Column("at", wide=True), Column("moving", wide=True)),
        *(Column("stalled"), Column("step"), Column("× none's")),
    )
    if summary.offloaded:
        yield Grid(
            title="Offload (per rank and step)",
            columns=columns,
            rows=tuple(_row(summary, each) for each in summary.offloaded),
            caption="memory: peak of resident memory of the fullest rank above the process without its "
            "model; at: bytes read and written over the time that the thread beside the step moved them; "
            "stalled: the step waited for it; × none: beside the same case without offload",
        ).without(text.MISSING)


def _row(summary: Summary, each: Offloaded) -> Row:
    point = summary.point(each.case)
    return "", (
        text.clean(point.label),
        text.size_of(each.memory_bytes),
        text.ratio(each.memory_ratio),
        text.size_of(each.file_bytes),
        text.size_of(each.read_bytes),
        text.size_of(each.written_bytes),
        text.MISSING if each.bytes_per_s is None else f"{text.size_of(each.bytes_per_s)}/s",
        text.duration(each.io_s, 3),
        text.duration(each.stall_s, 3),
        text.duration(point.step_s.value if point.step_s else None),
        text.ratio(each.step_ratio),
    )
