"""Evidence for a proposal: how far a program scales, what its work costs, and a paragraph that says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.difference import EQUAL
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.report import text
from pscale.report.blocks import Block, Context, Facts, Words
from pscale.report.table import Column, Columns, Table, Written, listed
from pscale.report.topics import cases
from pscale.report.topics.topic import Topic, TopicFigure, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 8  # series with a paragraph
_TARGET = {"holds": "yes", "falls short": "no", "": "base"}


def series(findings: Findings) -> dict[str, list[Row]]:
    """Return the sizes of every series, smallest first."""
    return grouped(findings.rows("evidence"), lambda row: row.series)


def paragraphs(findings: Findings) -> Iterator[str]:
    """Yield what every series shows, to be pasted; all numbers are in the tables."""
    of_series, about = series(findings), dict(_basis(findings))
    for name, rows in [*of_series.items()][:_MOST]:
        said = messages.evidence(rows, about[_limit(name)], about)
        yield text.clean(f"{name}: {said}" if len(of_series) > 1 else said)


def _basis(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield what the paragraphs name besides sizes, as names and values."""
    rows = findings.rows("evidence")
    if not rows:
        return
    machine, known = dict(findings.machine), dict(findings.provenance)
    facts = {
        "program": f"'{findings.program}'" if findings.program else f"the training '{findings.title}'",
        "target": f"an efficiency of at least {text.percent_1(rows[0].target)}",
        "launches": messages.launched(rows),
        "±": "half of a 95% interval",
        "equal": f"less than {EQUAL:.0%} apart",
        "work": rows[0].units and messages.work(rows[0], rows[0].units),
        "CPU": machine.get("CPU"),
        "hosts": machine.get("Hosts"),
        "MPI": machine.get("MPI"),
        "BLAS": machine.get("BLAS"),
        "system": known.get("kernel"),
        "pscale": known.get("packages.pscale") and f"pscale {known['packages.pscale']}",
    }
    yield from ((name, value) for name, value in facts.items() if value)
    verdicts = {row.series: row for row in findings.rows("verdicts")}
    yield from ((_limit(name), messages.limit(verdicts[name])) for name in series(findings))


def _limit(name: str) -> str:
    return f"limit of {name}" if name else "limit"


def tables(findings: Findings) -> Iterator[Table]:
    """Yield every size, and what the figures rest on."""
    rows = findings.rows("evidence")
    if not rows:
        return
    first = rows[0]
    columns: Columns = (
        *([Column("series", fold=True, get="series")] if len(series(findings)) > 1 else []),
        "ranks",
        *(["threads"] if any(row.threads > 1 for row in rows) else []),
        "nodes",
        Column(first.timed, text.duration, get=_time),
        Column("speed-up", get="speedup"),
        Column("efficiency", text.percent_1, band=True, get=_efficiency),
        Column(f"≥ {text.percent_1(first.target)}", get=lambda row: _TARGET.get(row.answer, row.answer)),
        Column("core-h", text.number_3, get="core_hours"),
        Column("work", text.number_3, get="units_core_hours"),
        Column("to decide", fold=True, wide=True, get=lambda row: row.to_decide or None),
    )
    caption = f"base: the smallest size measured; core-h: core-hours for {messages.work(first, first.per)}"
    if first.units:
        caption += f"; work: core-hours for {messages.work(first, first.units)}"
    yield from listed(
        "Evidence by size",
        rows,
        columns,
        caption=caption,
        filled=True,
        tone=lambda row: "base" if row.base else "",
    )
    basis = (Column("basis", get=lambda fact: fact[0]), Column("value", fold=True, get=lambda fact: fact[1]))
    yield from listed("Basis of the evidence", _basis(findings), basis)


def _time(row: Row) -> Written:
    return Written(row.step_s.value, messages.spread(row.step_s))


def _efficiency(row: Row) -> Written:
    known = row.efficiency
    return Written(known.value, text.percent_1(known.value) if row.base else messages.efficiency(known))


def _blocks(context: Context) -> Sequence[Block]:
    said = tuple(paragraphs(context.findings))
    if not said:
        return []
    (sizes, _), basis = tables(context.findings), _basis(context.findings)
    return [
        *(Words(title="", lines=(paragraph,)) for paragraph in said),
        *context.listings([sizes], TOPIC.name, *TOPIC.files),
        *picture(context, TOPIC.figure, []),
        Facts(title="Basis", items=tuple((name, text.clean(value)) for name, value in basis)),
    ]


def figure(findings: Findings) -> Figure | None:
    """Draw the time and the efficiency of every size; None without sizes."""
    return cases.of_sizes(findings, series(findings), "Step time", "Efficiency") if series(findings) else None


TOPIC = Topic(
    name="evidence",
    title="Evidence",
    lead="For a proposal for compute time: how far the program scales, and what its work costs.",
    paragraphs=paragraphs,
    tables=tables,
    files=("evidence",),
    figure=TopicFigure(
        name="evidence",
        title="Step time and efficiency by size",
        description="Two panels over the number of cores: step time on logarithmic axes beside ideal scaling "
        "from the smallest size, and efficiency beside the target; each size with its 95% interval.",
        draw=figure,
    ),
    blocks=_blocks,
)
