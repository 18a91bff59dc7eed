"""`pscale compare`: whether one run or variant is slower or faster than another, and how sure that is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pscale.analysis.compare import RELEVANT, Comparison, compare
from pscale.analysis.frames import load
from pscale.analysis.variants import variants
from pscale.cli.console import new_console
from pscale.errors import FAILED, UsageError
from pscale.report import compare as report

_CONDITIONS = ("slower", "faster", "unclear", "missing")
_CONDITION = re.compile(r"(?P<answer>[a-z]+)(?::(?P<percent>[0-9]+(?:\.[0-9]+)?)%)?")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What makes `pscale compare` fail; `least` is a relative difference in step time."""

    answer: str
    least: float

    def holds(self, comparison: Comparison) -> bool:
        """Tell whether any case is so."""
        if self.answer == "missing":
            return bool(comparison.missing) or not comparison.cases
        return any(
            compared.answer == self.answer and abs(compared.ratio.value - 1) >= self.least
            for compared in comparison.cases
        )


def run(a: Path, b: Path | None, as_format: str, fail_if: Sequence[str], relevant: str | None) -> int:
    """Print run B, or A's other variants, against run A; returns 1 if a condition of `fail_if` holds."""
    conditions = [condition(text) for text in fail_if]
    least = _relevant(relevant, conditions)
    comparison = compare(load(a), load(b), least) if b else variants(load(a), least)
    match as_format:
        case "md":
            print(report.render_markdown(comparison), end="")
        case "json":
            print(report.render_json(comparison))
        case "latex":
            print(report.render_latex(comparison), end="")
        case "csv":
            print(report.render_csv(comparison), end="")
        case _:
            report.render_terminal(comparison, new_console())
    return FAILED if any(condition.holds(comparison) for condition in conditions) else 0


def condition(text: str) -> Condition:
    """Read a condition such as "slower:3%" or "missing"."""
    found = _CONDITION.fullmatch(text)
    if found is None or found["answer"] not in _CONDITIONS:
        raise UsageError(
            f"--fail-if: expected slower, faster, unclear or missing, the first two also with a percentage "
            f"as in slower:3%, got '{text}'"
        )
    if found["percent"] and found["answer"] not in ("slower", "faster"):
        raise UsageError(f"--fail-if: {found['answer']} has no percentage, got '{text}'")
    return Condition(answer=found["answer"], least=float(found["percent"] or 0) / 100)


def _relevant(text: str | None, conditions: Sequence[Condition]) -> float:
    """Return the least difference that matters: as asked, else the least that is to fail, else the usual."""
    if text is not None:
        found = _PERCENT.fullmatch(text)
        if found is None or not float(found[1]) > 0:
            raise UsageError(f"--relevant: expected a percentage such as 5%, got '{text}'")
        return float(found[1]) / 100
    return min((condition.least for condition in conditions if condition.least), default=RELEVANT)
