"""Which plan is fastest, where plans of the same work are side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.difference import EQUAL
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.report import text
from pscale.report.figure_style import CAUSES, INK, KINDS
from pscale.report.table import Column, Table, Tone, Value, Written, listed
from pscale.report.topics.topic import Topic, TopicFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pscale.report import drawing

_BAR, _HEAD, _AXIS = 0.28, 0.34, 0.95  # inches: a bar with its gap, the title of a group, the axis and legend
_MOST = 40  # bars
_PARTS = {
    "compute": (KINDS["compute"], "compute"),
    "exchange": (KINDS["transfer"], "exchange"),
    "bubble": (CAUSES["bubble"], "bubble"),
    "wait": (KINDS["wait"], "other wait"),
    "copies": (KINDS["copy"], "copies"),
    "offload": (KINDS["offload"], "stalls for offloaded data"),
}
_VISIBLE = 0.002  # of a step
_ROOM = 1.1  # of the longest bar: up to there intervals are drawn


def tables(findings: Findings) -> Iterator[Table]:
    """Yield, per group of plans of the same work, which is fastest and what costs the others."""
    groups = _groups(findings)
    for group, places in groups.items():
        title = "Which plan is fastest" + (f": {text.clean(group)}" if group and len(groups) > 1 else "")
        columns, caption = _columns(findings), _caption(places)
        yield from listed(title, places, columns, caption=caption, tone=_tone, filled=True)


def _caption(places: Sequence[Row]) -> str:
    """Explain the words and signs that are there."""
    marks = {_mark(place) for place in places}
    parts = {
        "shares are of each plan's step": True,
        f"= within {EQUAL:.0%} of the fastest": "=" in marks,
        "? undecided: the interval includes the opposite result": "?" in marks,
        "extra compute: more than the plan that computes least": "extra" in {place.loss for place in places},
    }
    return "; ".join(text for text, holds in parts.items() if holds)


def _columns(findings: Findings) -> Sequence[Column]:
    return (
        Column("#", str, get=lambda place: Written(place.place, _mark(place) or f"{place.place}")),
        Column("plan", fold=True, get=lambda place: place.plan or findings.labels[place.case]),
        Column("step", text.duration, get=lambda place: findings.case(place.case).step_s),
        Column("× fastest", text.number_3, get="ratio"),
        Column("95% interval", text.ratio_interval, interval=True, get=_ratio),
        Column("exchange", text.percent, wide=True, get="exchange"),
        Column("bubble", text.percent, wide=True, get=lambda place: place.bubble or None),
        *(Column(name, text.percent, wide=True, get=name) for name in ("wait", "compute")),
        Column("copies", text.percent, wide=True, get=lambda place: place.copies or None),
        Column("largest loss", get=_loss),
        Column("to decide", fold=True, get=lambda place: messages.need(place) or None),
    )


def _groups(findings: Findings) -> dict[str, list[Row]]:
    return grouped(findings.rows("ranking"), lambda place: str(place.group))


def _tone(place: Row) -> Tone:
    return "pending" if place.answer == "undecided" else "good" if place.place == 1 else ""


def _mark(place: Row) -> str:
    return {"equal": "=", "undecided": "?"}.get(place.answer, "")


def _ratio(place: Row) -> Value:
    """Return the ratio that has bounds; empty for the fastest plan, which the others are compared with."""
    ratio: Value = "" if not place.answer else place.ratio
    return ratio


def _loss(place: Row) -> str:
    return f"{messages.PLAN_LOSSES[place.loss]} {getattr(place, place.loss):.0%}" if place.loss else "none"


def figure(findings: Findings) -> Figure | None:
    """Draw the ranking where cases are plans side by side, a bar a plan; None elsewhere."""
    from pscale.report import drawing

    if not (findings.side_by_side and len(findings.ranking)):
        return None
    groups = _groups(findings)
    each = max(3, _MOST // len(groups))
    drawn = {group: places[:each] for group, places in groups.items()}
    rows = [len(places) for places in drawn.values()]
    figure = drawing.canvas(9.2, _BAR * sum(rows) + _HEAD * len(rows) + _AXIS, text.heading(findings))
    panels = figure.subplots(len(rows), 1, height_ratios=rows, sharex=True, squeeze=False)[:, 0]
    longest = max(findings.case(place.case).step_s.value for places in drawn.values() for place in places)
    for axes, (group, places) in zip(panels, drawn.items(), strict=True):
        _bars(axes, findings, places, longest)
        more = f" (the fastest {each} of {len(groups[group])})" if len(groups[group]) > each else ""
        if len(groups) > 1 or more:
            axes.set_title(text.clean(group) + more)
    panels[-1].set_xlabel("step time")
    panels[-1].xaxis.set_major_formatter(lambda value, _: text.duration_3(value))
    visible = {
        words: colour
        for name, (colour, words) in _PARTS.items()
        if any(getattr(place, name) > _VISIBLE for place in findings.rows("ranking"))
    }
    drawing.below(figure, visible)
    return figure


def _bars(axes: Axes, findings: Findings, places: Sequence[Row], longest: float) -> None:
    from pscale.report import drawing

    pairs = [(place, findings.case(place.case)) for place in places]
    drawing.stacked(axes, {row: [_part(*pair, name) for name in _PARTS] for row, pair in enumerate(pairs)})
    for row, (place, point) in enumerate(pairs):
        step_s = point.step_s.value
        low, high = _interval(point, longest)
        faint = 0.45 if place.answer == "undecided" else 1.0
        axes.plot([low, high], [row, row], color=INK, linewidth=1.4, zorder=5, alpha=faint)
        if (point.step_s.high or 0.0) > high:
            axes.plot([high], [row], ">", color=INK, markersize=4, zorder=5, alpha=faint)
        label = f"{text.duration_3(step_s)}  {place.ratio.value:.3g}× {_mark(place)}".rstrip()
        drawing.write_beside(axes, max(step_s, high) + 0.015 * longest, row, label)
    names = [place.plan or point.label for place, point in pairs]
    drawing.name_rows(axes, names, 34)
    axes.set_xlim(0, (_ROOM + 0.18) * longest)


def _part(place: Row, point: Row, name: str) -> drawing.Part:
    """Return what one part of the step takes of a bar."""
    from pscale.report import drawing

    colour, words = _PARTS[name]
    share = getattr(place, name)
    time_s = share * point.step_s.value
    hint = f"{point.label}: {words} {text.duration_3(time_s)}, {text.percent_1(share)} of the step"
    return drawing.Part(time_s, colour, hint, point.case)


def _interval(point: Row, longest: float) -> tuple[float, float]:
    """Return the bounds of the step time, as far as they lie in the picture."""
    value, low, high = point.step_s.value, point.step_s.low, point.step_s.high
    return (value, value) if low is None or high is None else (low, min(high, _ROOM * longest))


TOPIC = Topic(
    name="plans",
    title="Which plan is fastest",
    lead="Plans of the same work on the same ranks. Plans as fast as the fastest share its place; "
    "for plans marked ? this is undecided.",
    tables=tables,
    files=("ranking",),
    figure=TopicFigure(
        name="plans",
        title="Step time of every plan",
        description="One bar per plan, fastest first, split into compute, exchange, "
        "bubble, other wait, copies and stalls.",
        draw=figure,
    ),
)
