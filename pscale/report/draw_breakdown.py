"""Where the step of every case goes: one bar a case, each kind of time by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from pscale.analysis.phases import PhaseTime
from pscale.analysis.scaling import Point
from pscale.analysis.summary import Summary
from pscale.report import style, text
from pscale.report.look import KINDS, narrow, sized

MOST = 48  # bars; of larger runs only the smallest and largest case of a series are drawn, as far as they fit
_KINDS = ("compute", "transfer", "together", "wait", "copy", "offload")
_BAR, _AXIS, _LINE = 0.30, 0.75, 0.17  # inches: a bar with its gap, the axis below, a line of the legend
_COLUMN, _NARROW = 0.13, 0.25  # of the width: a column of the legend
_VISIBLE = 0.001  # of a step: what is smaller has no place in the legend

Part = tuple[str, str]  # kind and phase
Times = Mapping[tuple[str, str], PhaseTime]


def breakdown(summary: Summary) -> Figure | None:
    """Draw the shares of every measured case's step; None without any, or where plans are ranked."""
    times = {(time.case, time.phase): time for time in summary.phases}
    if summary.side_by_side and summary.ranking:
        return None  # `plans` has it, in seconds
    groups = _groups(summary)
    rows = sum(len(points) for _, points in groups)
    if not rows:
        return None
    colours = _colours(summary.phases)
    legend = _LINE * (1.5 + max(Counter(kind for kind, _ in colours).values()))
    bars = _BAR * (rows + (len(groups) if len(groups) > 1 else 0)) + _AXIS
    figure = style.canvas(9.2, legend + bars, text.heading(summary))
    above, axes = figure.subplots(2, 1, height_ratios=(legend, bars))
    _legend(above, colours)
    _bars(axes, groups, colours, times)
    if rows < len({time.case for time in summary.phases}):
        axes.set_title(
            "the smallest and the largest case of a series alone", fontsize=sized(8.5), color=style.QUIET
        )
    return figure


def _groups(summary: Summary) -> list[tuple[str, list[Point]]]:
    measured = {time.case for time in summary.phases}
    groups = [
        (name, [point for point in points if point.case in measured])
        for name, points in summary.series.items()
    ]
    groups = [(name, points) for name, points in groups if points]
    if sum(len(points) for _, points in groups) > MOST:
        return [(name, list(dict.fromkeys((points[0], points[-1])))) for name, points in groups][: MOST // 2]
    return groups


def _colours(phases: Sequence[PhaseTime]) -> dict[Part, style.Colour]:
    """Return a colour for every part that is visible in some bar: a hue by kind, a shade by phase."""
    found: dict[Part, style.Colour] = {}
    for kind in _KINDS:
        seen = [time.phase for time in phases if getattr(time, f"{kind}_s") > _VISIBLE * time.step_s]
        order = [phase for phase in dict.fromkeys(time.phase for time in phases) if phase in seen]
        shades = style.shades(KINDS[kind], len(order))
        found |= {(kind, phase): shade for phase, shade in zip(order, shades, strict=True)}
    return found


def _bars(
    axes: Axes, groups: Sequence[tuple[str, list[Point]]], colours: Mapping[Part, style.Colour], times: Times
) -> None:
    place, ticks = 0.0, []
    for series, points in groups:
        if len(groups) > 1:
            axes.text(0, place, text.clean(series) or "unnamed", fontweight="bold", va="center", ha="left")
            place += 1
        for point in points:
            _bar(axes, place, point, colours, times)
            ticks.append((place, _name(point)))
            place += 1
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_ylim(place - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("share of the step (mean over ranks and steps)")
    axes.spines["left"].set_visible(False)
    axes.text(
        1.012,
        1.0,
        "mean step",
        transform=axes.transAxes,
        va="bottom",
        color=style.QUIET,
        fontsize=sized(8.5),
    )


def _bar(axes: Axes, place: float, point: Point, colours: Mapping[Part, style.Colour], times: Times) -> None:
    left, step_s = 0.0, 0.0
    for (kind, phase), colour in colours.items():
        time = times.get((point.case, phase))
        if time is None:
            continue
        step_s = time.step_s
        width = getattr(time, f"{kind}_s") / step_s
        axes.barh(place, width, left=left, height=0.72, color=colour, edgecolor="white", linewidth=0.5)
        left += width
    label = text.duration(step_s, 3)
    axes.text(
        1.012,
        place,
        label,
        va="center",
        ha="left",
        transform=axes.get_yaxis_transform(),
        fontsize=sized(8.5),
    )


def _legend(axes: Axes, colours: Mapping[Part, style.Colour]) -> None:
    """Put the kinds side by side, each with its phases in the order of the bars."""
    axes.set_axis_off()
    columns = {kind: [part for part in colours if part[0] == kind] for kind in _KINDS}
    for place, (kind, parts) in enumerate((kind, parts) for kind, parts in columns.items() if parts):
        legend = Legend(
            axes,
            [Patch(color=colours[part]) for part in parts],
            [phase for _, phase in parts],
            title=text.KINDS.get(kind, kind),
            title_fontproperties={"weight": "bold"},
            alignment="left",
            loc="upper left",
            bbox_to_anchor=((_NARROW if narrow() else _COLUMN) * place, 1.0),
            borderaxespad=0,
            borderpad=0,
            handlelength=1.0,
            handleheight=0.9,
            labelspacing=0.25,
        )
        axes.add_artist(legend)


def _name(point: Point) -> str:
    ranks = text.plural(point.ranks, "rank")
    size = ranks if point.threads == 1 else f"{ranks} × {text.plural(point.threads, 'thread')}"
    return f"{size}, injected" if point.injected else size
