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
_WIDE = ("threads", "unaccounted")
_OF_PART = ("parallel", "load_balance", "serialisation", "transfer", "computation")
_SHORT = 0.01  # of the step: what is shorter is left out
_PRODUCT = "overall = computation × parallel; parallel = load balance × communication"


def trees(summary: Summary) -> Iterator[Grid]:
    """Yield the factors of the efficiency, per series, then by phase and by axis of the largest cases.

    Cases side by side are in one table, and too many to be told of by phase.
    """
    shown = factors(summary.trees)
    found = {tree.case: tree for tree in summary.trees}
    named = text.label if summary.side_by_side else text.size
    first = Column("case", right=False, fold=True) if summary.side_by_side else Column("ranks")
    for series, measured in _groups(summary):
        yield Grid(
            title=titled("Efficiency", series, summary),
            columns=(
                *(first, *(Column(_NAMES[name], wide=name in _WIDE) for name in shown)),
                Column("95% interval", wide=True),
            ),
            rows=tuple(
                (size_tone(point), (named(point), *_row(found[point.case], shown))) for point in measured
            ),
            caption=f"{product(shown)}; interval: of parallel",
        )
    yield from parts(summary)


def parts(summary: Summary) -> Iterator[Grid]:
    """Yield the factors of the largest cases by phase and by axis."""
    if summary.side_by_side:
        largest = [point for _, measured in _groups(summary) for point in measured]
    else:
        largest = [measured[-1] for _, measured in _groups(summary)]
        yield from _phases(summary, [point for point in largest if point.ranks > 1])
    yield from _axes(summary, largest)


def factors(trees: Sequence[Tree]) -> list[str]:
    """Return the names of those factors that some case has."""
    return [name for name in _NAMES if any(getattr(tree, name) is not None for tree in trees)]


def product(shown: Sequence[str]) -> str:
    """Say how the factors make the whole."""
    split = "; communication = serialisation × transfer" if "serialisation" in shown else ""
    split += "; threads: within computation, see below" if "threads" in shown else ""
    return f"{_PRODUCT}{split}"


def _groups(summary: Summary) -> Iterator[tuple[str, list[Point]]]:
    """Yield the cases that have a tree, per table."""
    found = {tree.case for tree in summary.trees}
    groups = {"": list(summary.points)} if summary.side_by_side else summary.series
    for series, points in groups.items():
        if measured := [point for point in points if point.case in found]:
            yield series, measured


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
