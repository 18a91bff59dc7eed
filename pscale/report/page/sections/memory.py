"""What the fullest rank holds: predicted, counted, measured."""

from __future__ import annotations

from pscale.report import grids_plans
from pscale.report.page.blocks import Section
from pscale.report.page.context import Context
from pscale.report.page.sheets import sheets


def memory(context: Context) -> Section | None:
    """Return the memory of every case by kind."""
    tables = sheets(grids_plans.memory(context.summary), "memory", files=context.files("memory"))
    if not tables:
        return None
    drawn = context.pictures(
        "memory",
        "Memory of the fullest rank by kind",
        "One bar a case, made of parameters, gradients, optimizer, activations and exchange; a mark where "
        "the system measured the peak.",
        *tables,
    )
    return Section(
        name="memory",
        title="Memory",
        lead="Predicted before the run, counted by the job, measured by the system.",
        blocks=[*drawn] or tables,
    )
