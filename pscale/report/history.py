"""The history of a suite in tables: how its cases stand, and every change of a level or a counter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from pscale.analysis import messages
from pscale.analysis.columns import SERIES, Row, frame
from pscale.analysis.frames import records
from pscale.analysis.history import SuiteHistory, is_worse
from pscale.analysis.stats import Estimate
from pscale.report import text
from pscale.report.printing import print_list, print_table
from pscale.report.table import Column, Table, Tone, Value, listed

FORMAT = 2
_PER_BLOCK = 0.02  # of the median: what a block of the course is worth
_TONES: dict[str, Tone] = {"slower": "bad", "faster": "good", "equal": "", "undecided": "pending"}
_COURSE = 16  # blocks


def render_terminal(found: SuiteHistory, console: Console) -> None:
    """Print how the cases stand, then what changed."""
    console.print(Text(headline(found), style="bold cyan"))
    for table in tables(found):
        print_table(table, console)
    print_list("Notes", [*messages.history_notes(found)], console)


def headline(found: SuiteHistory) -> str:
    """Return one sentence on all cases."""
    grown = sum(bool(case.counter) for case in found.cases)
    answers = [case.answer for case in found.cases if not case.counter]
    words = {"slower": "slower", "undecided": "undecided", "faster": "faster", "equal": "unchanged"}
    counted = [f"{grown} with more work"] if grown else []
    counted += [f"{answers.count(answer)} {word}" for answer, word in words.items() if answer in answers]
    return f"{found.suite}, {text.plural(found.runs, 'run')}: {', '.join(counted) or 'no cases'}."


def _course(case: Row) -> str:
    return text.sparkline(case.steps_s, _COURSE, _PER_BLOCK)


def _bounds(ratio: Estimate) -> str:
    return f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"  # type: ignore[operator]


def _interval(found: Row) -> Value:
    return found.ratio if found.ratio.low is not None and found.ratio.low < found.ratio.value else None


def _change(found: Row) -> float:
    return float(found.ratio.value) - 1


_CASES = (
    Column("case", fold=True, get="label"),
    Column("step time", text.duration, get="step_s"),
    Column("normal", text.duration, wide=True, get="normal_s"),
    Column("change", text.change, get=_change),
    Column("95% interval", _bounds, interval=True, wide=True, get=_interval),
    Column("course", get=_course),
    Column("runs", str, wide=True, get=lambda case: len(case.runs)),
    Column("answer", fold=True, get=messages.case_history),
    Column("since", wide=True, get=lambda case: case.since or None),
    Column("what changed", fold=True, get=lambda case: case.cause or None),
)
_CHANGES = (
    Column("case", fold=True, get="label"),
    Column("from run", get="run"),
    Column("before", text.duration, wide=True, get="before_s"),
    Column("after", text.duration, get="after_s"),
    Column("change", text.change, get=_change),
    Column("95% interval", _bounds, interval=True, wide=True, get=_interval),
    Column("p", text.number_2, wide=True, get="p"),
    Column("what changed", fold=True, get="cause"),
    Column("in the step", fold=True, wide=True, get=lambda change: change.parts or None),
)
_COUNTERS = (
    Column("case", fold=True, get="label"),
    Column("from run", get="run"),
    Column("counter", fold=True, get="counter"),
    Column("before", "{:,.10g}".format, get="before"),
    Column("after", "{:,.10g}".format, get="after"),
    Column("what changed", fold=True, get="cause"),
)


def tables(found: SuiteHistory) -> Iterator[Table]:
    """Yield the tables for people."""
    caption = (
        "course: each block is the slowest of some runs; ▄ is the median, "
        f"one block higher is {_PER_BLOCK:.0%} more"
    )
    yield from listed(
        "Cases",
        found.cases,
        _CASES,
        caption=caption,
        filled=True,
        tone=lambda case: "bad" if is_worse(case) else _TONES[case.answer],
        case=_label,
    )
    yield from listed("Changes of step times", found.changes, _CHANGES, tone=_tone, case=_label)
    said = "of a step; exact, so any change is certain"
    yield from listed("Changes of counters", found.counters, _COUNTERS, caption=said, case=_label)


def _label(finding: Row) -> str:
    return text.clean(finding.label)


def _tone(change: Row) -> Tone:
    return "bad" if change.ratio.value > 1 else "good"


def data(found: SuiteHistory) -> pd.DataFrame:
    """Return the cases for programs, with their sentences."""
    table = frame("histories", found.cases, {}).drop(columns=["runs", *SERIES["histories"]])
    return table.assign(text=[messages.case_history(case) for case in found.cases])


def document(found: SuiteHistory) -> dict[str, Any]:
    """Return everything for programs."""
    return {
        "answer": found.answer,
        **{name: getattr(found, name) for name in ("suite", "runs", "launches")},
        "damaged": messages.damaged_lines(found.damaged),
        "notes": [*messages.history_notes(found)],
        "cases": [
            {**known, **{name: getattr(case, name) for name in ("runs", "steps_s", "levels")}}
            for known, case in zip(records(data(found)), found.cases, strict=True)
        ],
        "changes": records(frame("level_changes", found.changes, {})),
        "counters": records(frame("counter_changes", found.counters, {})),
    }
