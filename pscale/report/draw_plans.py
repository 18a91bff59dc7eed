"""Which plan is fastest: a bar a plan, in seconds, made of what the step goes to."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from pscale.analysis.ranking import Place
from pscale.analysis.scaling import Point
from pscale.analysis.summary import Summary
from pscale.report import style, text
from pscale.report.look import KINDS, narrow, sized

_BAR, _HEAD, _AXIS = 0.28, 0.34, 0.95  # inches: a bar with its gap, the title of a group, the axis and legend
_MOST = 40  # bars
_PARTS = {
    "compute": (KINDS["compute"], "compute"),
    "exchange": (KINDS["transfer"], "exchange"),
    "bubble": ("#6a3d9a", "bubble"),
    "wait": (KINDS["wait"], "other wait"),
    "copies": (KINDS["copy"], "copies"),
    "offload": (KINDS["offload"], "waiting for what is offloaded"),
}
_VISIBLE = 0.002  # of a step


def plans(summary: Summary) -> Figure | None:
    """Draw the ranking where cases are plans side by side; None elsewhere."""
    if not (summary.side_by_side and summary.ranking):
        return None
    groups: dict[str, list[Place]] = {}
    for place in summary.ranking:
        groups.setdefault(place.group, []).append(place)
    each = max(3, _MOST // len(groups))
    shown = {group: places[:each] for group, places in groups.items()}
    rows = [len(places) for places in shown.values()]
    figure = style.canvas(9.2, _BAR * sum(rows) + _HEAD * len(rows) + _AXIS, text.heading(summary))
    panels = figure.subplots(len(rows), 1, height_ratios=rows, sharex=True, squeeze=False)[:, 0]
    longest = max(_step_s(summary.point(place.case)) for places in shown.values() for place in places)
    for axes, (group, places) in zip(panels, shown.items(), strict=True):
        _bars(axes, summary, places, longest)
        more = f" (the fastest {each} of {len(groups[group])})" if len(groups[group]) > each else ""
        if len(groups) > 1 or more:
            axes.set_title(text.clean(group) + more)
    panels[-1].set_xlabel("step time")
    panels[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: text.duration(value, 3)))
    seen = [name for name in _PARTS if any(getattr(place, name) > _VISIBLE for place in summary.ranking)]
    patches = [Patch(color=_PARTS[name][0]) for name in seen]
    style.below(figure, patches, [_PARTS[name][1] for name in seen])
    return figure


def _bars(axes: Axes, summary: Summary, places: list[Place], longest: float) -> None:
    for row, place in enumerate(places):
        point = summary.point(place.case)
        step_s, left = _step_s(point), 0.0
        for name, (colour, _) in _PARTS.items():
            width = getattr(place, name) * step_s
            axes.barh(row, width, left=left, height=0.72, color=colour, edgecolor="white", linewidth=0.5)
            left += width
        low, high = _interval(point, place, longest)
        axes.plot([low, high], [row, row], color=style.INK, linewidth=1.4, zorder=5)
        end = max(step_s, high)
        mark = " =" if place.tied else " ?" if place.vague else ""
        label = f"{text.duration(step_s, 3)}  {place.ratio.value:.3g}×{mark}"
        axes.text(end + 0.01 * longest, row, label, va="center", fontsize=sized(8.5))
    names = [
        style.wrapped(place.plan or summary.point(place.case).label, 52 if narrow() else 34)
        for place in places
    ]
    axes.set_yticks(range(len(places)), names)
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_xlim(0, 1.18 * longest)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def _interval(point: Point, place: Place, longest: float) -> tuple[float, float]:
    """Return the bounds of the step time; one that leaves the picture says nothing and is left out."""
    known = point.step_s
    if known is None or known.low is None or known.high is None:
        return (_step_s(point),) * 2
    if place.vague or known.high > 1.1 * longest:
        return (_step_s(point),) * 2
    return known.low, known.high


def _step_s(point: Point) -> float:
    return point.step_s.value if point.step_s else 0.0
