"""The efficiency tree: of every case, and of the phases and axes of the largest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from pscale.analysis import messages, text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import by_case
from pscale.report.blocks import Bands, Block, Context, Listing, Topic
from pscale.report.table import CASE, Column, Table, TableRow, Value, listed
from pscale.report.topics.cases import size_column, size_tone
from pscale.report.topics.headline import lost_time

_NAMES = {  # short ones for columns; the numbers of the others are places in the product
    "overall": ("overall", "1 overall"),
    "computation": ("computation", "1.1 computation"),
    "threads": ("threads", "1.1.1 threads"),
    "parallel": ("parallel", "1.2 parallel"),
    "load_balance": ("balance", "1.2.1 load balance"),
    "communication": ("commun.", "1.2.2 communication"),
    "serialisation": ("serial.", "1.2.2.1 serialisation"),
    "transfer": ("transfer", "1.2.2.2 transfer"),
    "unaccounted": ("unacc.", "unaccounted"),
}
_WIDE = ("threads", "unaccounted")
_OF_PART = ("parallel", "load_balance", "serialisation", "transfer", "computation")
_SHORT = 0.01  # of the step: what is shorter is left out
_SLIGHT = 0.995  # of the wall is left by an axis that is shown together with others of its kind
_OTHERS = " others"
_MOST_TREES, _MOST_ACROSS = 4, 12  # on the page


def tables(findings: Findings) -> Iterator[Table]:
    """Yield what is lost, the factors of the efficiency per series, and by phase and axis of the largest."""
    yield from (*lost_time(findings), *_by_case(findings), *_parts(findings))


def _by_case(findings: Findings) -> Iterator[Table]:
    """Yield a row a case; cases side by side are in one table."""
    found = findings.of_case("efficiency")
    factors = _factors(found.values())

    def parallel(point: Row) -> Value:
        return found[point.case].parallel  # type: ignore[no-any-return]

    columns = (
        CASE if findings.side_by_side else size_column(findings),
        *(_column(factor, lambda point: found[point.case]) for factor in factors),
        Column("95% interval", text.percent_interval, interval=True, wide=True, get=parallel),
    )
    caption = f"{_product(factors)}; 95% interval: of parallel"
    for series, measured in _groups(findings):
        title = findings.titled("Efficiency", series)
        yield from listed(title, measured, columns, caption=caption, tone=size_tone, files=("efficiency",))


def _column(factor: str, tree: Callable[[Any], Row] = lambda tree: tree) -> Column:
    """Return the column of a factor; `tree` finds it for a row."""
    return Column(
        _NAMES[factor][0],
        text.percent,
        wide=factor in _WIDE,
        band=factor != "unaccounted",
        get=lambda row: getattr(tree(row), factor),
    )


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


def _blocks(context: Context) -> Sequence[Block]:
    """Return the tree of every series, or of many cases their table."""
    findings = context.findings
    groups = _groups(findings)
    if not groups:
        return []
    wide = max(len(points) for _, points in groups) > _MOST_ACROSS
    if findings.side_by_side or wide or len(groups) > _MOST_TREES:
        cases = context.listings(_by_case(findings), "efficiency")
    else:
        cases = [_tree(context, *group) for group in groups]
    return [Bands(), *cases, *context.listings(_parts(findings), "parts")]


def _tree(context: Context, series: str, points: Sequence[Row]) -> Listing:
    """Return the tree of one series: a row a factor, a column a case."""
    found = context.findings.of_case("efficiency")
    factors = _factors(found.values())
    unit = "ranks × threads" if any(point.threads > 1 for point in points) else "ranks"
    rows: list[TableRow] = []
    for name in factors:
        values = [getattr(found[point.case], name) for point in points]
        if name == "unaccounted":  # a loss: in words, so that it gets no band of an efficiency
            values = [text.MISSING if value is None else text.percent(value) for value in values]
        rows.append(("base" if name == "overall" else "", (_NAMES[name][1], *values)))
    sizes = (
        Column(messages.short_size(point), text.percent, band=True, bounded=True, case=point.case)
        for point in points
    )
    intervals = any(getattr(value, "low", None) is not None for _, row in rows for value in row)
    table = Table(
        title=context.findings.titled("Efficiency tree", series),
        columns=(Column(f"factor, at … {unit}"), *sizes),
        rows=tuple(rows),
        caption=f"{_product(factors)}.{' Small: 95% intervals.' * intervals}",
    )
    name = f"tree-{len(series)}-{points[0].case}"
    return Listing(name=name, table=table, files=context.files("efficiency"), ordered=False)


TOPIC = Topic(
    name="efficiency",
    title="Efficiency",
    lead="Each factor is the share of the time that is not lost to its cause.",
    tables=tables,
    blocks=_blocks,
)
