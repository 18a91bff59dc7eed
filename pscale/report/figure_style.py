"""How figures look, on a screen or in one column of a journal; without the library that draws them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from pscale.report.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class FigureStyle:
    """Sizes and fonts; `width` is in inches, None where every figure has the width that suits it.

    A figure without title is described where it is printed.
    """

    width: float | None = None
    scale: float = 1.0  # of texts, lines and bars
    family: str = "DejaVu Sans"  # comes with matplotlib: the same widths on every machine
    titled: bool = True


KINDS = {  # colours of the kinds of time, after Okabe and Ito
    "compute": "#0072b2",
    "transfer": "#e69f00",
    "wait": "#b4478a",
    "copy": "#009e73",
    "offload": "#8dd3c7",
    "wait_or_transfer": "#cd7345",  # between wait and transfer
}
PHASES = {  # shades of compute
    "data": "#c4d0dc",
    "forward": "#0b5394",
    "backward": "#58a9d6",
    "input": "#58a9d6",
    "weight": "#a9d5ec",
    "sync": "#7d9db5",
    "update": "#3b4f66",
}
CAUSES = {  # of lost time, beside its kinds
    "threads": "#999933",
    "outside": "#b7a57a",
    "scaling": "#7fc4e8",
    "imbalance": "#6a3d9a",
    "serialisation": KINDS["wait"],
    "bubble": "#d896bb",
    "unaccounted": "#999999",
}
DELAY = "#cc3311"  # injected on purpose
MAP = ("#faebdd", "#f6bb97", "#f4865e", "#ec4a3e", "#ca1a50", "#951c5b", "#601f52", "#2e1739")  # of maps
CLIPPED = 98  # percentile at which the colours of a map end
MEMORY = ("#4b3b2a", "#8c6d46", "#c9a66b", "#5f8a8b", "#a9c5c5")
SERIES = ("#222222", "#c44536", "#00818f", "#8a6d3b", "#7d8a2e", "#5a4fa2", "#8c8c8c", "#d98fa0", "#3f9a5f")


def of_phases(names: Iterable[str]) -> dict[str, str]:
    """Return the colours of compute in phases; those with names of a program's own take theirs in order."""
    own = sorted({*names} - {*PHASES})
    return PHASES | dict(zip(own, cycle((KINDS["compute"], *SERIES[1:])), strict=False))


INK, QUIET, GRID, BAD = "#222222", "#767676", "#e6e6e6", "#a11d33"
FAINT = (0.8, 0.8, 0.8)
Colour = tuple[float, float, float]
PAPER, TITLE = "paper", "title"  # groups of what is behind a figure and above it; a page has its own
SCREEN = FigureStyle()
_COLUMN = 3.5  # inches: IEEE, ACM and Nature have 3.3 to 3.5
STYLES = {
    "screen": SCREEN,
    "publication": FigureStyle(width=_COLUMN, scale=7 / 9, titled=False),
    "publication-serif": FigureStyle(
        width=_COLUMN, scale=7.8 / 9, family="STIXGeneral", titled=False
    ),  # like Times
}
_WIDE = 9.2  # inches: of an ordinary figure
_current: ContextVar[FigureStyle] = ContextVar("figure_style", default=SCREEN)


@contextmanager
def using(style: FigureStyle) -> Iterator[None]:
    """Let figures inside the block have a style."""
    token = _current.set(style)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> FigureStyle:
    """Return the style that figures have now."""
    return _current.get()


def sized(size: float) -> float:
    """Return the size of a text or line that has `size` points on a screen."""
    return size * current().scale


def narrow() -> bool:
    """Tell whether a figure has no room for two panels side by side."""
    return current().width is not None


def room(count: int) -> int:
    """Return how many of `count` characters, or legends side by side, there is room for."""
    width = current().width
    return count if width is None else max(1, round(count * width / (_WIDE * current().scale)))


def describe(axes: Axes, words: str) -> None:
    """Put words above the only picture of a kind; they go into the caption of a figure without title."""
    if current().titled:
        axes.set_title(words)


def wrapped(label: str, width: int, most: int = 2) -> str:
    """Break a label into at most `most` lines of `width` characters, fewer where a figure is narrow."""
    width = room(width)
    lines = textwrap.wrap(clean(label), width)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: width - 2].rstrip() + " …"]
    return "\n".join(lines)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Move heights as little as need be so that neighbours are `gap` apart and, if they fit, in 0 … 1."""
    order = np.argsort(wanted, kind="stable")
    blocks: list[list[float]] = []  # sum of the wanted places less offsets, and count
    for place, index in enumerate(order):
        blocks.append([wanted[index] - place * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    starts = np.repeat([total / count for total, count in blocks], [int(count) for _, count in blocks])
    found = [0.0] * len(wanted)
    for place, index in enumerate(order):
        found[index] = float(starts[place] + place * gap)
    shift = max(0.0, -min(found)) - max(0.0, max(found) - 1) if found else 0.0
    return [place + shift for place in found]
