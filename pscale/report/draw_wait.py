"""Wait by rank and step of the largest case, as a heat map."""

from __future__ import annotations

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pscale.analysis.summary import Summary
from pscale.report import style, text

_LABELS = 16  # on an axis, at most
_LINED, _VECTORS = 512, 2048  # cells: up to these they are parted by lines, and drawn one by one
_SHADES = 48  # of a cell; with 50 and more matplotlib draws the scale as a picture
_UNITS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def wait(summary: Summary) -> Figure | None:
    """Draw the waits of the summary's map; None without one, or with one rank, which never waits."""
    if summary.wait is None or len(summary.wait.wait_s) < 2:
        return None
    waits = np.array(summary.wait.wait_s)
    kind = text.KINDS["together"] if summary.wait.together else "wait"
    ranks, steps = waits.shape
    _, factor, unit = next(scale for scale in _UNITS if waits.max() >= scale[0])
    figure = style.canvas(9.2, min(6.0, max(2.0, 1.1 + 0.22 * ranks)), summary.title)
    axes = figure.subplots()
    sns.heatmap(
        waits * factor,
        ax=axes,
        vmin=0,
        vmax=waits.max() * factor or 1.0,
        cmap=sns.color_palette("rocket_r", as_cmap=True).resampled(_SHADES),
        linewidths=0.4 if waits.size <= _LINED else 0,
        rasterized=waits.size > _VECTORS,
        cbar_kws={
            "label": f"{kind} ({unit})",
            "pad": 0.015,
            "fraction": 0.05,
            "aspect": 24,
            "ticks": MaxNLocator(5),
        },
    )
    figure.axes[-1].spines[:].set_visible(False)
    _label(axes, ranks, steps)
    name = style.wrapped(summary.point(summary.wait.case).label, 60, most=1)
    hint = "strong cells wait, for a rank whose cells are faint" if waits.any() else "no rank waited"
    style.describe(axes, f"{name}, launch {summary.wait.repeat + 1}: {hint}")
    return figure


def _label(axes: Axes, ranks: int, steps: int) -> None:
    axes.set_xticks(*_ticks(steps), rotation=0)
    axes.set_yticks(*_ticks(ranks), rotation=0)
    axes.set_xlabel("measured step")
    axes.set_ylabel("rank")
    axes.tick_params(length=0)


def _ticks(count: int) -> tuple[list[float], list[str]]:
    """Return the middles and numbers of evenly spread cells."""
    every = next(
        step for step in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, count) if step * _LABELS >= count
    )
    return [place + 0.5 for place in range(0, count, every)], [str(place) for place in range(0, count, every)]
