"""What did not go well: launches without a result, expectations that do not hold, reasons for doubt."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.analysis.evidence import Remark
from pscale.analysis.scaling import FINE, Point
from pscale.report import grids
from pscale.report.grid import Tone
from pscale.report.grids_expect import expectations
from pscale.report.page.blocks import Block, Head, Section, Sheet, Words
from pscale.report.page.cells import line, words
from pscale.report.page.context import Context
from pscale.report.page.sheets import MOST_ROWS, counted, sheets
from pscale.report.warnings import told

_OPEN = 12  # rows that are not folded away


def problems(context: Context) -> Section | None:
    """Return failures and cases without a result, with their reasons, expectations, warnings and notes."""
    summary = context.summary
    blocks: list[Block] = [*sheets(grids.failures(summary), "failures", files=context.files("failures"))]
    absent = [point for point in summary.points if point.status in ("pending", *FINE[1:])]
    if absent:
        blocks.append(_absent(absent, context))
    blocks += sheets(expectations(summary), "expectations", files=context.files("expectations"))
    if summary.remarks:
        blocks.append(_warnings(summary.remarks, context))
    if summary.notes:
        blocks.append(Words(title="Notes", lines=summary.notes))
    if not blocks:
        return None
    return Section(
        name="problems",
        title="What to distrust",
        lead="A launch that failed, or whose figures cannot be believed, is a row with its reason; none is "
        "averaged in.",
        blocks=blocks,
    )


def _absent(points: Sequence[Point], context: Context) -> Sheet:
    """Return cases that were left out by a rule, or are still to come."""
    heads = tuple(Head(text=name, right=False, words=True) for name in ("case", "status", "reason"))
    tone: Tone = "pending"
    rows = tuple(
        (tone, (words(point.label), words(point.status), words(point.reason))) for point in points[:MOST_ROWS]
    )
    files = context.files("cases")
    return Sheet(name="absent", title="Cases that were not started", heads=heads, rows=rows, files=files)


def _warnings(remarks: Sequence[Remark], context: Context) -> Sheet:
    """Return warnings with what each is about, those that several cases share once."""
    said = told(remarks)
    rows = tuple(line(words(whose or "the run"), words(text)) for whose, text in said[:MOST_ROWS])
    return Sheet(
        name="warnings",
        title="Warnings",
        heads=tuple(Head(text=name, right=False, words=True) for name in ("about", "warning")),
        rows=rows,
        left_out=counted(len(rows), len(said)) if len(rows) < len(said) else "",
        files=context.files("warnings"),
        folded=len(rows) > _OPEN,
    )
