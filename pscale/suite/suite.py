"""A suite as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pscale.config import Case
from pscale.config.choices import Scaling
from pscale.suite.document import Path_, Place


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A demand on a metric of the cases that `where` or `case` selects, here by their ids.

    Either `at_least` and `at_most`, or `value` with `lower` and `upper`; all in `unit`, None for the metric's
    own.
    """

    metric: str
    where: str
    case: str
    at_least: float | None
    at_most: float | None
    value: float | None
    lower: float | None
    upper: float | None
    unit: str | None
    cases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Launches until step times are precise: `precision` is half of their interval over their value."""

    precision: float
    most: int  # launches of a case


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """What a suite asks for on a machine: its cases, and what it expects of them."""

    cases: tuple[Case, ...]
    expect: tuple[Expectation, ...]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One experiment, validated; `expand` makes its cases.

    `given` is the file as written; `resolved` has what it extends, overrides and defaults filled in, as JSON
    can hold it; `values` is the same without defaults, and `places` says where each was written.
    """

    name: str
    title: str
    scaling: Scaling
    given: str
    resolved: dict[str, Any]
    repeat: int  # launches of each case; with `auto` the fewest
    auto: Auto | None
    file: Path
    values: dict[str, Any] = field(repr=False)
    places: Mapping[Path_, Place] = field(repr=False)
