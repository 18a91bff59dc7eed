"""How pipelines ran: bubbles, and the timelines of traced cases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.timeline import kinds_of
from pscale.report import text
from pscale.report.blocks import MOST_ROWS, Block, Context
from pscale.report.figure_style import narrow
from pscale.report.table import Column, Table, Written, listed
from pscale.report.topics.topic import Topic, TopicFigure, case_column, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the idle time of pipelines, predicted and measured."""

    def stages(each: Row) -> Written:
        return Written(each.stages, f"{each.stages}" + (f" × {each.chunks}" if each.chunks > 1 else ""))

    columns = (
        case_column(findings),
        Column("stages", str, get=stages),
        Column("micro-batches", get="micro_batches"),
        "predicted",
        "measured",
    )
    return listed(
        "Bubbles of pipelines (share of the step, mean over ranks)",
        findings.rows("bubbles"),
        columns,
        caption="predicted: from the schedule, assuming time proportional to FLOPs; "
        "measured: wait for other stages",
    )


def _blocks(context: Context) -> Sequence[Block]:
    """Return timelines, then bubbles predicted and measured."""
    ranks = context.listings(_by_rank(context.findings), "timeline-ranks", "timeline", most=MOST_ROWS)
    drawn = picture(context, TOPIC.figure, ranks) or ranks
    return [*drawn, *context.listings(tables(context.findings), "bubbles", "bubbles")]


def _by_rank(findings: Findings) -> Iterator[Table]:
    """Yield how long each rank of the drawn steps did what."""
    spans = findings.rows("timeline")
    lengths: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for span in spans:
        lengths[span.case, span.rank, span.kind] += span.stop_s - span.start_s
    used = {span.kind for span in spans}

    def time_s(kind: str) -> Callable[[Row], float]:
        return lambda row: lengths.get((row.case, row.rank, kind), 0.0)

    columns = (
        Column("case", fold=True, get="label"),
        Column("rank", str, get="rank"),
        *(Column(kind, text.duration_3, get=time_s(kind)) for kind in kinds_of(spans) if kind in used),
        Column("waits", text.percent_1, get=lambda row: time_s("wait")(row) / row.length_s),
    )
    return listed(
        "What every rank did in these steps",
        [*{(span.case, span.rank): span for span in spans}.values()],
        columns,
        caption="Wait and exchange lie in the parts before them. Waits: share of the step.",
    )


def figure(findings: Findings) -> Figure | None:
    """Draw the steps that were chosen of traced cases; None where nothing was traced."""
    from pscale.report.step_figure import draw_steps

    drawn = [*findings.by_case("timeline").values()]
    titles = [_title(findings, step) for step in drawn]
    return draw_steps(drawn, titles, text.heading(findings)) if drawn else None


def _title(findings: Findings, step: Sequence[Row]) -> str:
    span, of_ranks = step[0], findings.case(step[0].case).ranks
    ranks = len({each.rank for each in step})
    if narrow():
        return str(span.label)
    some = f", {ranks} of {of_ranks} ranks" if ranks < of_ranks else ""
    return f"{span.label}, launch {span.repeat + 1}, step {span.step}: {text.duration_3(span.length_s)}{some}"


def _has_stages(findings: Findings) -> bool:
    return not findings.bubbles.empty


TOPIC = Topic(
    name="pipeline",
    title=lambda findings: "Pipeline" if _has_stages(findings) else "Timeline",
    lead=lambda findings: (
        "A stage is idle until the stage before it has sent: that is the bubble. More "
        "micro-batches make it smaller."
        if _has_stages(findings)
        else "One step as it was recorded."
    ),
    tables=tables,
    figure=TopicFigure(
        name="timeline",
        title="Timeline as it ran",
        description="A row a rank, time to the right: what each rank did when, and where it was idle.",
        draw=figure,
    ),
    blocks=_blocks,
)
