"""Speed-up and efficiency over size, and the table of all cases."""

from __future__ import annotations

from dataclasses import replace

from pscale.report.grids_cases import cases
from pscale.report.page.blocks import Block, Section
from pscale.report.page.context import Context
from pscale.report.page.sheets import sheet

_OPEN = 24  # rows that are not folded away


def scaling(context: Context) -> Section:
    """Return the figure and the table of all cases."""
    summary = context.summary
    table = sheet(
        replace(cases(summary), title="Every case"),
        "cases",
        files=context.files("cases"),
        banded=("efficiency",),
        folded=len(summary.points) > _OPEN,
    )
    blocks: list[Block] = [
        *context.pictures(
            "scaling",
            "Speed-up and efficiency by size",
            "Two panels over the number of cores: speed-up beside the ideal line, and efficiency in "
            "percent of the base case; each case with its 95% interval. The table below has the numbers.",
            table,
        )
    ]
    if not blocks:
        blocks = [table]
    compares = any(point.efficiency and not point.base for point in summary.points)
    return Section(
        name="scaling",
        title="Speed-up and efficiency" if compares and not summary.side_by_side else "Cases",
        lead="Bars are 95% intervals, by resampling launches and then steps; the dashed line is ideal "
        "scaling from the base case."
        if compares and "scaling" in context.vectors
        else "",
        blocks=blocks,
    )
