"""Which plan is fastest, where plans of the same work are side by side."""

from __future__ import annotations

from pscale.report import grids_plans
from pscale.report.page.blocks import Section
from pscale.report.page.context import Context
from pscale.report.page.sheets import sheets


def plans(context: Context) -> Section | None:
    """Return the ranking."""
    summary = context.summary
    if not summary.ranking:
        return None
    tables = sheets(grids_plans.ranking(summary), "ranking", files=context.files("ranking"))
    drawn = context.pictures(
        "plans",
        "Step time of every plan",
        "One bar a plan, fastest first, made of what its step goes to: compute, exchange, bubble, other "
        "wait, copies and stalls.",
        *tables,
    )
    return Section(
        name="plans",
        title="Which plan is fastest",
        lead="Plans of the same work on the same ranks; those that cannot be told apart from the fastest "
        "share its place.",
        blocks=[*drawn] or tables,
    )
