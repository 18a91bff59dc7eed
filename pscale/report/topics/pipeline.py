"""How pipelines ran: bubbles, and the timelines of traced cases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from pscale.analysis.frames import records
from pscale.analysis.ranking import waits_for_stages
from pscale.analysis.summary import Summary
from pscale.analysis.timeline import INSIDE, PARTS, Span, Timeline
from pscale.report import text
from pscale.report.blocks import MOST_ROWS, Block, Context
from pscale.report.figure_style import DELAY, INK, KINDS, Colour, narrow, sized, wrapped
from pscale.report.table import Column, Table, Written, listed, table_of
from pscale.report.topics.topic import Topic, TopicFigure, case_column, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _HEAD, _AXIS, _LEGEND = 0.25, 0.42, 0.42, 0.3  # inches
_LEAST_ROW = 0.11
_ROOM = 16  # rows of ordinary height; more are drawn narrower
_INCHES = 8.1  # of the axis, for the width of labels
_PER_DIGIT = 0.085  # inches
_HALF, _LINE = 0.42, 0.16  # of a row
_NAMED = 0.002  # of the longest step: what takes less of a rank is not in the legend
_VECTORS = 6000  # pieces; more become a picture inside the drawing
_INSIDE = {"wait": KINDS["wait"], "exchange": KINDS["transfer"], "injected": DELAY}
_WORDS = {
    "input": "backward",
    "weight": "weight gradients, deferred",
    "exchange": "in a call (transfer)",
    "injected": "injected delay",
}


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """The idle time of the stages of one case, as a share of the step: a mean over ranks.

    Predicted: by the schedule's timing, in which parts cost what they multiply and messages nothing.
    Measured: wait in calls between stages.
    """

    case: str
    schedule: str
    stages: int
    chunks: int  # parts of the model on a stage
    micro_batches: int
    predicted: float | None
    measured: float


def bubbles(summary: Summary) -> Sequence[Bubble]:
    """Return the bubble of every measured case that has stages."""
    if summary.source is None:
        return ()
    cases, step_s = summary.source.cases, {time.case: time.step_s for time in summary.phases}
    waits = waits_for_stages(summary.calls)
    good = cases[(cases["status"] == "ok") & (cases["pp"] > 1)].drop_duplicates("case")
    names = ["case", "schedule", "pp", "virtual_stages", "micro_batches", "predicted_bubble"]
    rows = {row["case"]: row for row in records(good[names])}
    return [
        Bubble(
            case=case,
            schedule=str(rows[case]["schedule"]),
            stages=int(rows[case]["pp"]),
            chunks=int(rows[case]["virtual_stages"]),
            micro_batches=int(rows[case]["micro_batches"]),
            predicted=rows[case]["predicted_bubble"],
            measured=waits.get(case, 0.0) / step_s[case],
        )
        for case in summary.labels
        if case in rows and case in step_s
    ]


def tables(summary: Summary) -> Iterator[Table]:
    """Yield the idle time of pipelines, predicted and measured."""

    def stages(each: Bubble) -> Written:
        return Written(each.stages, f"{each.stages}" + (f" × {each.chunks}" if each.chunks > 1 else ""))

    columns = (
        case_column(summary),
        Column("stages", str, get=stages),
        Column("micro-batches", str, get="micro_batches"),
        Column("predicted", text.percent_1, get="predicted"),
        Column("measured", text.percent_1, get="measured"),
    )
    return listed(
        "Bubbles of pipelines (share of the step, mean over ranks)",
        bubbles(summary),
        columns,
        caption="predicted: the schedule's timing, where parts cost what they multiply; "
        "measured: wait for other stages",
    )


def _blocks(context: Context) -> Sequence[Block]:
    """Return timelines, then bubbles predicted and measured."""
    ranks = context.listings(_by_rank(context.summary), "timeline-ranks", "timeline", most=MOST_ROWS)
    drawn = picture(context, TOPIC.figure, ranks)
    return [*drawn, *context.listings(tables(context.summary), "bubbles", "bubbles")]


def _by_rank(summary: Summary) -> Iterator[Table]:
    """Yield how long each rank of the drawn steps did what."""
    lengths: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for each in summary.timelines:
        for span in each.spans:
            lengths[each.case, span.rank, span.kind] += span.stop_s - span.start_s
    kinds = [kind for kind in _kinds(summary.timelines) if any(kind == found for *_, found in lengths)]

    def time_s(kind: str) -> Callable[[tuple[Timeline, int]], float]:
        return lambda row: lengths.get((row[0].case, row[1], kind), 0.0)

    columns = (
        Column("case", fold=True, get=lambda row: summary.labels[row[0].case]),
        Column("rank", str, get=lambda row: row[1]),
        *(Column(kind, text.duration_3, get=time_s(kind)) for kind in kinds),
        Column("waits", text.percent_1, get=lambda row: time_s("wait")(row) / row[0].length_s),
    )
    return listed(
        "What every rank did in these steps",
        [(each, rank) for each in summary.timelines for rank in each.ranks],
        columns,
        caption="Wait and exchange lie in the parts before them. Waits: share of the step.",
    )


def _data(summary: Summary) -> Mapping[str, Table]:
    spans = (
        (each.case, summary.labels[each.case], each.repeat, each.step, *asdict(span).values())
        for each in summary.timelines
        for span in each.spans
    )
    names = ("case", "label", "repeat", "step", *(field.name for field in fields(Span)))
    return {
        "bubbles": table_of(bubbles(summary), Bubble, summary.labels),
        "timeline": Table.of(spans, *names),
    }


def figure(summary: Summary) -> Figure | None:
    """Draw the steps that were chosen of traced cases; None where nothing was traced."""
    drawn = summary.timelines
    titles = [_title(summary, each) for each in drawn]
    return draw_steps(drawn, titles, text.heading(summary)) if drawn else None


def draw_steps(drawn: Sequence[Timeline], titles: Sequence[str], heading: str) -> Figure:
    """Draw steps below each other, a row a rank."""
    from pscale.report import drawing

    heights = [_HEAD + _row_height(each) * len(each.ranks) for each in drawn]
    figure = drawing.canvas(9.2, sum(heights) + _AXIS + _LEGEND, heading)
    panels = figure.subplots(len(drawn), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, each, title in zip(panels, drawn, titles, strict=True):
        _draw(axes, each, max(other.length_s for other in drawn))
        axes.set_title(wrapped(title, 120, most=2 if narrow() else 1), fontsize=sized(9))
    panels[-1].set_xlim(0, max(each.length_s for each in drawn))
    panels[-1].set_xlabel("time since the step began")
    panels[-1].locator_params(axis="x", nbins=8)
    panels[-1].xaxis.set_major_formatter(lambda value, _: text.duration_3(value))
    _legend(figure, drawn)
    return figure


def _row_height(each: Timeline) -> float:
    return max(_LEAST_ROW, min(_ROW, _ROW * _ROOM / len(each.ranks)))


def _title(summary: Summary, each: Timeline) -> str:
    if narrow():
        return summary.point(each.case).label
    launch = f"launch {each.repeat + 1}, step {each.step}: {text.duration_3(each.length_s)}"
    some = f", {len(each.ranks)} of {each.of_ranks} ranks" if len(each.ranks) < each.of_ranks else ""
    return f"{summary.point(each.case).label}, {launch}{some}"


def _draw(axes: Axes, each: Timeline, longest_s: float) -> None:
    rows = {rank: row for row, rank in enumerate(each.ranks)}
    pieces: defaultdict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in each.spans:
        pieces[span.kind, span.rank].append(span)
    for kind in _kinds([each]):
        for rank, row in rows.items():
            _bars(axes, row, pieces[kind, rank], each)
    if len({span.micro for span in each.spans} - {None}) > 1 and _row_height(each) == _ROW:
        _number(axes, rows, each, longest_s)
    every = -(-len(each.ranks) // _ROOM)
    axes.set_yticks(list(rows.values())[::every], [f"rank {rank}" for rank in each.ranks[::every]])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _bars(axes: Axes, row: int, spans: Sequence[Span], each: Timeline) -> None:
    """Draw pieces of one kind; calls hide the part that they lie in, a delay underlines it."""
    if not spans:
        return
    inside = spans[0].kind in INSIDE
    underlines = spans[0].kind == "injected"
    axes.broken_barh(
        [(span.start_s, span.stop_s - span.start_s) for span in spans],
        (row + _HALF - _LINE, _LINE) if underlines else (row - _HALF, 2 * _HALF),
        facecolors=[_colour(span, each) for span in spans],
        edgecolor="white",
        linewidth=0.0 if inside else 0.4,
        rasterized=len(each.spans) > _VECTORS,
    )


def _colour(span: Span, each: Timeline) -> Colour | str:
    from pscale.report import drawing

    if span.kind in INSIDE:
        return _INSIDE[span.kind]
    if span.kind not in PARTS:
        return _of_part(span.kind, [each])
    return drawing.shade("compute", span.kind, span.part // each.stages, each.chunks)


def _kinds(drawn: Sequence[Timeline]) -> Sequence[str]:
    """Return all kinds of spans in the order in which they are drawn; a program has phases of its own."""
    own = sorted({span.kind for each in drawn for span in each.spans} - {*PARTS, *INSIDE})
    return (*PARTS, *own, *INSIDE)


def _of_part(kind: str, drawn: Sequence[Timeline]) -> Colour:
    """Return the colour of a part; phases of a program have colours of their own."""
    from pscale.report import drawing

    if kind in PARTS:
        return drawing.shade("compute", kind)
    own = [each for each in _kinds(drawn) if each not in (*PARTS, *INSIDE)]
    return drawing.distinct(len(own))[own.index(kind)]


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
            ink = "white" if span.part < each.stages and span.kind == "forward" else INK
            axes.text(*place, str(span.micro), ha="center", va="center", fontsize=sized(7), color=ink)


def _longest_busy(span: Span, waits: Iterable[Span]) -> tuple[float, float]:
    """Return the longest stretch of a part in which its rank does not wait."""
    best, since = (span.start_s,) * 2, span.start_s
    within = [wait for wait in waits if span.start_s <= wait.start_s < span.stop_s]
    for begins, ends in [*((wait.start_s, wait.stop_s) for wait in within), (span.stop_s, span.stop_s)]:
        best = max(best, (since, begins), key=lambda found: found[1] - found[0])
        since = ends
    return best


def _legend(figure: Figure, drawn: Sequence[Timeline]) -> None:
    """Name what can be seen, in the order in which a step does it."""
    from pscale.report import drawing

    longest_s = max(each.length_s for each in drawn)
    times: defaultdict[str, float] = defaultdict(float)
    for each in drawn:
        for span in each.spans:
            times[span.kind] += (span.stop_s - span.start_s) / longest_s / len(each.ranks)
    named = {
        _WORDS.get(kind, kind): _INSIDE[kind] if kind in INSIDE else _of_part(kind, drawn)
        for kind in _kinds(drawn)
        if times[kind] > _NAMED
    }
    drawing.below(figure, named)


def _has_stages(summary: Summary) -> bool:
    return bool(bubbles(summary))


TOPIC = Topic(
    name="pipeline",
    title=lambda summary: "Pipeline" if _has_stages(summary) else "Timeline",
    lead=lambda summary: (
        "A stage is idle until the stage before it has sent: that is the bubble. More "
        "micro-batches make it smaller."
        if _has_stages(summary)
        else "One step as it was recorded."
    ),
    tables=tables,
    data=_data,
    computed=("bubbles",),
    figure=TopicFigure(
        name="timeline",
        title="Timeline as it ran",
        description="A row a rank, time to the right: what each rank did when, and where it was idle.",
        draw=figure,
    ),
    blocks=_blocks,
)
