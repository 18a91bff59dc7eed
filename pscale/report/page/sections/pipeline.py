"""How pipelines ran: bubbles, and the timelines of traced cases."""

from __future__ import annotations

from pscale.analysis.timeline import INSIDE, PARTS, Span, Timeline
from pscale.report import grids_plans, text
from pscale.report.page.blocks import Block, Head, Line, Section, Sheet
from pscale.report.page.cells import count, line, seconds, share, words
from pscale.report.page.context import Context
from pscale.report.page.sheets import MOST_ROWS, sheets

TIMELINES = {  # figures of this section, with what they show
    "timeline": (
        "Timeline as it ran",
        "A row a rank, time to the right: what each rank did when, and where it was idle.",
    ),
}


def pipeline(context: Context) -> Section | None:
    """Return timelines, then bubbles predicted and measured."""
    blocks: list[Block] = []
    for name, (title, says) in TIMELINES.items():
        blocks += context.pictures(name, title, says, _table(context))
    stages = sheets(grids_plans.bubbles(context.summary), "bubbles", files=context.files("bubbles"))
    blocks += stages
    if not blocks:
        return None
    if not stages:
        return Section(name="pipeline", title="Timeline", lead="One step as it was recorded.", blocks=blocks)
    return Section(
        name="pipeline",
        title="Pipeline",
        lead="A stage is idle until the stage before it has sent: that is the bubble. More micro-batches "
        "make it smaller.",
        blocks=blocks,
    )


def _table(context: Context) -> Sheet:
    """Return how long each rank of the drawn steps did what."""
    summary = context.summary
    kinds = [
        kind
        for kind in (*PARTS, *INSIDE)
        if any(span.kind == kind for each in summary.timelines for span in each.spans)
    ]
    heads = (
        *(
            Head(text="case", right=False, words=True),
            Head(text="rank"),
            *(Head(text=kind) for kind in kinds),
        ),
        Head(text="waits"),
    )
    rows = [
        _row(text.label(summary.point(each.case)), each, rank, kinds)
        for each in summary.timelines
        for rank in each.ranks
    ]
    return Sheet(
        name="timeline-ranks",
        title="What every rank did in these steps",
        heads=heads,
        rows=tuple(rows[:MOST_ROWS]),
        caption="Wait and exchange lie in the parts before them. Waits: share of the step.",
        files=context.files("timeline"),
        folded=True,
    )


def _row(label: str, timeline: Timeline, rank: int, kinds: list[str]) -> Line:
    spans = [span for span in timeline.spans if span.rank == rank]
    lengths = {kind: _length(spans, kind) for kind in kinds}
    waits = lengths.get("wait", 0.0) / timeline.length_s
    return line(words(label), count(rank), *(seconds(lengths[kind], 3) for kind in kinds), share(waits))


def _length(spans: list[Span], kind: str) -> float:
    return sum(span.stop_s - span.start_s for span in spans if span.kind == kind)
