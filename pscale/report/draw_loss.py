"""Loss curves of all cases, with what guessing would cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pscale.analysis.scaling import Point
from pscale.analysis.summary import Summary
from pscale.report import style, text
from pscale.report.look import narrow, room, sized

_ACROSS = 3  # panels
_MOST = 24  # panels; further series are in the tables alone
_WIDTHS = {1: 7.0, 2: 9.6, 3: 11.4}  # inches, by panels across
_BELOW = 0.08  # of the height of the curves
_SAME = 1e-3  # relative; curves closer than this all along are drawn as one

Curve = tuple[list[Point], tuple[float, ...]]


def loss(summary: Summary) -> Figure | None:
    """Draw one panel a series; None where no case has losses."""
    series = [(name, _curves(points)) for name, points in summary.series.items()]
    series = [(name, curves) for name, curves in series if curves][:_MOST]
    if not series:
        return None
    columns = min(room(_ACROSS), len(series))
    rows = -(-len(series) // columns)
    figure = style.canvas(_WIDTHS[columns], (2.6 if narrow() else 3.3) * rows, summary.title)
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for place, (axes, (name, curves)) in enumerate(zip(panels, series, strict=False)):
        guess = next(
            (point.loss_unigram for points, _ in curves for point in points if point.loss_unigram), None
        )
        _panel(axes, curves, guess)
        if len(series) > 1:
            axes.set_title(style.wrapped(name, 34 if columns > 1 else 100))
        else:
            style.describe(axes, "Training loss")
        if place % columns == 0:
            axes.set_ylabel("loss (nats)" if guess else "loss")
    for axes in panels[len(series) :]:
        axes.remove()
    return figure


def _curves(points: Sequence[Point]) -> list[Curve]:
    """Return the different curves of a series, each with the cases that share it."""
    curves: list[Curve] = []
    for point in points:
        if not any(map(isfinite, point.losses)):
            continue
        twin = next((found for found, losses in curves if _same(losses, point.losses)), None)
        if twin is None:
            curves.append(([point], point.losses))
        else:
            twin.append(point)
    return curves


def _same(first: Sequence[float], second: Sequence[float]) -> bool:
    pairs = list(zip(first, second, strict=False))
    return len(first) == len(second) and all(abs(a - b) <= _SAME * abs(a) for a, b in pairs)


def _panel(axes: Axes, curves: Sequence[Curve], guess: float | None) -> None:
    colours = style.ordered(len(curves))
    for (_, losses), colour in zip(curves, colours, strict=True):
        axes.plot(range(len(losses)), losses, color=colour, linewidth=1.6)
    if guess is not None:
        top = max((value for _, losses in curves for value in losses if isfinite(value)), default=guess)
        axes.update_datalim([(0, guess - _BELOW * max(0.0, top - guess))])  # room for the name of the line
        axes.axhline(guess, color=style.QUIET, linestyle="--", linewidth=1.1, zorder=1)
        axes.annotate(
            "guessing by frequency",
            (0.012, guess),  # curves come from above and leave the corner below the line free
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, -3),
            textcoords="offset points",
            va="top",
            color=style.QUIET,
            fontsize=sized(8),
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            zorder=1.5,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("step, warm-up included")
    axes.margins(x=0.02)
    names = [
        (_sizes(points), next(value for value in reversed(losses) if isfinite(value)), colour)
        for (points, losses), colour in zip(curves, colours, strict=True)
    ]
    _name(axes, names)


def _name(axes: Axes, names: Sequence[tuple[str, float, style.Colour]]) -> None:
    """Write names beside the right edge, at the heights of what they name."""
    low, high = axes.get_ylim()
    heights = style.apart([(value - low) / (high - low) for _, value, _ in names], 0.065)
    for (name, value, colour), height in zip(names, heights, strict=True):
        axes.annotate(
            name,
            (1, value),
            xycoords=axes.get_yaxis_transform(),
            xytext=(1.02, height),
            textcoords="axes fraction",
            color=colour,
            va="center",
            fontsize=sized(8.5),
        )


def _sizes(points: Sequence[Point]) -> str:
    sizes = [text.size(point) for point in points]
    named = ", ".join(sizes) if len(sizes) <= 4 else f"{sizes[0]} … {sizes[-1]}"
    return f"{named} rank{'' if sizes == ['1'] else 's'}"
