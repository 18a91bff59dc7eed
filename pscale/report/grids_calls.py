"""The table of communication: what is sent, how fast, and beside what the network gives."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.bare import Bare
from pscale.analysis.phases import CallTime
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row
from pscale.report.grids import together


def calls(summary: Summary) -> Iterator[Grid]:
    """Yield communication by axis and verb; a case is named in the first of its rows."""
    columns = (
        *(Column("case", right=False, fold=True), Column("axis", right=False), Column("verb", right=False)),
        *(Column("calls", wide=True), Column("bytes"), Column("transfer"), Column("wait")),
        *(*together(summary.calls), Column("hidden", wide=True), Column("exposed", wide=True)),
        *(Column("B/s"), *((Column("bare B/s", wide=True), Column("of bare")) if summary.bares else ())),
    )
    if rows := tuple(_rows(summary)):
        yield Grid(
            title="Communication (per rank and step)",
            columns=columns,
            rows=rows,
            caption="hidden, exposed: of started calls, outside and inside the calls that drive them; "
            "B/s: payload over the time under way once all have come (transfer + hidden)"
            + ("; bare: of the verb by itself, with messages as large" if summary.bares else ""),
        )


def _rows(summary: Summary) -> Iterator[Row]:
    of_case: dict[str, list[CallTime]] = {}
    for call in summary.calls:
        of_case.setdefault(call.case, []).append(call)
    bares = {(each.case, each.axis, each.verb): each for each in summary.bares}
    for point in summary.points:
        name = text.clean(point.label)
        for call in of_case.get(point.case, ()):
            beside = _beside(bares.get((call.case, call.axis, call.verb))) if summary.bares else ()
            yield "", (name, *_cells(summary, call), *beside)
            name = ""


def _cells(summary: Summary, call: CallTime) -> tuple[str, ...]:
    return (
        call.axis,
        call.verb.replace("_", "-"),
        text.number(call.count, 3),
        text.size_of(call.bytes or None),
        text.duration(None if call.together_s else call.transfer_s, 3),
        text.duration(None if call.together_s else call.wait_s, 3),
        *(text.duration(call.together_s or None, 3) for _ in together(summary.calls)),
        text.duration(call.hidden_s, 3),
        text.duration(call.exposed_s, 3),
        text.rate(call.bytes_per_s if call.bytes else None),
    )


def _beside(bare: Bare | None) -> tuple[str, str]:
    """Return what the network gives to a call, and how much of that it gets."""
    return (text.rate(bare.bytes_per_s), text.percent(bare.share)) if bare else (text.MISSING, text.MISSING)
