"""Fitted laws in the figure of efficiency: a dashed line with its band, to four times the largest size."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from pscale.analysis.models import REACH, Model
from pscale.report import style

_MOST = 4  # more bands hide each other
_BAND = 0.15  # opacity


def shown(models: Sequence[Model]) -> list[Model]:
    """Return the models that the figure has room for: all, or none of many."""
    drawn = [model for model in models if any(found.efficiency for found in model.curve)]
    return drawn if len(drawn) <= _MOST else []


def reached(models: Sequence[Model], sizes: Sequence[int]) -> list[int]:
    """Return the sizes in cores, with those between the largest measured and the end of the models."""
    found = set(sizes)
    for model in models:
        largest, step = max(model.sizes) * model.threads, 2
        while step <= REACH:
            found.add(largest * step)
            step *= 2
    return sorted(found)


def model(axes: Axes, law: Model, colour: style.Colour) -> None:
    """Draw one model's efficiency."""
    known = [(found.size * law.threads, found.efficiency) for found in law.curve if found.efficiency]
    sizes = [size for size, _ in known]
    axes.plot(sizes, [value.value for _, value in known], linestyle=(0, (4, 2)), color=colour, linewidth=1.2)
    bounds = [(size, value.low, value.high) for size, value in known if value.low is not None]
    if bounds:
        within, low, high = zip(*bounds, strict=True)
        axes.fill_between(within, low, high, color=colour, alpha=_BAND, linewidth=0)
