"""Figures with Matplotlib: one palette, one set of sizes, the same bytes for the same run everywhere."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from pscale.analysis import text
from pscale.analysis.columns import Row
from pscale.analysis.frames import grouped
from pscale.analysis.timeline import INSIDE, PARTS, Flight, kinds_of
from pscale.report.brief import write_changed
from pscale.report.figure_style import (
    DELAY,
    GRID,
    INK,
    KINDS,
    PAPER,
    PHASES,
    QUIET,
    SCREEN,
    SERIES,
    TITLE,
    Colour,
    FigureStyle,
    current,
    mark,
    narrow,
    of_phases,
    sized,
    spread,
    using,
    with_titles,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Print no warnings of a library: Matplotlib complains of a home that it cannot write."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


with (
    _quiet("matplotlib"),
    chdir(Path(__file__).parent),
):  # when it is imported, Matplotlib reads the current folder's matplotlibrc
    import matplotlib as mpl

    sys.modules.setdefault("scipy", None)  # type: ignore[arg-type]  # seaborn would import it, for a second
    import seaborn as sns

    if not sys.modules["scipy"]:
        del sys.modules["scipy"]
    from matplotlib.axes import Axes
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import Patch
    from matplotlib.textpath import text_to_path

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
    "svg.fonttype": "none",
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
_BAR, _BAR_AXIS = 0.29, 1.0  # inches: a bar with its gap, the axis and what is below
_LONG = 0.09  # of a bar: what shorter parts are labelled with would not fit
_REACH = 1.1  # of the longest bar: up to there intervals are drawn
BESIDE: dict[str, Any] = {"marker": "D", "color": INK, "linestyle": "none", "markersize": 4.5}
_LIGHT = 1.5  # of red, green and blue together: a colour to write on in ink
_DARKNESS = {"update": 0.3, "forward": 0.15, "backward": -0.2, "data": -0.5}  # of a kind, by phase
_LIGHTEST = 0.55  # share of white in the last chunk's colour
_LINE, _BESIDE = 115, 6  # characters of a legend, of which a colour with its gaps takes some
_W_PAD, _H_PAD = 0.11, 0.08  # inches that the layout keeps free around all
_MARGIN = 0.02  # inches that are left of it on a page
_TEXT = re.compile(r"<text\b.*?</text>", re.DOTALL)
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_VIEW = re.compile(r'viewBox="[^"]*"')
_ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}  # of a text: the part of it before its place
_COMMANDS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}  # of SVG, by the codes of Matplotlib's paths


@contextmanager
def styled(style: FigureStyle = SCREEN) -> Iterator[None]:
    """Apply the style to figures made inside the block, and to nothing else."""
    defaults = ((name, value) for name, value in mpl.rcParamsDefault.items() if name != "backend")
    settings: Any = {name: value for name, value in defaults if mpl.rcParams[name] != value}
    settings |= {**sns.axes_style("ticks"), **sns.plotting_context("paper"), **_OWN}
    settings |= {name: style.scale * size for name, size in _SIZES.items()}
    with mpl.rc_context({**settings, "font.family": [style.family]}), using(style):
        yield


def canvas(width: float, height: float, title: str) -> Figure:
    """Return an empty figure, in inches; it belongs to no window and needs no closing."""
    style = current()
    lines = wrapped(title, int(11 * width)) if style.titled else ""
    above = 0.2 * (1 + lines.count("\n")) if lines else 0.0
    size = style.width or width, style.scale * height + above
    figure = Figure(figsize=size, layout="constrained")
    pads = {"wspace": 0.05, "w_pad": _W_PAD * style.scale, "h_pad": _H_PAD * style.scale}
    figure.get_layout_engine().set(**pads)  # type: ignore[union-attr]
    if lines:
        figure.suptitle(lines, x=0.012, ha="left", gid=TITLE)
    return figure


def below(figure: Figure, named: Mapping[str, Colour | str], *others: tuple[Any, str]) -> None:
    """Put the legend under a figure, in as many lines as it needs; `others` are handles with names."""
    handles = [Patch(color=colour) for colour in named.values()] + [handle for handle, _ in others]
    names = [*named, *(name for _, name in others)]
    lines = 1 + (sum(map(len, names)) + _BESIDE * len(names)) // _LINE
    columns = min(len(names), 4) if narrow() else -(-len(names) // lines)
    spacing = {"columnspacing": 1.0, "handlelength": 1.2} if narrow() else {}
    figure.legend(handles, names, loc="outside lower center", ncols=columns, **spacing)


def count_drawn(figure: Figure, drawn: int, total: int, noun: str) -> None:
    """Say under a figure how many of all it shows, unless it shows all."""
    if drawn < total:
        words = f"{drawn:,} of {total:,} {noun} are drawn; the tables have all"
        figure.supxlabel(words, fontsize=sized(8.5), color=QUIET)


# Bars below each other


class Part(NamedTuple):
    """A part of a bar: what the figure says of it under the pointer, and what stands on it if it is long."""

    length: float
    colour: Any
    said: str = ""
    label: str = ""


class Bar(NamedTuple):
    """A row: its name to the left, its parts, and what stands behind them; without parts it is a heading.

    `interval` is that of the whole, pale where it is `open`; `beside` is a value to compare with, in words.
    """

    name: str
    case: str = ""
    parts: Sequence[Part] = ()
    said: str = ""
    interval: tuple[float, float] | None = None
    open: bool = False
    beside: tuple[float, str] | None = None

    @property
    def length(self) -> float:
        """Where the bar or the value beside it ends, whichever is longer."""
        return max(sum(part.length for part in self.parts), self.beside[0] if self.beside else 0.0)


Groups = Sequence[tuple[str, Sequence[Bar]]]


def bar_chart(
    heading: str, *charts: Groups, most: int, noun: str, legend: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """Draw charts of the same bars side by side, with so many inches for a legend above.

    Bars of several groups stand below the name of theirs. Of more than there is room for, the first groups
    are drawn, with the first bars of each and its last.
    """
    rows, total = [_rows(chart, most) for chart in charts], sum(len(bars) for _, bars in charts[0])
    across = 1 if narrow() else len(charts)
    down = len(charts) // across
    height = _BAR * len(rows[0]) + _BAR_AXIS
    figure = canvas(9.2, legend + down * height, heading)
    if legend:
        axes = [*figure.subplots(2, 1, height_ratios=(legend, height))]
    else:
        axes = [*figure.subplots(down, across, sharey=True, squeeze=False).flat]
    for place, (each, bars) in enumerate(zip(axes[bool(legend) :], rows, strict=True)):
        _draw_bars(each, bars, headings=0 if place % across else 88 if across == 1 else 56)
    count_drawn(figure, sum(bool(bar.parts) for bar in rows[0]), total, noun)
    return figure, axes


def _rows(groups: Groups, most: int) -> list[Bar]:
    share = max(2, most // len(groups)) if sum(len(bars) for _, bars in groups) > most else most
    some = [(name, bars if len(bars) <= share else [*bars[: share - 1], bars[-1]]) for name, bars in groups]
    ends = accumulate(len(bars) for _, bars in some)
    kept = [group for group, end in zip(some, ends, strict=True) if end <= most]
    return [bar for name, bars in kept for bar in ([Bar(name)] * (len(groups) > 1) + [*bars])]


def _draw_bars(axes: Axes, bars: Sequence[Bar], headings: int) -> None:
    """Draw bars, the first on top, and headings of so many characters; long intervals end with an arrow."""
    longest = max(bar.length for bar in bars) or 1.0
    reach = max(bar.interval[1] if bar.interval else bar.length for bar in bars)
    reach = max(longest, min(reach, _REACH * longest))
    beside: dict[str, Any] = {"va": "center", "fontsize": sized(8.5)}
    for row, bar in enumerate(bars):
        left, end = 0.0, bar.length
        for part in bar.parts:
            look: dict[str, Any] = {"height": 0.72, "edgecolor": "white", "linewidth": 0.5}
            (drawn,) = axes.barh(row, part.length, left=left, color=part.colour, **look)
            if part.said:
                mark(drawn, part.said, bar.case)
            if part.label and part.length > _LONG * bar.length:
                ink = INK if sum(to_rgb(part.colour)) > _LIGHT else "white"
                middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": sized(8)}
                axes.text(left + part.length / 2, row, part.label, color=ink, **middle)
            left += part.length
        if bar.interval:
            low, end = bar.interval[0], min(bar.interval[1], reach)
            look = {"color": INK, "zorder": 5, "alpha": 0.45 if bar.open else 1.0}
            axes.plot([low, end], [row, row], linewidth=1.4, **look)
            if bar.interval[1] > end:
                axes.plot([end], [row], ">", markersize=4, **look)
        if bar.beside:
            (dot,) = axes.plot(bar.beside[0], row, **BESIDE, zorder=5)
            mark(dot, bar.beside[1], bar.case)
        if bar.said:
            axes.text(max(bar.length, end) + 0.015 * reach, row, bar.said, **beside)
        elif headings and not bar.parts:
            words = wrapped(bar.name, headings, most=1) or "unnamed"
            axes.text(0, row, words, fontweight="bold", va="center")
    named = {row: bar.name for row, bar in enumerate(bars) if bar.parts}
    axes.set_yticks([*named], [wrapped(name, 52 if narrow() else 36) for name in named.values()])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, reach)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def name_ends(
    axes: Axes,
    ends: Mapping[tuple[str, Colour], tuple[float, float]],
    gap: float,
    *,
    x: float = 1.03,
    weight: str = "normal",
) -> None:
    """Write names in their colours to the right of where curves end, at least `gap` of the height apart."""
    through = axes.transScale + axes.transLimits
    heights = spread([float(through.transform(end)[1]) for end in ends.values()], gap)
    for (name, colour), height in zip(ends, heights, strict=True):
        place: dict[str, Any] = {"transform": axes.transAxes, "va": "center", "fontsize": sized(8.5)}
        axes.text(x, height, name, color=colour, fontweight=weight, **place)


def distinct(count: int) -> list[Colour]:
    """Return colours for things without order, up to nine; none of them is that of a kind of time."""
    return [to_rgb(SERIES[place % len(SERIES)]) for place in range(count)]


def ordered(count: int) -> list[Colour]:
    """Return colours for things with an order, from light to dark."""
    return list(sns.color_palette("viridis_r", count + 2)[1 : count + 1])


@cache
def shade(kind: str, phase: str, chunk: int = 0, chunks: int = 1) -> Colour:
    """Return the colour of a kind of time in a phase, lighter for the later of several chunks of a model."""
    if kind == "compute" and phase in PHASES:
        base: Any = PHASES[phase]
    else:
        darkness = _DARKNESS.get(phase, 0.0)
        base = sns.blend_palette([KINDS[kind], "black" if darkness > 0 else "white"], 101)[
            round(100 * abs(darkness))
        ]
    lightness = _LIGHTEST * chunk / max(chunks - 1, 1)
    through: Colour = sns.blend_palette([base, "white"], 101)[round(100 * lightness)]
    return through


@dataclass(frozen=True)
class Placed:
    """A figure laid out, once for all formats; as SVG it is drawn once too, in the style that is applied."""

    figure: Figure

    def save(self, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
        """Write it in every format, unless it is so already; returns the paths."""
        written = []
        for kind in formats:
            with _any_letters():
                if kind == "svg":
                    content: str | bytes = with_titles(_TEXT.sub(_outlines, self._svg))
                else:
                    content = self._saved(kind)
            written.append(write_changed(folder / f"{name}.{kind}", content))
        return written

    def inline(self) -> str:
        """Return it as SVG for a page, which says its title itself: text as text."""
        width, height = self.figure.get_size_inches()
        with _any_letters():
            titles = [words.get_window_extent() for words in self.figure.texts if words.get_gid() == TITLE]
        above = max((height - title.y0 / self.figure.dpi + _H_PAD for title in titles), default=0.0)
        left, top, below = _W_PAD - _MARGIN, above + _H_PAD - _MARGIN, _H_PAD - _MARGIN
        seen = (f"{72 * size:.2f}" for size in (left, top, width - 2 * left, height - top - below))
        return _VIEW.sub(f'viewBox="{" ".join(seen)}"', self._svg, count=1)

    @cached_property
    def _svg(self) -> str:
        """The drawing, with text as text."""
        with _any_letters():
            return _NOT_XML.sub(" ", self._saved("svg").decode())

    def _saved(self, kind: str) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format=kind, dpi=_DPI, metadata=_METADATA[kind])
        return file.getvalue()


def _outlines(found: re.Match[str]) -> str:
    """Return the outlines of a text's letters, which are the same with any font of the reader."""
    element = ET.fromstring(found[0])
    style = dict(part.strip().split(": ", 1) for part in element.attrib["style"].split(";") if part.strip())
    size = float(style["font-size"].removesuffix("px"))
    font = FontProperties(family=mpl.rcParams["font.family"], weight=int(style.get("font-weight", 400)))
    words = element.text or ""
    vertices, codes = text_to_path.get_text_path(font, words)
    width, _, _ = text_to_path.get_text_width_height_descent(words, font, ismath=False)
    width *= text_to_path.FONT_SCALE / font.get_size_in_points()
    points = np.rint(np.asarray(vertices) - (_ANCHORS[style.get("text-anchor", "start")] * width, 0.0))
    drawn = "".join(_segments(points.astype(int).tolist(), list(codes)))
    scale = size / text_to_path.FONT_SCALE
    where = f"translate({element.get('x', 0)} {element.get('y', 0)}) scale({scale:.5g} {-scale:.5g})"
    turned = element.get("transform", "")
    colour = "; ".join(f"{name}: {style[name]}" for name in ("fill", "opacity") if name in style)
    comment = escape(text.clean(words)).replace("--", "- -")  # for those who read the file
    return f'<!-- {comment} -->\n<path transform="{turned} {where}" style="{colour}" d="{drawn}"/>'


def _segments(points: Sequence[Sequence[int]], codes: Sequence[int]) -> Iterator[str]:
    before = 0
    for (across, up), code in zip(points, codes, strict=True):
        command = _COMMANDS[code]
        if command == "Z":
            yield "Z"
        else:
            yield f"{command if code != before or command in 'ML' else ' '}{across} {up}"
        before = code


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


def save(figure: Figure, file: Path) -> None:
    """Write a figure into a file, in the format of its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    place(figure).save(file.parent, file.stem, [file.suffix.removeprefix(".")])


@contextmanager
def _any_letters() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


# Steps as pictures: a row a rank, time to the right

_ROW, _ROW_OF_TWO, _HEAD, _AXIS, _LEGEND = 0.25, 0.4, 0.42, 0.42, 0.3  # inches
_LEAST_ROW = 0.11
_ROOM = 16  # rows of ordinary height; more are drawn narrower
_INCHES = 8.1  # of the axis, for the width of labels
_PER_LETTER, _PER_DIGIT = 0.058, 0.085  # inches
_WHOLE, _DOING, _UNDER_WAY = (-0.42, 0.84), (-0.42, 0.52), (0.14, 0.2)  # of a row: from where, how high
_UNDERLINE = 0.16  # of a row
_NAMED = 0.002  # of a step: what takes less of a rank, as a mean, is not in the legend
_TOLD = 0.005  # of the time of all ranks: less is not in a title
_VECTORS = 6000  # pieces; more become a picture inside the drawing
_INSIDE = {
    "wait": KINDS["wait"],
    "exchange": KINDS["transfer"],
    "copy": KINDS["copy"],
    "offload": KINDS["offload"],
    "injected": DELAY,
}
_WORDS = {
    "input": "backward",
    "weight": "weight gradients, deferred",
    "exchange": "in a call (transfer)",
    "injected": "injected delay",
}


Step = Sequence[Row]  # of the frame `timeline`, all of one step


def draw_steps(
    drawn: Sequence[Step],
    titles: Sequence[str],
    heading: str,
    *,
    flights: Sequence[Sequence[Flight]] = (),
    row: str = "rank",
    across: str = "time since the step began",
    write: Callable[[float], str] = text.duration_3,
) -> Figure:
    """Draw steps below each other, a `row` a rank; `across` is what goes to the right, `write` how much.

    `flights` are those of each step, if they are to be shown.
    """
    full = _ROW_OF_TWO if flights else _ROW
    counts = [len(ranks_of(each)) for each in drawn]
    heights = [_HEAD + count * max(_LEAST_ROW, min(full, full * _ROOM / count)) for count in counts]
    figure = canvas(9.2, sum(heights) + _AXIS + _LEGEND, heading)
    panels = figure.subplots(len(drawn), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    longest_s = max(each[0].length_s for each in drawn)
    for place, (axes, each, title) in enumerate(zip(panels, drawn, titles, strict=True)):
        _draw(axes, each, longest_s, row, flights[place] if flights else None)
        axes.set_title(
            wrapped(text.clean(title), 120, most=2 if narrow() else 1),
            fontsize=sized(9),
            pad=sized(13) if flights else None,
        )
    panels[-1].set_xlim(0, longest_s)
    panels[-1].set_xlabel(across)
    panels[-1].locator_params(axis="x", nbins=8)
    panels[-1].xaxis.set_major_formatter(lambda value, _: write(value))
    _legend(figure, drawn, {**_WORDS, "exchange": "transfer; below: under way"} if flights else _WORDS)
    return figure


def ranks_of(step: Step) -> list[int]:
    """Return the ranks of which a step has spans."""
    return sorted({span.rank for span in step})


def shares(step: Step) -> str:
    """Say how long a step took, and what share of it ranks spent on what beside computing, as a mean."""
    shares = {kind: share for kind, share in _shares(step).items() if kind in INSIDE and share >= _TOLD}
    lost = [f"{'transfer' if kind == 'exchange' else kind} {text.percent_0(shares[kind])}" for kind in shares]
    return ", ".join([text.duration_3(step[0].length_s), *lost])


def _shares(step: Step) -> dict[str, float]:
    """Return the share of the time of all ranks that each kind of span takes."""
    times_s: defaultdict[str, float] = defaultdict(float)
    for span in step:
        times_s[span.kind] += span.stop_s - span.start_s
    whole_s = step[0].length_s * len(ranks_of(step))
    return {kind: time_s / whole_s for kind, time_s in times_s.items()}


def _draw(axes: Axes, step: Step, longest_s: float, name: str, flights: Sequence[Flight] | None) -> None:
    rows = {rank: row for row, rank in enumerate(ranks_of(step))}
    low, height = _WHOLE if flights is None else _DOING
    pieces: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
    for span in step:
        pieces[span.kind, span.rank].append(span)
    for kind in kinds_of(step):
        for rank, row in rows.items():
            _bars(axes, row + low, height, pieces[kind, rank], step)
    if len({span.micro for span in step} - {None}) > 1 and len(rows) <= _ROOM:
        _number(axes, rows, low + height / 2, step, longest_s)
    for rank, row in rows.items() if flights else ():
        mine = [flight for flight in flights or () if flight.rank == rank]
        axes.broken_barh(
            [(flight.start_s, flight.stop_s - flight.start_s) for flight in mine],
            (row + _UNDER_WAY[0], _UNDER_WAY[1]),
            facecolors=[_INSIDE[flight.kind] for flight in mine],
            linewidth=0.0,
        )
        if row == 0:
            _name(axes, mine, longest_s)
    every = -(-len(rows) // _ROOM)
    places = [row + low + height / 2 for row in rows.values()]
    axes.set_yticks(places[::every], [f"{name} {rank}" for rank in [*rows][::every]])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _bars(axes: Axes, low: float, height: float, spans: Sequence[Row], step: Step) -> None:
    """Draw pieces of one kind; calls hide the part that they lie in, a delay underlines it."""
    if not spans:
        return
    inside = spans[0].kind in INSIDE
    underlines = spans[0].kind == "injected"
    axes.broken_barh(
        [(span.start_s, span.stop_s - span.start_s) for span in spans],
        (low + height - _UNDERLINE, _UNDERLINE) if underlines else (low, height),
        facecolors=_colours(spans, step),
        edgecolor="white",
        linewidth=0.0 if inside else 0.4,
        rasterized=len(step) > _VECTORS,
    )


def _colours(spans: Sequence[Row], step: Step) -> list[Colour | str]:
    """Return the colours of spans of one kind: parts of the model on one stage have shades of their own."""
    kind = spans[0].kind
    if kind not in PARTS:
        return [_colour(kind, step)] * len(spans)
    chunks = 1 + max(span.part // span.stages for span in step)
    return [shade("compute", kind, span.part // span.stages, chunks) for span in spans]


def _colour(kind: str, drawn: Sequence[Row]) -> Colour | str:
    """Return the colour of a kind; phases of a program have colours of their own."""
    if kind in INSIDE:
        return _INSIDE[kind]
    if kind in PARTS:
        return shade("compute", kind)
    return of_phases(each for each in kinds_of(drawn) if each not in (*PARTS, *INSIDE))[kind]


def _number(axes: Axes, rows: Mapping[int, int], middle: float, step: Step, longest_s: float) -> None:
    """Write the micro-batch on what is left of its part after the first wait."""
    waits: defaultdict[int, list[Row]] = defaultdict(list)
    for span in step:
        if span.kind == "wait":
            waits[span.rank].append(span)
    for span in step:
        if span.micro is None or span.kind == "data":
            continue
        start_s, stop_s = _longest_busy(span, waits[span.rank])
        if (stop_s - start_s) / longest_s * _INCHES > _PER_DIGIT * len(str(span.micro)):
            place = (start_s + stop_s) / 2, rows[span.rank] + middle
            ink = "white" if span.part < span.stages and span.kind == "forward" else INK
            axes.text(*place, str(span.micro), ha="center", va="center", fontsize=sized(7), color=ink)


def _longest_busy(span: Row, waits: Iterable[Row]) -> tuple[float, float]:
    """Return the longest stretch of a part in which its rank does not wait."""
    best, since = (span.start_s,) * 2, span.start_s
    within = [wait for wait in waits if span.start_s <= wait.start_s < span.stop_s]
    for begins, ends in [*((wait.start_s, wait.stop_s) for wait in within), (span.stop_s, span.stop_s)]:
        best = max(best, (since, begins), key=lambda found: found[1] - found[0])
        since = ends
    return best


def _name(axes: Axes, flights: Sequence[Flight], longest_s: float) -> None:
    """Write above the first row what its calls are, once for neighbours that are the same."""
    per_inch_s, free_s = longest_s / _INCHES, 0.0
    for name, start_s, stop_s in _runs(sorted(flights, key=lambda each: each.start_s), per_inch_s):
        room_s = len(name) * _PER_LETTER * per_inch_s
        left_s = max(0.0, min((start_s + stop_s - room_s) / 2, longest_s - room_s))
        if left_s >= free_s:
            axes.text(left_s, -0.5, name, va="bottom", fontsize=sized(7), color=QUIET)
            free_s = left_s + room_s + 0.1 * per_inch_s


def _runs(flights: Sequence[Flight], per_inch_s: float) -> Iterator[tuple[str, float, float]]:
    """Yield the name, start and end of runs of calls of one name with little between them."""
    starts = [True]
    starts += [
        one.name != other.name or other.start_s - one.stop_s >= per_inch_s for one, other in pairwise(flights)
    ]
    runs = grouped(zip(accumulate(starts), flights, strict=False), lambda each: each[0]).values()
    for run in ([flight for _, flight in members] for members in runs):
        times = f"{len(run)} × " if len(run) > 1 else ""
        yield times + run[0].name.replace("_", "-"), run[0].start_s, max(each.stop_s for each in run)


def _legend(figure: Figure, drawn: Sequence[Step], words: Mapping[str, str]) -> None:
    """Name what can be seen, in the order in which a step does it."""
    spent: Counter[str] = Counter()
    for step in drawn:
        spent.update(_shares(step))
    spans = [*chain.from_iterable(drawn)]
    named = {
        text.clean(words.get(kind, kind)): _colour(kind, spans)
        for kind in kinds_of(spans)
        if spent[kind] > _NAMED * len(drawn)
    }
    below(figure, named)
