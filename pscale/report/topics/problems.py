"""Caveats, and what made the figures: launches without a result, expectations, warnings, provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from pscale.analysis import text
from pscale.analysis.columns import Row
from pscale.analysis.expect import Answer
from pscale.analysis.findings import Findings
from pscale.analysis.frames import grouped
from pscale.analysis.resources import NOTICED
from pscale.analysis.scaling import FINE
from pscale.config.metrics import METRICS, unit_of
from pscale.report.blocks import Topic, show
from pscale.report.table import CASE, Column, Table, Tone, Value, Written, listed

_OF_ONE_CASE = {"straggler", "injected"}  # warnings that name a rank, a phase, a purpose
_TONES: dict[Answer, Tone] = {"holds": "good", "falls short": "bad", "undecided": "pending", "unknown": "bad"}
_SIGNS: dict[Answer, str] = {"holds": "✓", "falls short": "✗", "undecided": "?", "unknown": "✗"}


def tables(findings: Findings) -> Iterator[Table]:
    """Yield failures and cases without a result, what others took from the cores, then expectations."""
    for each in (failures, _absent, _interference, expectations):
        yield from each(findings)


def _lists(findings: Findings) -> Mapping[str, Sequence[str]]:
    said = (f"{about}: {words}" if about else words for about, words in warnings(findings.rows("warnings")))
    return {"Warnings": [*said], "Notes": findings.notes}


failures = show(
    "Failed and invalid launches",
    "failures",
    (
        CASE,
        Column("status", fold=True, get="status"),
        Column("launches", fold=True, get=lambda each: ", ".join(f"#{at + 1}" for at in each.repeats)),
        Column("reason", fold=True, get="reason"),
    ),
    tone=lambda _: "bad",
)
_interference = show(
    "Interference",
    "interference",
    (
        *(CASE, Column("other processes", get="others"), Column("hypervisor", get="steal")),
        *("limit", "off_core"),
    ),
    caption="shares of core time",
    explain=("off_core",),
    only=lambda row: row.share >= NOTICED,
)


def expectations(findings: Findings) -> Iterator[Table]:
    """Yield what the suite, or a file of references, expects, and whether it holds."""

    def bound(row: Row) -> Value:
        return Written(row.upper if row.lower is None else row.lower, bounds(row))

    def between(row: Row) -> Value:
        return Written(row.value.low, said) if row.value and (said := interval(row)) else None

    def reference(row: Row) -> Value:
        return None if row.reference is None else Written(row.reference, _written(row, row.reference))

    columns = (
        Column("case", fold=True, get=lambda row: row.label or row.demand),
        Column("metric", get="metric"),
        Column("measured", str, get=lambda row: Written(row.value and row.value.value, measured(row))),
        Column("95% interval", str, wide=True, get=between),
        *(Column("reference", str, get=reference), Column("bounds", str, get=bound)),
        Column("verdict", fold=True, get=lambda row: f"{_SIGNS[row.answer]} {row.text}"),
        Column("to decide", fold=True, get=lambda row: row.to_decide or None),
    )
    rows = findings.rows("expectations")
    return listed("Expectations", rows, columns, tone=lambda row: _TONES[row.answer], filled=True)


_WRITTEN: dict[str, Callable[[float], str]] = {  # metrics in their own unit, as other tables write them
    "step_s": text.duration,
    "startup_s": text.duration,
    "wall_s": text.duration,
    "speedup": text.number_3,
    "samples_per_s": text.rate,
    "tokens_per_s": text.rate,
    "gflops": text.number_3,
    "peak_fraction": text.percent_0,
}


def measured(entry: Row) -> str:
    """Return what was measured, with its unit."""
    return text.MISSING if entry.value is None else _written(entry, entry.value.value)


def bounds(entry: Row) -> str:
    """Return the bounds, of which one may be missing."""
    low, high = (None if bound is None else _written(entry, bound) for bound in (entry.lower, entry.upper))
    if low and high:
        return f"{low}–{high}"
    return f"≥ {low}" if low else f"≤ {high}" if high else text.MISSING


def interval(entry: Row) -> str:
    """Return the bounds of what was measured, with their units; empty without any."""
    value = entry.value
    if value is None or value.low is None or value.high is None:
        return ""
    return f"{_written(entry, value.low)}–{_written(entry, value.high)}"


def _written(entry: Row, value: float) -> str:
    """Return a number as the other tables write it, or in the unit that a suite asks for."""
    if entry.metric not in METRICS:
        return f"{text.number(value)} {entry.unit}".rstrip()
    if entry.unit == unit_of(entry.metric):
        share = text.percent if entry.unit == "1" else text.number
        return _WRITTEN.get(entry.metric, share)(value)
    return text.percent(value / 100) if entry.unit == "%" else f"{text.number(value)} {entry.unit}"


def warnings(found: Sequence[Row]) -> list[tuple[str, str]]:
    """Return which cases each warning is about, empty for the whole run, and its text.

    Of a kind that several cases have with different figures, the first stands for all.
    """

    def about(group: Sequence[Row]) -> str:
        first, equal = group[0], len({warning.text for warning in group}) == 1
        if not first.case or len(group) == 1:
            return str(first.label)
        return f"{len(group)} cases" + ("" if equal else f", such as {first.label}")

    groups = grouped(found, lambda each: (each.kind, each.text if each.kind in _OF_ONE_CASE else ""))
    return [(about(group), group[0].text) for group in groups.values()]


def missing_launches(findings: Findings) -> Iterator[tuple[str, Tone]]:
    """Yield how many launches of the whole run have no valid result, and how many are pending."""
    if findings.unsuccessful:
        yield f"{text.plural(findings.unsuccessful, 'launch')} failed or invalid", "bad"
    if findings.pending:
        yield f"{text.plural(findings.pending, 'launch')} pending", ""


def concerns(findings: Findings) -> Iterator[tuple[str, Tone]]:
    """Yield, in a few words each, what failed, is pending, fell short or has a warning."""
    yield from missing_launches(findings)
    answers = Counter(row.answer for row in findings.rows("expectations"))
    if broken := answers["falls short"]:
        yield f"{text.plural(broken, 'expectation')} missed", "bad"
    if open_ := answers["undecided"]:
        yield f"{text.plural(open_, 'expectation')} undecided", ""
    if found := warnings(findings.rows("warnings")):
        yield text.plural(len(found), "warning"), ""


def caution(findings: Findings) -> str:
    """Say in one sentence what to read before relying on the verdict; may be empty."""
    said = ", ".join(words for words, _ in concerns(findings))
    return f"Caution: {said}; see below." if said else ""


_absent = show(
    "Cases that were not started",
    "cases",
    (CASE, *(Column(get=name, fold=True) for name in ("status", "reason"))),
    only=lambda point: point.status in ("pending", *FINE[1:]),
    tone=lambda _: "pending",
)


PROBLEMS = Topic(
    name="problems",
    title="Caveats",
    lead="Check these before relying on the results. Failed and invalid launches are in no average.",
    tables=tables,
    lists=_lists,
)


# What made the figures


def _provenance(findings: Findings) -> Iterator[Table]:
    """Yield where the run comes from, and what is known of its environment."""
    run = (("Run", findings.run), ("Suite", findings.suite), ("Launches", f"{findings.launches}"))
    columns = (Column("name", get=lambda fact: fact[0]), Column("value", fold=True, get=lambda fact: fact[1]))
    for title, facts in (
        ("This run", (*run, *findings.machine)),
        ("Environment", findings.provenance),
    ):
        yield from listed(title, filter(lambda fact: fact[1], facts), columns)


PROVENANCE = Topic(
    name="provenance",
    title="Provenance",
    lead="Machine, software and suite behind these results.",
    details=_provenance,
)
