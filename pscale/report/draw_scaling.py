"""Speed-up and efficiency over size, with intervals and the ideal line through the base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from pscale.analysis.models import Model
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Estimate
from pscale.analysis.summary import Summary
from pscale.report import draw_models, style, text
from pscale.report.look import narrow, sized

_MARGIN = 0.35  # of a doubling, beside the smallest and largest size
_ASIDE = 0.035  # of a doubling, between series, so that their intervals can be told apart
_ASIDES = 0.3  # of a doubling, between the first and the last of many series
_NAMED = 8  # series with a colour and a name of their own
_TICK_GAP = 0.055  # of the axis, so that tick labels stay apart

Series = list[tuple[str, list[Point]]]
Value = Callable[[Point], Estimate | None]


def scaling(summary: Summary) -> Figure | None:
    """Draw speed-up and efficiency, or the throughput where there is nothing to compare.

    None without any step time, or where cases are not sizes of something.
    """
    series = list(summary.series.items())
    if summary.side_by_side or not any(point.step_s for point in summary.points):
        return None
    if sum(point.efficiency is not None for point in summary.points) < 2:
        figure = style.canvas(5.8, 3.7, text.heading(summary))
        _panel(figure.subplots(), series, "Throughput", lambda point: point.samples_per_s)
        return figure
    named = sum(any(point.efficiency for point in points) for _, points in series) > 1
    height = 5.8 if narrow() else 3.7
    figure = style.canvas(10.8 if named else 9.2, height, text.heading(summary))
    left, right = figure.subplots(*((2, 1) if narrow() else (1, 2)))
    _panel(left, series, "Speed-up", lambda point: point.speedup)
    laws = draw_models.shown(summary.models)
    _panel(right, series, "Efficiency", lambda point: point.efficiency, laws)
    return figure


def _panel(axes: Axes, series: Series, title: str, value: Value, models: Sequence[Model] = ()) -> None:
    everything = [point for _, points in series for point in points]
    sizes = sorted({point.cores for point in everything})
    _size_axis(
        axes, draw_models.reached(models, sizes), threaded=any(point.threads > 1 for point in everything)
    )
    named = _named(series)
    some = f" ({len(named)} best and worst of {len(series)} named)" if len(named) < len(series) else ""
    dashed = "; dashed: model" if models else ""
    style.describe(axes, f"{title}, with 95% intervals{dashed}{some}")
    colours = dict(zip(named, style.distinct(len(named)), strict=True))
    for place, (name, points) in enumerate(series):
        aside = 2 ** (min(_ASIDE, _ASIDES / len(series)) * (place - (len(series) - 1) / 2))
        found = [(point.cores * aside, known) for point in points if (known := value(point))]
        _curve(axes, found, colours.get(name, style.FAINT))
        _missing(axes, [point for point in points if not value(point)])
        for law in models:
            if law.series == name:
                draw_models.model(axes, law, colours.get(name, style.FAINT))
    _value_axis(axes, title, [known for point in everything if (known := value(point))])
    if title != "Throughput":
        _ideal(axes, title, [point for point in everything if point.base and value(point)], sizes[-1])
    if len(series) > 1 and title != "Speed-up":
        _name_curves(axes, [(name, points) for name, points in series if name in colours], value, colours)


def _named(series: Series) -> list[str]:
    """Return the series to tell apart: all, or of many the worst and the best by their largest case."""
    if len(series) <= _NAMED:
        return [name for name, _ in series]
    last = {}
    for name, points in series:
        for point in points:
            if known := point.efficiency or point.samples_per_s:
                last[name] = known.value
    order = sorted(last, key=lambda name: last[name])
    return order[: _NAMED // 2] + order[-(_NAMED // 2) :]


def _curve(axes: Axes, found: Sequence[tuple[float, Estimate]], colour: style.Colour) -> None:
    sizes, values = [size for size, _ in found], [known.value for _, known in found]
    axes.plot(sizes, values, "-", color=colour, zorder=3)
    for size, known in found:
        if known.stated:
            axes.plot([size, size], known.stated, color=colour, linewidth=1.1, zorder=4)
    axes.plot(sizes, values, "o", color=colour, markeredgecolor="white", markeredgewidth=0.8, zorder=5)


def _missing(axes: Axes, points: Sequence[Point]) -> None:
    """Mark cases without a value on the lower edge, in the words of their status."""
    where: Any = {"transform": axes.get_xaxis_transform(), "color": style.BAD, "zorder": 6}
    for point in points:
        label = "no base" if point.status == "ok" else point.status
        axes.plot([point.cores], [0.03], "x", markersize=6, markeredgewidth=1.6, clip_on=False, **where)
        axes.text(
            point.cores, 0.075, label, ha="center", va="bottom", rotation=90, fontsize=sized(8), **where
        )


def _ideal(axes: Axes, title: str, bases: Sequence[Point], largest: int) -> None:
    """Draw what perfect scaling from the base would give."""
    starts = sorted({base.cores for base in bases})
    for start in starts:
        top = largest / start if title == "Speed-up" else 1.0
        axes.plot([start, max(largest, start)], [1.0, top], "--", color=style.QUIET, linewidth=1.2, zorder=1)
    if starts and title == "Speed-up" and largest > starts[0]:
        middle = (starts[0] * largest) ** 0.5
        axes.annotate(
            "ideal",
            (middle, middle / starts[0]),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=style.QUIET,
        )


def _name_curves(
    axes: Axes,
    series: Series,
    value: Value,
    colours: Mapping[str, style.Colour],
) -> None:
    """Write each series' name beside the end of its curve, names apart from one another."""
    ends = []
    for name, points in series:
        known = [(point.cores, found.value) for point in points if (found := value(point))]
        if known:
            ends.append((style.wrapped(name or "unnamed", 26), colours[name], *known[-1]))
    to_axes = axes.transLimits + axes.transAxes.inverted() if False else axes.transLimits
    heights = [float(to_axes.transform(axes.transScale.transform((size, at)))[1]) for _, _, size, at in ends]
    for (name, colour, size, at), height in zip(
        ends, style.apart(heights, 0.16 if narrow() else 0.12), strict=True
    ):
        axes.annotate(
            name,
            (size, at),
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontweight="bold",
            fontsize=sized(8.5),
        )


def _size_axis(axes: Axes, sizes: Sequence[int], *, threaded: bool) -> None:
    axes.set_xscale("log", base=2)
    low, high = log2(sizes[0]) - _MARGIN, log2(sizes[-1]) + _MARGIN
    axes.set_xlim(2**low, 2**high)
    kept: list[int] = []
    for size in reversed(sizes):
        if not kept or log2(kept[-1] / size) >= _TICK_GAP * (high - low):
            kept.append(size)
    axes.set_xticks(kept, [str(size) for size in kept])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("cores (ranks × threads)" if threaded else "ranks")


def _value_axis(axes: Axes, title: str, values: Sequence[Estimate]) -> None:
    tops = [max((known.value, *(known.stated or ()))) for known in values]
    if title == "Efficiency":
        axes.set_ylim(0, max(1.08, 1.05 * max(tops)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylabel("efficiency (base = 100%)")
    elif title == "Throughput":
        axes.set_ylim(0, 1.08 * max(tops))
        axes.set_ylabel("samples/s")
    else:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylabel("speed-up (base = 1)")
