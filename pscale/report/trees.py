"""The efficiency tree as tables: of every case, and of the phases and axes of the largest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pscale.analysis.axes import AxisTree
from pscale.analysis.efficiency import Tree
from pscale.analysis.scaling import Point
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Row
from pscale.report.grids import size_tone, titled

_NAMES = {
    "overall": "overall",
    "computation": "comput.",
    "threads": "threads",
    "parallel": "parallel",
    "load_balance": "balance",
    "communication": "commun.",
    "serialisation": "serial.",
    "transfer": "transfer",
    "unaccounted": "unacc.",
}
_OF_PART = ("parallel", "load_balance", "serialisation", "transfer", "computation")
_SHORT = 0.01  # of the step: what is shorter is left out
_PRODUCT = "overall = computation × parallel; parallel = load balance × communication"


def trees(summary: Summary) -> Iterator[Grid]:
    """Yield the factors of the efficiency, per series, then by phase and by axis of the largest cases.

    Cases side by side are in one table, and too many to be told of by phase.
    """
    shown = [name for name in _NAMES if any(getattr(tree, name) is not None for tree in summary.trees)]
    found = {tree.case: tree for tree in summary.trees}
    split = "; communication = serialisation × transfer" if "serialisation" in shown else ""
    split += "; threads: within computation, see below" if "threads" in shown else ""
    largest = []
    groups = {"": list(summary.points)} if summary.side_by_side else summary.series
    named = text.label if summary.side_by_side else text.size
    first = Column("case", right=False, fold=True) if summary.side_by_side else Column("ranks")
    for series, points in groups.items():
        measured = [point for point in points if point.case in found]
        if not measured:
            continue
        yield Grid(
            title=titled("Efficiency", series, summary),
            columns=(
                *(first, *(Column(_NAMES[name], wide=name == "threads") for name in shown)),
                Column("95% interval", wide=True),
            ),
            rows=tuple(
                (size_tone(point), (named(point), *_row(found[point.case], shown))) for point in measured
            ),
            caption=f"{_PRODUCT}{split}; interval: of parallel",
        )
        largest += measured if summary.side_by_side else measured[-1:]
    if not summary.side_by_side:
        yield from _phases(summary, [point for point in largest if point.ranks > 1])
    yield from _axes(summary, largest)


def _row(tree: Tree, shown: Sequence[str]) -> tuple[str, ...]:
    return *_factors(tree, shown), text.percent_interval(tree.parallel)


def _phases(summary: Summary, points: Sequence[Point]) -> Iterator[Grid]:
    rows: list[Row] = []
    for point in points:
        found = [tree for tree in summary.phase_trees if tree.case == point.case and tree.of_step >= _SHORT]
        names = [text.clean(point.label), *[""] * len(found)]
        rows += [
            ("", (name, tree.phase, text.percent(tree.of_step, 1), *_factors(tree, _OF_PART)))
            for name, tree in zip(names, found, strict=False)
        ]
    if rows:
        yield Grid(
            title="Efficiency by phase",
            columns=(
                *(Column("case", right=False, fold=True), Column("phase", right=False), Column("of step")),
                *(Column(_NAMES[name]) for name in _OF_PART),
            ),
            rows=tuple(rows),
            caption="of step: where the phase is longest; transfer passes 100% where an ideal network would "
            "move waiting into the phase",
        )


def _axes(summary: Summary, points: Sequence[Point]) -> Iterator[Grid]:
    shown = [
        name for name in _OF_PART[:-1] if any(getattr(tree, name) is not None for tree in summary.axis_trees)
    ]
    rows: list[Row] = []
    for point in points:
        found = [tree for tree in summary.axis_trees if tree.case == point.case]
        names = [text.clean(point.label), *[""] * len(found)]
        rows += [
            ("", (name, tree.axis, *_factors(tree, shown))) for name, tree in zip(names, found, strict=False)
        ]
    if rows:
        yield Grid(
            title="Efficiency by axis",
            columns=(
                *(Column("case", right=False, fold=True), Column("axis", right=False)),
                *(Column(_NAMES[name]) for name in shown),
            ),
            rows=tuple(rows),
            caption="as if the other axes cost nothing; balance: of the ranks along the axis",
        )


def _factors(tree: Tree | AxisTree, shown: Sequence[str]) -> list[str]:
    values = [getattr(tree, name) for name in shown]
    return [text.percent(getattr(value, "value", value), 1) for value in values]
