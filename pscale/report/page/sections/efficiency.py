"""The efficiency tree, numbered and coloured by band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pscale.analysis.efficiency import Tree
from pscale.analysis.scaling import Point
from pscale.report import text, trees
from pscale.report.grid import Tone
from pscale.report.grids import size_tone, titled
from pscale.report.page.blocks import Block, Cell, Head, Key, Line, Section, Sheet
from pscale.report.page.cells import efficiency as efficient
from pscale.report.page.cells import share
from pscale.report.page.context import Context
from pscale.report.page.sheets import MOST_CASES, counted, sheets

_MOST_TREES, _MOST_ACROSS = 4, 12
_NUMBERED = {  # the number is the place in the product
    "overall": ("1", "overall"),
    "computation": ("1.1", "computation"),
    "threads": ("1.1.1", "threads"),
    "parallel": ("1.2", "parallel"),
    "load_balance": ("1.2.1", "load balance"),
    "communication": ("1.2.2", "communication"),
    "serialisation": ("1.2.2.1", "serialisation"),
    "transfer": ("1.2.2.2", "transfer"),
    "unaccounted": ("", "unaccounted"),
}
_PARTS = ("parallel", "balance", "serial.", "transfer", "comput.")


def efficiency(context: Context) -> Section | None:
    """Return the tree of every series, or of many cases one table."""
    summary = context.summary
    if not summary.trees:
        return None
    shown = trees.factors(summary.trees)
    found = {tree.case: tree for tree in summary.trees}
    series = {
        name: [point for point in points if point.case in found] for name, points in summary.series.items()
    }
    series = {name: points for name, points in series.items() if points}
    wide = max(len(points) for points in series.values()) > _MOST_ACROSS
    blocks: list[Block] = [Key()]
    if summary.side_by_side or wide or len(series) > _MOST_TREES:
        blocks.append(_flat(context, shown, found))
    else:
        blocks += [_tree(context, name, points, shown, found) for name, points in series.items()]
    blocks += sheets(trees.parts(summary), "parts", banded=_PARTS, files=context.files("axes"))
    return Section(
        name="efficiency",
        title="Efficiency",
        lead="Each factor is the share of the time that is not lost to its cause; the factors below multiply "
        "to the one above.",
        blocks=blocks,
    )


def _tree(
    context: Context, series: str, points: Sequence[Point], shown: Sequence[str], found: Mapping[str, Tree]
) -> Sheet:
    """Return the tree of one series: a row a factor, a column a case."""
    rows: list[Line] = []
    for name in shown:
        number, words = _NUMBERED[name]
        cells = tuple(_cell(name, found[point.case]) for point in points)
        tone: Tone = "base" if name == "overall" else ""
        rows.append((tone, (Cell(text=words, number=number, indent=max(0, number.count("."))), *cells)))
    unit = "ranks × threads" if any(point.threads > 1 for point in points) else "ranks"
    return Sheet(
        name=f"tree-{len(series)}-{points[0].case}",
        title=titled("Efficiency tree", series, context.summary),
        heads=(
            Head(text=f"factor, at … {unit}", right=False),
            *(Head(text=text.size(point)) for point in points),
        ),
        rows=tuple(rows),
        caption=f"{trees.product(shown)}. Small: 95% intervals.",
        files=context.files("efficiency"),
        ordered=False,
    )


def _flat(context: Context, shown: Sequence[str], found: Mapping[str, Tree]) -> Sheet:
    """Return one table of all cases: a row a case, a column a factor."""
    summary = context.summary
    measured = [point for point in summary.points if point.case in found]
    heads = [Head(text="case", right=False, words=True), Head(text="ranks")]
    heads += [Head(text=" ".join(filter(None, _NUMBERED[name]))) for name in shown]
    rows = tuple(
        (
            size_tone(point),
            (
                Cell(text=text.label(point)),
                Cell(text=text.size(point), order=point.cores),
                *(_cell(name, found[point.case], noted=False) for name in shown),
            ),
        )
        for point in measured[:MOST_CASES]
    )
    return Sheet(
        name="trees",
        title="Efficiency of every case",
        heads=tuple(heads),
        rows=rows,
        caption=trees.product(shown),
        left_out=counted(len(rows), len(measured)) if len(rows) < len(measured) else "",
        files=context.files("efficiency"),
    )


def _cell(name: str, tree: Tree, *, noted: bool = True) -> Cell:
    value = getattr(tree, name)
    return share(value) if name == "unaccounted" else efficient(value, noted=noted)
