"""How pipelines ran: bubbles, and the timelines of traced cases."""

from __future__ import annotations

from pscale.report import grids_plans
from pscale.report.page.blocks import Block, Section
from pscale.report.page.context import Context
from pscale.report.page.sheets import sheets

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
        blocks += context.pictures(name, title, says)
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
