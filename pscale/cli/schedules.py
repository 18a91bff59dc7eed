"""The schedules of a suite's pipelines, as text."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Case
from pscale.parallel.dry_run import bubble, dry_run, table
from pscale.parallel.pipeline import timetable
from pscale.parallel.schedule import Timetable

NONE = "No case has more than one pipeline stage."


def different(cases: Sequence[Case]) -> list[tuple[str, Timetable]]:
    """Return every different pipeline with a title: the first case that has it, and how long stages idle."""
    tables = {timetable(case.plan, case.train.micro_batches): case for case in reversed(cases)}
    return [(_title(case, drawn), drawn) for drawn, case in reversed(tables.items()) if drawn.stages > 1]


def texts(cases: Sequence[Case]) -> list[str]:
    """Return a table of every different pipeline."""
    return [f"{title}\n{table(drawn)}" for title, drawn in different(cases)] or [NONE]


def _title(case: Case, drawn: Timetable) -> str:
    named = case.label if drawn.schedule in case.label else f"{case.label}: {drawn.schedule}"
    return f"{named}, bubble {bubble(dry_run(drawn)):.1%} of the work if all parts cost the same"
