"""Steps as pictures: a row a rank, time to the right: what each did when, and where it was idle.

If asked for, what is under way meanwhile is below what a rank does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from pscale.analysis.columns import Row
from pscale.analysis.timeline import INSIDE, PARTS, Flight, kinds_of
from pscale.report import drawing, text
from pscale.report.figure_style import DELAY, INK, KINDS, QUIET, Colour, narrow, of_phases, sized, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _ROW_OF_TWO, _HEAD, _AXIS, _LEGEND = 0.25, 0.4, 0.42, 0.42, 0.3  # inches
_LEAST_ROW = 0.11
_ROOM = 16  # rows of ordinary height; more are drawn narrower
_INCHES = 8.1  # of the axis, for the width of labels
_PER_LETTER, _PER_DIGIT = 0.058, 0.085  # inches
_WHOLE, _DOING, _UNDER_WAY = (-0.42, 0.84), (-0.42, 0.52), (0.14, 0.2)  # of a row: from where, how high
_LINE = 0.16  # of a row
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
    heights = [_HEAD + _height(len(ranks_of(each)), two=bool(flights)) for each in drawn]
    figure = drawing.canvas(9.2, sum(heights) + _AXIS + _LEGEND, heading)
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
    shares: defaultdict[str, float] = defaultdict(float)
    for kind, share in _shares(step).items():
        if kind in INSIDE:
            shares["transfer" if kind == "exchange" else kind] += share
    lost = [f"{kind} {text.percent(share)}" for kind, share in shares.items() if share >= _TOLD]
    return ", ".join([text.duration_3(step[0].length_s), *lost])


def _shares(step: Step) -> dict[str, float]:
    """Return the share of the time of all ranks that each kind of span takes."""
    times_s: defaultdict[str, float] = defaultdict(float)
    for span in step:
        times_s[span.kind] += span.stop_s - span.start_s
    whole_s = step[0].length_s * len(ranks_of(step))
    return {kind: time_s / whole_s for kind, time_s in times_s.items()}


def _height(ranks: int, *, two: bool) -> float:
    full = _ROW_OF_TWO if two else _ROW
    return ranks * max(_LEAST_ROW, min(full, full * _ROOM / ranks))


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
        (low + height - _LINE, _LINE) if underlines else (low, height),
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
    return [drawing.shade("compute", kind, span.part // span.stages, chunks) for span in spans]


def _colour(kind: str, drawn: Sequence[Row]) -> Colour | str:
    """Return the colour of a kind; phases of a program have colours of their own."""
    if kind in INSIDE:
        return _INSIDE[kind]
    if kind in PARTS:
        return drawing.shade("compute", kind)
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
    runs: list[list[Flight]] = []
    for each in flights:
        if runs and runs[-1][-1].name == each.name and each.start_s - runs[-1][-1].stop_s < per_inch_s:
            runs[-1].append(each)
        else:
            runs.append([each])
    for run in runs:
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
    drawing.below(figure, named)
