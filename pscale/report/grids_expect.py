"""The table of what was expected: measured, reference and bounds beside each other."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.analysis.expect import Expectation
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Column, Grid, Tone

_TONES: dict[bool | None, Tone] = {True: "good", False: "bad", None: "pending"}
_SIGNS = {True: "✓", False: "✗", None: "?"}


def expectations(summary: Summary) -> Iterator[Grid]:
    """Yield what the suite, or a file of references, expects, and whether it holds."""
    if not summary.expectations:
        return
    columns = (
        *(Column("", right=False), Column("case", right=False, fold=True)),
        *(Column("metric", right=False), Column("measured"), Column("95% interval", wide=True)),
        *(Column("reference"), Column("bounds")),
        Column("verdict", right=False, fold=True),
    )
    rows = tuple((_TONES[entry.held], _cells(entry)) for entry in summary.expectations)
    yield Grid(title="Expectations", columns=columns, rows=rows).without(text.MISSING)


def _cells(entry: Expectation) -> tuple[str, ...]:
    return (
        _SIGNS[entry.held],
        text.clean(entry.label or entry.demand),
        entry.metric,
        measured(entry),
        _interval(entry),
        text.MISSING if entry.reference is None else _shown(entry.reference, entry.unit),
        bounds(entry),
        text.clean(entry.text),
    )


def measured(entry: Expectation) -> str:
    """Return what was measured, with its unit."""
    return text.MISSING if entry.value is None else _shown(entry.value.value, entry.unit)


def bounds(entry: Expectation) -> str:
    """Return the bounds, of which one may be missing."""
    if entry.lower is None or entry.upper is None:
        sign, bound = ("≥", entry.lower) if entry.lower is not None else ("≤", entry.upper)
        return text.MISSING if bound is None else f"{sign} {_shown(bound, entry.unit)}"
    return f"{text.number(entry.lower)}–{_shown(entry.upper, entry.unit)}"


def _interval(entry: Expectation) -> str:
    value = entry.value
    if value is None or value.low is None:
        return text.MISSING
    return "–".join(text.number(bound) for bound in value.stated) if value.stated else text.VAGUE


def _shown(value: float, unit: str) -> str:
    return text.number(value) if unit == "1" else f"{text.number(value)} {unit}"
