"""What is sent, by axis and verb, how fast, and beside what the network gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from pscale.analysis import text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.report.blocks import Topic, TopicFigure
from pscale.report.figure_style import INK, KINDS, mark, narrow, sized, wrapped
from pscale.report.table import CASE, Column, Columns, Table, Value, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _HEAD = 0.27, 0.75  # inches: a bar with its gap, title and margins
_MOST = 24  # bars
_SMALL = 1e-3  # of what the largest call of a case sends: less is in the table alone
_ROOM = 1.3  # of the longest bar, for what is written beside it

Group = tuple[str, list[Row]]
Key = tuple[str, str, str]  # case, axis and verb


def tables(findings: Findings) -> Iterator[Table]:
    """Yield communication by axis and verb."""
    caption = (
        "hidden, exposed: time of nonblocking calls outside and inside MPI calls; "
        "B/s: payload over the time after all ranks have arrived (transfer + hidden)"
    ) + ("; bare: the operation by itself, with messages of the same size" if findings.rows("bare") else "")
    order = {point.case: place for place, point in enumerate(findings.rows("cases"))}
    calls = sorted(findings.rows("calls"), key=lambda call: order[call.case])
    title = "Communication (per rank and step)"
    return listed(title, calls, _columns(findings), caption=caption, grouped=True, filled=True)


def _columns(findings: Findings) -> Columns:
    bares = {(each.case, each.axis, each.verb): each for each in findings.rows("bare")}

    def clear(name: str) -> Callable[[Row], Value]:
        return lambda call: None if call.wait_or_transfer_s else getattr(call, name)

    def bare(name: str) -> Callable[[Row], Value]:
        return lambda call: getattr(bares.get((call.case, call.axis, call.verb)), name, None)

    return (
        CASE,
        "axis",
        Column("verb", get=lambda call: call.verb.replace("_", "-")),
        Column("calls", text.number_3, wide=True, get="count"),
        Column("bytes", text.size_of, get=lambda call: call.bytes or None),
        Column("transfer", text.duration_3, get=clear("transfer_s")),
        Column("wait", text.duration_3, get=clear("wait_s")),
        Column(text.WAIT_OR_TRANSFER, text.duration_3, get=lambda call: call.wait_or_transfer_s or None),
        Column(get="hidden_s", wide=True),
        Column(get="exposed_s", wide=True),
        Column("B/s", text.rate, get=lambda call: call.bytes_per_s if call.bytes else None),
        Column("bare B/s", text.rate, wide=True, get=bare("bytes_per_s")),
        Column("of bare", text.percent_0, get=bare("share")),
    )


def figure(findings: Findings) -> Figure | None:
    """Draw a row for each axis and verb of the largest case of every series; None where nothing is sent."""
    from pscale.report import drawing

    planned = _groups(findings)
    groups = _at_most(planned)
    bars, heads = drawing.in_rows(groups)
    if not bars:
        return None
    height = _ROW * (len(bars) + len(heads)) + _HEAD
    figure = drawing.canvas(9.2, 2 * height if narrow() else height, findings.heading)
    left, right = figure.subplots(*((2, 1) if narrow() else (1, 2)), sharey=True)
    title = "bytes" if heads else wrapped(f"bytes: {groups[0][0]}", 50, most=1)
    _panel(left, bars, title, lambda call: (call.bytes, text.size_of(call.bytes)))
    bare = {(each.case, each.axis, each.verb): each.bytes_per_s for each in findings.rows("bare")}
    title = "achieved bandwidth" + (" (mark: of the verb by itself)" if bare else "")

    def bandwidth(call: Row) -> tuple[float | None, str]:
        known = call.bytes_per_s
        return known, text.MISSING if known is None else text.rate(known, "B/s")

    _panel(right, bars, title, bandwidth, bare)
    for axes in (left, right) if narrow() else (left,):
        for place, label in heads.items():
            name = wrapped(label, 88 if narrow() else 56, most=1)
            axes.text(0, place, name, fontweight="bold", va="center")
    left.set_yticks(list(bars), [_name(call) for call in bars.values()])
    left.set_ylim(max(bars) + 0.6, -0.6)
    drawing.count_drawn(figure, len(bars), sum(len(calls) for _, calls in planned), "calls")
    return figure


def _name(call: Row, between: str = "  ") -> str:
    return f"{call.axis}{between}{call.verb.replace('_', '-')}"


def _groups(findings: Findings) -> list[Group]:
    """Return the calls of the largest case of every series, or of the first of many cases side by side."""
    of_case: dict[str, list[Row]] = {}
    for case, found in findings.by_case("calls").items():
        largest = max(call.bytes for call in found)
        of_case[case] = [call for call in found if call.bytes > _SMALL * largest]
    alone = ([point] for point in findings.rows("cases"))
    series = alone if findings.side_by_side else findings.series.values()
    sending = ([point for point in points if point.case in of_case][-1:] for points in series)
    return [(text.clean(point.label), of_case[point.case]) for points in sending for point in points]


def _at_most(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups that there is room for, or as many bars of the first."""
    rows = [*accumulate(len(found) for _, found in groups)]
    kept = [group for group, total in zip(groups, rows, strict=True) if total <= _MOST]
    return kept or [(label, found[:_MOST]) for label, found in groups[:1]]


def _panel(
    axes: Axes,
    bars: Mapping[int, Row],
    title: str,
    value: Callable[[Row], tuple[float | None, str]],  # and how it is written
    bares: Mapping[Key, float] | None = None,
) -> None:
    from pscale.report import drawing

    bare = {place: (bares or {}).get((call.case, call.axis, call.verb)) for place, call in bars.items()}
    lengths = [known for call in bars.values() if (known := value(call)[0])]
    longest = max((*lengths, *filter(None, bare.values())), default=0.0) or 1.0
    for place, call in bars.items():
        (known, said), alone = value(call), bare[place]
        (bar,) = axes.barh(place, known or 0.0, height=0.66, color=KINDS["transfer"])
        mark(bar, f"{_name(call, ' ')}: {said}", call.case)
        if alone:
            axes.plot([alone, alone], [place - 0.4, place + 0.4], color=INK, linewidth=sized(2))
        drawing.write_beside(axes, max(known or 0.0, alone or 0.0) + 0.015 * longest, place, said)
    axes.set_xlim(0, _ROOM * longest)
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title)


TOPIC = Topic(
    name="communication",
    title="Communication",
    lead=lambda findings: (
        "By mesh axis and operation, per rank and step. B/s is the achieved bandwidth: "
        "payload over transfer and hidden time."
        + (" Next to it is that of the bare operation." if findings.rows("bare") else "")
    ),
    tables=tables,
    files=("calls", "bare"),
    rows_per_case="calls",
    figure=TopicFigure(
        name="calls",
        title="Bytes and bandwidth",
        description="Two panels, a bar for each axis and verb of the largest cases: bytes sent per rank and "
        "step, and the achieved bandwidth.",
        draw=figure,
    ),
)
