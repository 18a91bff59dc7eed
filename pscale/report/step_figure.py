"""Traced steps as a picture: of each rank what it does, and below it the communication that is under way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pscale.analysis.timeline import Event, Step, action, rows_of_events, under_way
from pscale.report import drawing, text
from pscale.report.figure_style import DELAY, INK, KINDS, PHASES, QUIET, sized

_ROW, _HEAD, _AXIS, _LEGEND = 0.4, 0.5, 0.42, 0.3  # inches
_WIDTH, _INCHES = 9.2, 8.1  # of the figure, and of its axis
_DOING, _UNDER_WAY = (-0.42, 0.52), (0.14, 0.2)  # of a row: from where, and how high
_PER_LETTER, _PER_DIGIT = 0.058, 0.085  # inches
_VISIBLE = 1 / 500  # of the longest step: what is shorter is not in the legend
_IN_CALLS = ("call", "root", "completed")
_COLOURS = PHASES | KINDS | {"injected": DELAY}
_PARTS = {*PHASES, "compute"}  # which follow one another; all others lie in them
_ORDER = (
    "compute",
    "data",
    "forward",
    "backward",
    "weight",
    "sync",
    "update",
    "transfer",
    "wait",
    "copy",
    "offload",
    "injected",
)
_WORDS = {
    "weight": "weight gradients, deferred",
    "transfer": "transfer; below: under way",
    "injected": "injected delay",
}


class Piece(NamedTuple):
    """What a rank does, or what is under way, in ns since the step began."""

    kind: str
    start: int
    stop: int
    name: str = ""


def figure(steps: Sequence[Step], title: str) -> Figure:
    """Draw steps below each other, on one scale of time."""
    heights = [_HEAD + _ROW * len(step.ranks) for step in steps]
    figure = drawing.canvas(_WIDTH, sum(heights) + _AXIS + _LEGEND, title)
    panels = figure.subplots(len(steps), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    longest, seen = max(step.length for step in steps), set[str]()
    for axes, step in zip(panels, steps, strict=True):
        seen |= _draw(axes, step, longest)
    panels[-1].set_xlim(0, longest)
    panels[-1].set_xlabel("time since the step began")
    panels[-1].xaxis.set_major_formatter(lambda value, _: text.duration_3(value * 1e-9))
    drawing.below(figure, {_WORDS.get(kind, kind): _COLOURS[kind] for kind in _ORDER if kind in seen})
    return figure


def _draw(axes: Axes, step: Step, longest: int) -> set[str]:
    """Draw a step; returns what kinds of pieces it has."""
    doing = {rank: list(_doing(rows)) for rank, rows in step.ranks.items()}
    all_ = [piece for pieces in doing.values() for piece in pieces]
    for row, (rank, rows) in enumerate(step.ranks.items()):
        _bars(axes, row, _DOING, doing[rank])
        _number(axes, row, doing[rank], longest)
        calls = list(_calls(rows))
        all_ += calls
        _bars(axes, row, _UNDER_WAY, calls)
        if row == 0:
            _name(axes, calls, longest)
    axes.set_title(f"{text.clean(step.title)}: {_shares(step, doing)}", fontsize=sized(9), pad=sized(13))
    middle = _DOING[0] + _DOING[1] / 2
    axes.set_yticks([row + middle for row in range(len(doing))], [f"rank {rank}" for rank in doing])
    axes.set_ylim(len(doing) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    return {piece.kind for piece in all_ if piece.stop - piece.start > _VISIBLE * longest}


def _doing(rows: pd.DataFrame) -> Iterator[Piece]:
    """Yield what the rank does: phases, then what lies in them."""
    found = [piece for event in rows_of_events(rows) for piece in _pieces(event)]
    yield from sorted(found, key=lambda piece: piece.kind not in _PARTS)


def _pieces(event: Event) -> Iterator[Piece]:
    over = event.enter + event.wait
    if event.kind == "phase":
        kind, micro, _ = action(event.label)
        if event.phase not in PHASES:  # of a program of its own
            yield Piece("compute", event.enter, event.leave)
            return
        kind = kind if kind in _ORDER else event.phase
        yield Piece(kind, event.enter, event.leave, "" if micro is None else str(micro))
    elif event.kind in _IN_CALLS:
        yield Piece("transfer", over, event.leave)
        yield Piece("wait", event.enter, over)
    elif event.kind in ("copied", "io_waited", "injected"):
        kind = {"copied": "copy", "io_waited": "offload"}.get(event.kind, event.kind)
        yield Piece(kind, event.enter, event.leave)


def _calls(rows: pd.DataFrame) -> Iterator[Piece]:
    """Yield the calls of a rank from start to completion, and what is read from and written to files."""
    for event in rows_of_events(under_way(rows)):
        yield Piece("transfer", event.enter, event.leave, f"{event.verb} {event.axis}")
    for event in rows_of_events(rows[rows["kind"].isin(("call", "root", "io_done"))]):
        kind = "offload" if event.kind == "io_done" else "transfer"
        yield Piece(kind, event.enter, event.leave, f"{event.verb} {event.axis}".strip())


def _bars(axes: Axes, row: int, place: tuple[float, float], pieces: Sequence[Piece]) -> None:
    low, height = place
    for inside in (False, True):
        shown = [piece for piece in pieces if (piece.kind not in _PARTS) == inside]
        axes.broken_barh(
            [(piece.start, piece.stop - piece.start) for piece in shown],
            (row + low, height),
            facecolors=[_COLOURS[piece.kind] for piece in shown],
            edgecolor="white",
            linewidth=0.0 if inside else 0.4,
        )


def _number(axes: Axes, row: int, pieces: Sequence[Piece], longest: int) -> None:
    """Write micro-batches on their parts, behind waits, if there are several."""
    numbered = [piece for piece in pieces if piece.name and piece.kind != "data"]
    if len({piece.name for piece in numbered}) < 2:
        return
    over = [piece.stop for piece in pieces if piece.kind == "wait"]
    for piece in numbered:
        start = max([piece.start, *(end for end in over if piece.start < end < piece.stop)])
        if (piece.stop - start) / longest * _INCHES > _PER_DIGIT * len(piece.name):
            place = (start + piece.stop) / 2, row + _DOING[0] + _DOING[1] / 2
            ink = "white" if piece.kind == "forward" else INK
            axes.text(*place, piece.name, ha="center", va="center", fontsize=sized(7), color=ink)


def _name(axes: Axes, calls: Sequence[Piece], longest: int) -> None:
    """Write above the first rank what its calls are, once for neighbours that are the same."""
    per_inch, free = longest / _INCHES, 0.0
    for name, start, stop in _groups(sorted(calls, key=lambda call: call.start), per_inch):
        room = len(name) * _PER_LETTER * per_inch
        left = max(0, min((start + stop - room) / 2, longest - room))
        if left >= free:
            axes.text(left, -0.5, name, va="bottom", fontsize=sized(7), color=QUIET)
            free = left + room + 0.1 * per_inch


def _groups(calls: Sequence[Piece], per_inch: float) -> Iterator[tuple[str, int, int]]:
    """Yield the name, start and end of runs of calls of one name with little between them."""
    runs: list[list[Piece]] = []
    for call in calls:
        if runs and runs[-1][-1].name == call.name and call.start - runs[-1][-1].stop < per_inch:
            runs[-1].append(call)
        else:
            runs.append([call])
    for run in runs:
        times = f"{len(run)} × " if len(run) > 1 else ""
        yield times + run[0].name.replace("_", "-"), run[0].start, max(call.stop for call in run)


def _shares(step: Step, doing: Mapping[int, Sequence[Piece]]) -> str:
    """Say how long the step took, and what share of it ranks spent on what, as a mean."""
    spent: defaultdict[str, int] = defaultdict(int)
    for pieces in doing.values():
        for piece in pieces:
            if piece.kind not in _PARTS:
                spent[piece.kind] += piece.stop - piece.start
    whole = step.length * len(doing)
    lost = [f"{kind} {text.percent(time / whole)}" for kind, time in spent.items() if time / whole >= 0.005]
    return ", ".join([text.duration_3(step.length * 1e-9), *lost])
