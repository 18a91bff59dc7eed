"""How figures look: one palette, one set of sizes, the same bytes for the same run everywhere."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from pscale.report import forms
from pscale.report.look import PAPER, SCREEN, TITLE, Look, current, looking, narrow, room
from pscale.report.text import clean

INK, QUIET, GRID, BAD = "#222222", "#767676", "#e6e6e6", "#a11d33"
FAINT = (0.8, 0.8, 0.8)
Colour = tuple[float, float, float]

_OWN: dict[str, Any] = {
    "figure.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "ytick.major.size": 0,
    "ytick.left": True,
    "legend.frameon": False,
    "text.parse_math": False,  # labels are a suite's text
    "svg.fonttype": "path",
    "svg.hashsalt": "pscale",
    "pdf.fonttype": 42,
    "savefig.facecolor": "white",
}
_SIZES = {  # points on a screen
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.8,
    "legend.title_fontsize": 9.6,
    "figure.titlesize": 11,
    "axes.titlepad": 8,
    "grid.linewidth": 0.8,
    "xtick.major.size": 3,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
}
_DPI = 160
_W_PAD, _H_PAD = 0.11, 0.08  # inches that the layout keeps free around all
_MARGIN = 0.02  # inches that are left of it on a page


@contextmanager
def styled(look: Look = SCREEN) -> Iterator[None]:
    """Apply the style to figures made inside the block, and to nothing else."""
    settings: Any = {**sns.axes_style("ticks"), **sns.plotting_context("paper"), **_OWN}
    settings |= {name: look.scale * size for name, size in _SIZES.items()}
    with mpl.rc_context({**settings, "font.family": [look.family]}), looking(look):
        yield


def canvas(width: float, height: float, title: str) -> Figure:
    """Return an empty figure, in inches; it belongs to no window and needs no closing."""
    look = current()
    lines = wrapped(title, int(11 * width)) if look.titled else ""
    above = 0.2 * (1 + lines.count("\n")) if lines else 0.0
    size = look.width or width, look.scale * height + above
    figure = Figure(figsize=size, layout="constrained")
    pads = {"wspace": 0.05, "w_pad": _W_PAD * look.scale, "h_pad": _H_PAD * look.scale}
    figure.get_layout_engine().set(**pads)  # type: ignore[union-attr]
    if lines:
        figure.suptitle(lines, x=0.012, ha="left", gid=TITLE)
    return figure


def describe(axes: Axes, words: str) -> None:
    """Put words above the only picture of a kind; they go into the caption of a figure without title."""
    if current().titled:
        axes.set_title(words)


def below(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """Put the legend under a figure, in as many lines as it needs."""
    columns = min(len(names), 4) if narrow() else len(names)
    spacing = {"columnspacing": 1.0, "handlelength": 1.2} if narrow() else {}
    figure.legend(handles, names, loc="outside lower center", ncols=columns, **spacing)


def wrapped(label: str, width: int, most: int = 2) -> str:
    """Break a label into at most `most` lines of `width` characters, fewer where a figure is narrow."""
    width = room(width)
    lines = textwrap.wrap(clean(label), width)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: width - 2].rstrip() + " …"]
    return "\n".join(lines)


def distinct(count: int) -> list[Colour]:
    """Return colours for things without order; told apart with any colour vision up to eight."""
    palette = sns.color_palette("colorblind", 10)
    chosen = [palette[place] for place in (0, 3, 2, 4, 1, 9, 7, 6)]
    return [chosen[place % len(chosen)] for place in range(count)]


def ordered(count: int) -> list[Colour]:
    """Return colours for things with an order, from light to dark."""
    return list(sns.color_palette("viridis_r", count + 2)[1 : count + 1])


def shades(colour: str, count: int) -> list[Colour]:
    """Return shades of one colour, dark to light."""
    if count < 2:
        return [to_rgb(colour)] * count
    through = sns.blend_palette(["black", colour, "white"], 101)
    darkest, lightest = (44, 74) if count == 2 else (34, 84)
    return [through[round(place)] for place in np.linspace(darkest, lightest, count)]


def apart(wanted: Sequence[float], gap: float) -> list[float]:
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


@dataclass(frozen=True)
class Placed:
    """A figure laid out, once for all formats; as SVG it is drawn once too, in the style that is applied."""

    figure: Figure

    def save(self, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
        """Write it in every format, each under a temporary name first; returns the paths."""
        written = []
        for kind in formats:
            path, temporary = folder / f"{name}.{kind}", folder / f".{name}.{kind}.tmp"
            if kind == "svg":
                temporary.write_text(forms.for_file(self._svg), encoding="utf-8")
            else:
                with _any_letters():
                    self.figure.savefig(temporary, format=kind, dpi=_DPI, metadata=_METADATA[kind])
            os.replace(temporary, path)  # noqa: PTH105 - atomic, also over an older figure
            written.append(path)
        return written

    def inline(self) -> str:
        """Return it as SVG for a page, which says its title itself: text as text."""
        width, height = self.figure.get_size_inches()
        with _any_letters():
            titles = [text.get_window_extent() for text in self.figure.texts if text.get_gid() == TITLE]
        above = max((height - title.y0 / self.figure.dpi + _H_PAD for title in titles), default=0.0)
        left, top, below = _W_PAD - _MARGIN, above + _H_PAD - _MARGIN, _H_PAD - _MARGIN
        return forms.for_page(
            self._svg, [72 * size for size in (left, top, width - 2 * left, height - top - below)]
        )

    @cached_property
    def _svg(self) -> str:
        with _any_letters():
            return forms.drawn(self.figure, _DPI, _METADATA["svg"])


def place(figure: Figure) -> Placed:
    """Lay a figure out; letters that its font lacks are drawn as boxes."""
    with _any_letters():
        figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    figure.set_layout_engine(None)  # with any other, even "none", saving draws once more
    for number, axes in enumerate(figure.axes):  # the last digits depend on where in memory things lie
        left, bottom, width, height = (round(float(part), 6) for part in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
        axes.patch.set_gid(f"{PAPER}-{number}")
    figure.patch.set_gid(PAPER)
    return Placed(figure)


@contextmanager
def _any_letters() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
