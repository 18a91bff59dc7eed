"""What is sent, by axis and verb, how fast, and beside what the network gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.figure_style import INK, KINDS, narrow, sized, wrapped
from pscale.report.table import Column, Columns, Table, Value, listed
from pscale.report.topics.topic import Topic, TopicFigure, case_column
from pscale.report.vector import mark

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
        case_column(findings),
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
        Column("of bare", text.percent, get=bare("share")),
    )


def figure(findings: Findings) -> Figure | None:
    """Draw a row for each axis and verb of the largest case of every series; None where nothing is sent."""
    from pscale.report import drawing

    planned = _groups(findings)
    groups = _at_most(planned)
    total, rows = (sum(len(found) for _, found in each) for each in (planned, groups))
    if not rows:
        return None
    heads = len(groups) if len(groups) > 1 else 0
    height = _ROW * (rows + heads) + _HEAD
    figure = drawing.canvas(9.2, 2 * height if narrow() else height, text.heading(findings))
    left, right = figure.subplots(*((2, 1) if narrow() else (1, 2)), sharey=True)
    title = "bytes" if heads else wrapped(f"bytes: {groups[0][0]}", 50, most=1)
    _panel(left, groups, title, lambda call: (call.bytes, text.size_of(call.bytes)))
    bare = {(each.case, each.axis, each.verb): each.bytes_per_s for each in findings.rows("bare")}
    title = "achieved bandwidth" + (" (mark: of the verb by itself)" if bare else "")
    _panel(right, groups, title, lambda call: (call.bytes_per_s, text.rate(call.bytes_per_s, "B/s")), bare)
    places, names = _names(groups)
    left.set_yticks(places, names)
    left.set_ylim(max(places) + 0.6, -0.6)
    drawing.count_drawn(figure, rows, total, "calls")
    return figure


def _groups(findings: Findings) -> list[Group]:
    """Return the calls of the largest case of every series, or of the first of many cases side by side."""
    of_case = findings.by_case("calls")
    for case, found in of_case.items():
        largest = max(call.bytes for call in found)
        of_case[case] = [call for call in found if call.bytes > _SMALL * largest]
    groups: list[Group] = []
    for points in (
        [[point] for point in findings.rows("cases")] if findings.side_by_side else findings.series.values()
    ):
        sending = [point for point in points if point.case in of_case]
        groups += [(text.label(point), of_case[point.case]) for point in sending[-1:]]
    return groups


def _at_most(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups that there is room for, or as many bars of the first."""
    kept, rows = [], 0
    for label, found in groups:
        rows += len(found)
        if rows <= _MOST:
            kept.append((label, found))
    return kept or [(label, found[:_MOST]) for label, found in groups[:1]]


def _names(groups: Sequence[Group]) -> tuple[list[int], list[str]]:
    """Return the places of all bars and their names."""
    places, names, place = [], [], 0
    for _, found in groups:
        place += len(groups) > 1
        for call in found:
            places.append(place)
            names.append(f"{call.axis}  {call.verb.replace('_', '-')}")
            place += 1
    return places, names


def _panel(
    axes: Axes,
    groups: Sequence[Group],
    title: str,
    value: Callable[[Row], tuple[float | None, str]],  # and how it is written
    bares: Mapping[Key, float] | None = None,
) -> None:
    from pscale.report import drawing

    places, _ = _names(groups)
    calls = [call for _, of_group in groups for call in of_group]
    found = [value(call) for call in calls]
    bare = [(bares or {}).get((call.case, call.axis, call.verb)) for call in calls]
    longest = max((known for known in (*(each for each, _ in found), *bare) if known), default=0.0) or 1.0
    for place, call, (known, said), alone in zip(places, calls, found, bare, strict=True):
        (bar,) = axes.barh(place, known or 0.0, height=0.66, color=KINDS["transfer"])
        mark(bar, f"{call.axis} {call.verb.replace('_', '-')}: {said}", call.case)
        if alone:
            axes.plot([alone, alone], [place - 0.4, place + 0.4], color=INK, linewidth=sized(2))
        drawing.write_beside(axes, max(known or 0.0, alone or 0.0) + 0.015 * longest, place, said)
    axes.set_xlim(0, _ROOM * longest)
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title)
    first = 0
    for label, calls in groups if len(groups) > 1 else ():
        if title == "bytes" or narrow():
            name = wrapped(label, 88 if narrow() else 56, most=1)
            axes.text(0, first, name, fontweight="bold", va="center")
        first += 1 + len(calls)


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
    rows_per_case=lambda findings: (
        len(findings.rows("calls")) / max(1, len({call.case for call in findings.rows("calls")}))
    ),
    figure=TopicFigure(
        name="calls",
        title="Bytes and bandwidth",
        description="Two panels, a bar for each axis and verb of the largest cases: bytes sent per rank and "
        "step, and the achieved bandwidth.",
        draw=figure,
    ),
)
