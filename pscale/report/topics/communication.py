"""What is sent, by axis and verb, how fast, and beside what the network gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pscale.analysis import text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.report.blocks import Topic, TopicFigure, show
from pscale.report.figure_style import KINDS, wrapped
from pscale.report.table import CASE, Column, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pscale.report import drawing

_MOST = 24  # bars
_SMALL = 1e-3  # of what the largest call of a case sends: less is in the table alone


def _clear(name: str) -> Callable[[Row], Value]:
    return lambda call: None if call.wait_or_transfer_s else getattr(call, name)


tables = show(
    "Communication (per rank and step)",
    "calls",
    (
        CASE,
        "axis",
        Column("verb", get=lambda call: call.verb.replace("_", "-")),
        Column("calls", text.number_3, wide=True, get="count"),
        Column("bytes", text.size_of, get=lambda call: call.bytes or None),
        Column("transfer", text.duration_3, get=_clear("transfer_s")),
        Column("wait", text.duration_3, get=_clear("wait_s")),
        Column(text.WAIT_OR_TRANSFER, text.duration_3, get=lambda call: call.wait_or_transfer_s or None),
        *(Column(get="hidden_s", wide=True), Column(get="exposed_s", wide=True)),
        *(Column("B/s", get="bytes_per_s"), Column("bare B/s", wide=True, get="bare_bytes_per_s")),
        Column("of bare", text.percent_0, get="bare_share"),
    ),
    explain=("hidden_s", "exposed_s", "bytes_per_s", "bare_bytes_per_s"),
    grouped=True,
    filled=True,
)


def _has_bare(findings: Findings) -> bool:
    return bool(findings.calls["bare_bytes_per_s"].notna().any())


def figure(findings: Findings) -> Figure | None:
    """Draw a row for each axis and verb of the largest case of every series; None where nothing is sent."""
    from pscale.report import drawing

    groups = _groups(findings)

    def bar(call: Row, value: float | None, said: str, bare: float | None = None) -> drawing.Bar:
        verb = call.verb.replace("_", "-")
        part = drawing.Part(value or 0.0, KINDS["transfer"], f"{call.axis} {verb}: {said}")
        beside = (bare, f"{call.axis} {verb}, by itself: {text.rate(bare, 'B/s')}") if bare else None
        return drawing.Bar(f"{call.axis}  {verb}", call.case, [part], said, beside=beside)

    def bandwidth(call: Row) -> drawing.Bar:
        known = call.bytes_per_s
        said = text.MISSING if known is None else text.rate(known, "B/s")
        return bar(call, known, said, call.bare_bytes_per_s)

    if not groups:
        return None
    sizes = [
        (name, [bar(call, call.bytes, text.size_of(call.bytes)) for call in calls]) for name, calls in groups
    ]
    rates = [(name, [*map(bandwidth, calls)]) for name, calls in groups]
    figure, both = drawing.bar_chart(findings.heading, sizes, rates, most=_MOST, noun="calls")
    titles = (
        "bytes" if len(groups) > 1 else wrapped(f"bytes: {groups[0][0]}", 50, most=1),
        "achieved bandwidth" + " (mark: of the verb by itself)" * _has_bare(findings),
    )
    for axes, title in zip(both, titles, strict=True):
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_title(title)
    return figure


def _groups(findings: Findings) -> list[tuple[str, list[Row]]]:
    """Return the calls of the largest case of every series, or of the first of many cases side by side."""
    of_case: dict[str, list[Row]] = {}
    for case, found in findings.by_case("calls").items():
        largest = max(call.bytes for call in found)
        if kept := [call for call in found if call.bytes > _SMALL * largest]:
            of_case[case] = kept
    alone = ([point] for point in findings.rows("cases"))
    series = alone if findings.side_by_side else findings.series.values()
    sending = ([point for point in points if point.case in of_case][-1:] for points in series)
    return [(text.clean(point.label), of_case[point.case]) for points in sending for point in points]


TOPIC = Topic(
    name="communication",
    title="Communication",
    lead=lambda findings: (
        "By mesh axis and operation, per rank and step. B/s is the achieved bandwidth: "
        "payload over transfer and hidden time."
        + " Next to it is that of the bare operation."
        * _has_bare(findings)
    ),
    tables=tables,
    figure=TopicFigure(
        name="calls",
        title="Bytes and bandwidth",
        description="Two panels, a bar for each axis and verb of the largest cases: bytes sent per rank and "
        "step, and the achieved bandwidth.",
        draw=figure,
    ),
)
