"""The efficiency tree: of every case, and of the phases and axes of the largest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from pscale.analysis import text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import by_case
from pscale.report.blocks import Topic
from pscale.report.table import CASE, Column, Table, listed
from pscale.report.topics.cases import size_column, size_tone
from pscale.report.topics.headline import lost_time

_NAMES = {
    "overall": "overall",
    "computation": "computation",
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
_SLIGHT = 0.995  # of the wall is left by an axis that is shown together with others of its kind
_OTHERS = " others"


def tables(findings: Findings) -> Iterator[Table]:
    """Yield what is lost, the factors of the efficiency per series, and by phase and axis of the largest."""
    yield from (*lost_time(findings), *_by_case(findings), *_parts(findings))


def _by_case(findings: Findings) -> Iterator[Table]:
    """Yield a row a case; cases side by side are in one table."""
    trees = findings.of_case("efficiency")
    factors, size = _factors(trees.values()), size_column(findings)
    columns = (
        CASE
        if findings.side_by_side
        else replace(size, get=lambda tree: size.value(findings.case(tree.case))),
        *map(_column, factors),
        Column(get="parallel", interval=True, wide=True),
    )
    caption = f"{_product(factors)}; 95% interval: of parallel"
    tone = {point.case: size_tone(point) for point in findings.rows("cases")}
    for series, points in _groups(findings):
        title, rows = findings.titled("Efficiency", series), [trees[point.case] for point in points]
        yield from listed(title, rows, columns, caption=caption, tone=lambda tree: tone[tree.case])


def _column(factor: str) -> Column:
    is_loss = factor == "unaccounted"
    return Column(_NAMES[factor], wide=factor in _WIDE, band=not is_loss, bounded=not is_loss, get=factor)


def _factors(trees: Iterable[Row]) -> list[str]:
    """Return the names of those factors that some case has."""
    known = [*trees]
    return [name for name in _NAMES if any(getattr(tree, name, None) is not None for tree in known)]


def _product(factors: Sequence[str]) -> str:
    """Describe how the factors make the whole."""
    parts = {
        "overall": "overall = computation × parallel",
        "parallel": "parallel = load balance × communication",
        "serialisation": "communication = serialisation × transfer",
        "threads": "threads: within computation, see below",
    }
    return "; ".join(words for name, words in parts.items() if name in factors or name == "parallel")


def _groups(findings: Findings) -> list[tuple[str, list[Row]]]:
    """Return the cases that have a tree, per table."""
    found = findings.of_case("efficiency")
    groups = {"": findings.rows("cases")} if findings.side_by_side else findings.series
    kept = [(name, [point for point in points if point.case in found]) for name, points in groups.items()]
    return [(name, points) for name, points in kept if points]


def _parts(findings: Findings) -> Iterator[Table]:
    """Yield the factors of the largest cases by phase and by axis; of cases side by side by axis alone."""
    groups = [points for _, points in _groups(findings)]
    largest = [*chain(*groups)] if findings.side_by_side else [points[-1] for points in groups]
    shown = [tree for tree in findings.rows("efficiency") if tree.phase and tree.of_step >= _SHORT]
    of_phases, of_axes = by_case(shown), findings.by_case("axes")
    alone = () if findings.side_by_side else (point for point in largest if point.ranks > 1)
    yield from listed(
        "Efficiency by phase",
        [tree for point in alone for tree in of_phases.get(point.case, ())],
        (CASE, "phase", "of_step", *map(_column, _OF_PART)),
        caption="of step: on the rank where the phase is longest; transfer can exceed 100% if an ideal "
        "network would shift waiting into this phase",
        grouped=True,
    )
    factors = [name for name in _OF_PART[:-1] if name in _factors(findings.rows("axes"))]
    several = (of_axes.get(point.case, []) for point in largest)
    rows = [tree for trees in several if len(trees) > 1 for tree in _worst_first(trees)]
    least = f"; others: the least of those with at least {text.percent(_SLIGHT)}"
    yield from listed(
        "Efficiency by axis",
        rows,
        (CASE, "axis", *map(_column, factors)),
        caption="as if the other axes were free; balance: of the ranks along the axis"
        + least * any(tree.axis.endswith(_OTHERS) for tree in rows),
        grouped=True,
    )


def _worst_first(trees: Sequence[Row]) -> Sequence[Row]:
    """Return the axes of a case, the one on which most is lost first, and those of next to nothing as one."""
    ordered = sorted(trees, key=lambda tree: tree.parallel)
    slight = [tree for tree in ordered if tree.parallel >= _SLIGHT]
    if len(slight) < 2:
        return ordered
    least: dict[str, Any] = {
        name: min((each for tree in slight if (each := getattr(tree, name)) is not None), default=None)
        for name in _OF_PART[:-1]
    }
    together = slight[0]._replace(axis=f"{len(slight)}{_OTHERS}", **least)
    return [*ordered[: -len(slight)], together]


TOPIC = Topic(
    name="efficiency",
    title="Efficiency",
    lead="Each factor is the share of the time that is not lost to its cause.",
    tables=tables,
)
