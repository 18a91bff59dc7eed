"""What is sent, by axis and verb, and how fast."""

from __future__ import annotations

from pscale.report.grids_calls import calls
from pscale.report.page.blocks import Section
from pscale.report.page.context import Context
from pscale.report.page.sheets import chosen, sheets

_OPEN = 24  # rows that are not folded away


def communication(context: Context) -> Section | None:
    """Return calls, bytes, times and bandwidth of every case."""
    summary = context.summary
    if not summary.calls:
        return None
    some, left_out = chosen(summary, len(summary.calls) / len({call.case for call in summary.calls}))
    tables = sheets(
        calls(some),
        "calls",
        files=context.files("calls", "bare"),
        left_out=left_out,
        folded=len(some.calls) > _OPEN,
    )
    drawn = context.pictures(
        "calls",
        "Bytes and bandwidth",
        "Two panels, a bar for each axis and verb of the largest cases: bytes sent per rank and step, and "
        "the bandwidth that was achieved.",
        *tables,
    )
    return Section(
        name="communication",
        title="Communication",
        lead="By axis of the mesh and verb, per rank and step. B/s is the bandwidth that was "
        "achieved: payload over the time under way."
        + (" Beside it is what the network gives to the verb by itself." if summary.bares else ""),
        blocks=[*drawn] or tables,
    )
