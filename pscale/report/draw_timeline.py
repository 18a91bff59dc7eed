"""Steps as they really ran: a row for each rank, what it did in colour, where it waited pale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pscale.analysis.summary import Summary
from pscale.analysis.timeline import INSIDE, PARTS, Span, Timeline
from pscale.report import style, text
from pscale.report.draw_schedule import colour
from pscale.report.look import ON_PALE, narrow, sized

_ROW, _HEAD, _AXIS, _LEGEND = 0.25, 0.42, 0.42, 0.3  # inches
_LEAST_ROW = 0.11
_ROOM = 16  # rows of ordinary height; more are drawn narrower
_INCHES = 8.1  # of the axis, for the width of labels
_PER_DIGIT = 0.085  # inches
_HALF, _LINE = 0.42, 0.16  # of a row
_NAMED = 0.002  # of the longest step: what takes less of a rank is not in the legend
_VECTORS = 6000  # pieces; more become a picture inside the drawing
_COLOURS = {
    "data": "#999999",
    "sync": "#56b4e9",
    "update": "#666666",
    "wait": "#f4e6ee",
    "exchange": "#3c3c46",
    "injected": "#cc3311",
}
_WORDS = {
    "input": "backward",
    "weight": "weight gradients, put off",
    "exchange": "in a call (transfer)",
    "injected": "late on purpose",
}


def timeline(summary: Summary) -> Figure | None:
    """Draw the steps that were chosen of traced cases; None where nothing was traced."""
    shown = summary.timelines
    if not shown:
        return None
    heights = [_HEAD + _row_height(each) * len(each.ranks) for each in shown]
    figure = style.canvas(9.2, sum(heights) + _AXIS + _LEGEND, text.heading(summary))
    panels = figure.subplots(len(shown), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, each in zip(panels, shown, strict=True):
        _draw(axes, each, max(other.length_s for other in shown))
        axes.set_title(
            style.wrapped(_title(summary, each), 120, most=2 if narrow() else 1), fontsize=sized(9)
        )
    panels[-1].set_xlim(0, max(each.length_s for each in shown))
    panels[-1].set_xlabel("time since the step began")
    panels[-1].xaxis.set_major_locator(MaxNLocator(8))
    panels[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: text.duration(value, 3)))
    _legend(figure, shown)
    return figure


def _row_height(each: Timeline) -> float:
    return max(_LEAST_ROW, min(_ROW, _ROW * _ROOM / len(each.ranks)))


def _title(summary: Summary, each: Timeline) -> str:
    if narrow():
        return summary.point(each.case).label
    launch = f"launch {each.repeat + 1}, step {each.step}: {text.duration(each.length_s, 3)}"
    some = f", {len(each.ranks)} of {each.of_ranks} ranks" if len(each.ranks) < each.of_ranks else ""
    return f"{summary.point(each.case).label}, {launch}{some}"


def _draw(axes: Axes, each: Timeline, longest_s: float) -> None:
    rows = {rank: row for row, rank in enumerate(each.ranks)}
    pieces: defaultdict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in each.spans:
        pieces[span.kind, span.rank].append(span)
    for kind in (*PARTS, *INSIDE):
        for rank, row in rows.items():
            _bars(axes, row, pieces[kind, rank], each)
    if len({span.micro for span in each.spans} - {None}) > 1 and _row_height(each) == _ROW:
        _number(axes, rows, each, longest_s)
    every = -(-len(each.ranks) // _ROOM)
    axes.set_yticks(list(rows.values())[::every], [f"rank {rank}" for rank in each.ranks[::every]])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _bars(axes: Axes, row: int, spans: Sequence[Span], each: Timeline) -> None:
    """Draw pieces of one kind; waits hide the part that they lie in, the rest underlines it."""
    if not spans:
        return
    inside = spans[0].kind in INSIDE
    underlines = inside and spans[0].kind != "wait"
    axes.broken_barh(
        [(span.start_s, span.stop_s - span.start_s) for span in spans],
        (row + _HALF - _LINE, _LINE) if underlines else (row - _HALF, 2 * _HALF),
        facecolors=[_colour(span, each) for span in spans],
        edgecolor="white",
        linewidth=0.0 if inside else 0.4,
        rasterized=len(each.spans) > _VECTORS,
    )


def _colour(span: Span, each: Timeline) -> style.Colour | str:
    if span.kind in _COLOURS:
        return _COLOURS[span.kind]
    kind = "backward" if span.kind == "input" else span.kind
    return colour(kind, span.part // each.stages, each.chunks)


def _number(axes: Axes, rows: dict[int, int], each: Timeline, longest_s: float) -> None:
    """Write the micro-batch on what is left of its part after the first wait."""
    waits: defaultdict[int, list[Span]] = defaultdict(list)
    for span in each.spans:
        if span.kind == "wait":
            waits[span.rank].append(span)
    for span in each.spans:
        if span.micro is None or span.kind == "data":
            continue
        start_s, stop_s = _longest_busy(span, waits[span.rank])
        if (stop_s - start_s) / longest_s * _INCHES > _PER_DIGIT * len(str(span.micro)):
            place = (start_s + stop_s) / 2, rows[span.rank]
            ink = "white" if span.part < each.stages else style.INK
            label = axes.text(*place, str(span.micro), ha="center", va="center", fontsize=sized(7), color=ink)
            if ink == style.INK:
                label.set_gid(ON_PALE)


def _longest_busy(span: Span, waits: Iterable[Span]) -> tuple[float, float]:
    """Return the longest stretch of a part in which its rank does not wait."""
    best, since = (span.start_s,) * 2, span.start_s
    within = [wait for wait in waits if span.start_s <= wait.start_s < span.stop_s]
    for begins, ends in [*((wait.start_s, wait.stop_s) for wait in within), (span.stop_s, span.stop_s)]:
        best = max(best, (since, begins), key=lambda found: found[1] - found[0])
        since = ends
    return best


def _legend(figure: Figure, shown: Sequence[Timeline]) -> None:
    """Name what can be seen, in the order in which a step does it."""
    longest_s = max(each.length_s for each in shown)
    times: defaultdict[str, float] = defaultdict(float)
    for each in shown:
        for span in each.spans:
            times[span.kind] += (span.stop_s - span.start_s) / longest_s / len(each.ranks)
    named = {
        _WORDS.get(kind, kind): _COLOURS.get(kind) or colour("backward" if kind == "input" else kind, 0, 1)
        for kind in (*PARTS, *INSIDE)
        if times[kind] > _NAMED
    }
    style.below(figure, [Patch(facecolor=shade) for shade in named.values()], list(named))
