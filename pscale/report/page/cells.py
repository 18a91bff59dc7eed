"""Cells of tables: a value in words, with what it is worth for putting rows in order."""

from __future__ import annotations

from pscale.analysis.stats import Estimate
from pscale.report import text
from pscale.report.page.blocks import Band, Cell, Line

_BANDS: tuple[tuple[float, Band], ...] = ((0.9, "high"), (0.8, "good"), (0.6, "fair"))


def line(*cells: Cell) -> Line:
    """Return a row of nothing special."""
    return "", cells


def words(value: str) -> Cell:
    """Return text of a suite or a machine."""
    return Cell(text=text.clean(value))


def count(value: int) -> Cell:
    """Return a whole number."""
    return Cell(text=f"{value}", order=value)


def number(value: float | None) -> Cell:
    """Return a plain number."""
    return Cell(text=text.number(value), order=value)


def seconds(value: float | None, digits: int = 4) -> Cell:
    """Return a time."""
    return Cell(text=text.duration(value, digits), order=value)


def share(value: float | None) -> Cell:
    """Return a fraction in percent."""
    return Cell(text=text.percent(value, 1), order=value)


def efficiency(known: Estimate | float | None, *, noted: bool = True) -> Cell:
    """Return an efficiency in the colour of its band, with its interval below, unless that is a point."""
    if not isinstance(known, Estimate):
        return Cell(text=text.percent(known, 1), order=known, band=band(known))
    certain = known.low is None or known.low == known.high
    return Cell(
        text=text.percent(known.value, 1),
        order=known.value,
        band=band(known.value),
        note=text.percent_interval(known) if noted and not certain else "",
    )


def band(value: float | None) -> Band:
    """Return the band of an efficiency."""
    if value is None:
        return ""
    return next((name for least, name in _BANDS if value >= least), "low")
