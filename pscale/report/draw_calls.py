"""What the largest case of every series sends, by axis and verb: bytes, and the bandwidth achieved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pscale.analysis.phases import CallTime
from pscale.analysis.summary import Summary
from pscale.report import style, text
from pscale.report.look import KINDS, narrow, sized

_ROW, _HEAD = 0.27, 0.75  # inches: a bar with its gap, title and margins
_MOST = 24  # bars
_SMALL = 1e-3  # of what the largest call of a case sends: less is in the table alone
_ROOM = 1.3  # of the longest bar, for what is written beside it

Group = tuple[str, list[CallTime]]
Value = Callable[[CallTime], tuple[float | None, str]]  # and how it is written


def calls(summary: Summary) -> Figure | None:
    """Draw a row for each axis and verb; None where nothing is sent."""
    groups = _groups(summary)
    rows = sum(len(found) for _, found in groups)
    if not rows:
        return None
    heads = len(groups) if len(groups) > 1 else 0
    height = _ROW * (rows + heads) + _HEAD
    figure = style.canvas(9.2, 2 * height if narrow() else height, text.heading(summary))
    left, right = figure.subplots(*((2, 1) if narrow() else (1, 2)), sharey=True)
    title = "bytes" if heads else style.wrapped(f"bytes: {groups[0][0]}", 50, most=1)
    _panel(left, groups, title, lambda call: (call.bytes, text.size_of(call.bytes)))
    bare = {(each.case, each.axis, each.verb): each.bytes_per_s for each in summary.bares}
    title = "achieved bandwidth" + (" (mark: of the verb by itself)" if bare else "")
    _panel(right, groups, title, _achieved, bare)
    places, names = _names(groups)
    left.set_yticks(places, names)
    left.set_ylim(max(places) + 0.6, -0.6)
    return figure


def _groups(summary: Summary) -> list[Group]:
    """Return the calls of the largest case of every series, or of the first of many cases side by side."""
    of_case: dict[str, list[CallTime]] = {}
    for call in summary.calls:
        of_case.setdefault(call.case, []).append(call)
    for case, found in of_case.items():
        largest = max(call.bytes for call in found)
        of_case[case] = [call for call in found if call.bytes > _SMALL * largest]
    groups: list[Group] = []
    for points in [[point] for point in summary.points] if summary.side_by_side else summary.series.values():
        sending = [point for point in points if point.case in of_case]
        groups += [(text.label(point), of_case[point.case]) for point in sending[-1:]]
    kept = [
        group
        for place, group in enumerate(groups)
        if sum(len(found) for _, found in groups[: place + 1]) <= _MOST
    ]
    return kept or [(label, found[:_MOST]) for label, found in groups[:1]]


def _names(groups: Sequence[Group]) -> tuple[list[int], list[str]]:
    """Return the places of all bars and what they are called."""
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
    value: Value,
    marks: Mapping[tuple[str, str, str], float] | None = None,
) -> None:
    places, _ = _names(groups)
    calls = [call for _, of_group in groups for call in of_group]
    found = [value(call) for call in calls]
    bare = [(marks or {}).get((call.case, call.axis, call.verb)) for call in calls]
    longest = max((known for known in (*(each for each, _ in found), *bare) if known), default=0.0) or 1.0
    for place, (known, said), mark in zip(places, found, bare, strict=True):
        axes.barh(place, known or 0.0, height=0.66, color=KINDS["transfer"])
        if mark:
            axes.plot([mark, mark], [place - 0.4, place + 0.4], color=style.INK, linewidth=sized(2))
        end = max(known or 0.0, mark or 0.0)
        axes.text(end + 0.015 * longest, place, said, va="center", fontsize=sized(8.5))
    axes.set_xlim(0, _ROOM * longest)
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title)
    first = 0
    for label, calls in groups if len(groups) > 1 else ():
        axes.text(
            0,
            first,
            style.wrapped(label, 88 if narrow() else 44, most=1) if title == "bytes" or narrow() else "",
            fontweight="bold",
            va="center",
        )
        first += 1 + len(calls)


def _achieved(call: CallTime) -> tuple[float | None, str]:
    return call.bytes_per_s, text.rate(call.bytes_per_s, "B/s")
