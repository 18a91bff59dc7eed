"""The history of a suite in tables: how its cases stand, and every change of a level or a counter."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from pscale.analysis.history import CaseHistory, CounterChange, LevelChange, SuiteHistory
from pscale.analysis.stats import Estimate
from pscale.report import text
from pscale.report.printing import print_list, print_table
from pscale.report.table import Column, Table, Tone, Value, listed, table_of

FORMAT = 1
_PER_BLOCK = 0.02  # of the median: what a block of the course is worth
_TONES: dict[str, Tone] = {"worse": "bad", "better": "good", "same": "", "undecided": "pending"}
_COURSE = 16  # blocks


def render_terminal(found: SuiteHistory, console: Console) -> None:
    """Print how the cases stand, then what changed."""
    console.print(Text(headline(found), style="bold cyan"))
    for table in tables(found):
        print_table(table, console)
    print_list("Notes", found.notes, console)


def headline(found: SuiteHistory) -> str:
    """Return one sentence on all cases."""
    answers = [case.answer for case in found.cases]
    counted = [
        f"{answers.count(answer)} {word}"
        for answer, word in (
            ("worse", "worse"),
            ("undecided", "undecided"),
            ("better", "better"),
            ("same", "unchanged"),
        )
        if answer in answers
    ]
    return f"{found.suite}, {text.plural(found.runs, 'run')}: {', '.join(counted) or 'no cases'}."


def _course(case: CaseHistory) -> str:
    return text.sparkline(case.steps_s, _COURSE, _PER_BLOCK)


def _bounds(ratio: Estimate) -> str:
    return f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"  # type: ignore[operator]


def _interval(found: CaseHistory | LevelChange) -> Value:
    return found.ratio if found.ratio.low is not None and found.ratio.low < found.ratio.value else None


def _change(found: CaseHistory | LevelChange) -> Value:
    return found.ratio.value - 1


_CASES = (
    Column("case", fold=True, get="label"),
    Column("step time", text.duration, get=lambda case: case.levels[-1].step_s),
    Column("normal", text.duration, wide=True, get="normal_s"),
    Column("change", text.change, get=_change),
    Column("95% interval", _bounds, interval=True, wide=True, get=_interval),
    Column("course", get=_course),
    Column("runs", str, wide=True, get=lambda case: len(case.runs)),
    Column("answer", fold=True, get="text"),
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
        tone=lambda case: _TONES[case.answer],
        case=_label,
    )
    changes = [change for case in found.cases for change in case.changes]
    yield from listed("Changes of step times", changes, _CHANGES, tone=_tone, case=_label)
    counters = [change for case in found.cases for change in case.counters]
    said = "of a step; exact, so any change is certain"
    yield from listed("Changes of counters", counters, _COUNTERS, caption=said, case=_label)


def _label(finding: CaseHistory | LevelChange | CounterChange) -> str:
    return text.clean(finding.label)


def _tone(change: LevelChange) -> Tone:
    return "bad" if change.ratio.value > 1 else "good"


def data(found: SuiteHistory) -> Table:
    """Return the cases for programs."""
    return table_of(found.cases, CaseHistory, left_out=("runs", "steps_s", "levels", "changes", "counters"))
