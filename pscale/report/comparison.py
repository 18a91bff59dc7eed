"""What compares runs, for every format: two runs, the variants of one, or the history of a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.text import Text

from pscale.analysis import messages
from pscale.analysis.columns import SERIES, Row, frame
from pscale.analysis.compare import Comparison
from pscale.analysis.frames import records
from pscale.analysis.history import SuiteHistory
from pscale.report import text
from pscale.report.printing import print_list, print_table
from pscale.report.table import Column, Table, Tone, listed

FORMAT = 2
_TONES: dict[str, Tone] = {"slower": "bad", "faster": "good", "equal": "", "undecided": "pending"}
_PER_BLOCK = 0.02  # of the median: what a block of the course is worth
_COURSE = 16  # blocks


class Sheet(NamedTuple):
    """A comparison for people: what is compared, the answer in one sentence, tables, notes; rows of CSV."""

    sides: Mapping[str, str]
    headline: str
    answers: Sequence[str]  # those that matter, case by case
    tables: Sequence[Table]
    notes: Sequence[str]
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        """What is compared with what; empty without sides."""
        return " against ".join(reversed([*self.sides.values()]))

    def print(self, console: Console) -> None:
        """Print the answer, then what may explain it."""
        for side, name in self.sides.items():
            console.print(Text(f"{side}  {text.clean(name)}", style="dim"))
        if self.sides:
            console.print()
        console.print(Text(self.headline, style="bold cyan"))
        for table in self.tables:
            print_table(table, console)
        print_list("Notes", self.notes, console)

    def render(self, as_format: str, outcome: str = "") -> str:
        """Return the comparison as Markdown, which begins with the outcome, LaTeX or CSV."""
        # On a terminal none of these is needed.
        from pscale.report.exports import csv_text  # noqa: PLC0415
        from pscale.report.latex import latex  # noqa: PLC0415
        from pscale.report.markdown import summary  # noqa: PLC0415

        if as_format == "csv":
            return csv_text(self.rows)
        if as_format == "latex":
            return latex(": ".join(filter(None, (self.title, self.headline))), self.tables)
        verdict = ": ".join(filter(None, (outcome, self.headline)))
        about = "; ".join(f"{side} is {name}" for side, name in self.sides.items())
        return summary(verdict, self.answers, self.tables, self.notes, about)


def _counted(answers: Sequence[str], words: Mapping[str, str]) -> list[str]:
    return [f"{answers.count(answer)} {words[answer]}" for answer in words if answer in answers]


def _worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return the cases of which there is something to say."""
    order = ["slower", "undecided", "faster"]
    told = [row for row in rows if row.answer in order or bool(getattr(row, "counter", ""))]
    return sorted(told, key=lambda row: order.index(row.answer) if row.answer in order else 0)


def _tone(row: Row) -> Tone:
    answer = getattr(row, "answer", None)
    if answer:
        return "bad" if getattr(row, "counter", "") else _TONES[answer]
    return "" if not hasattr(row, "ratio") else "bad" if row.ratio.value > 1 else "good"


def _interval(row: Row) -> Any:
    return row.ratio if row.ratio.low is not None and row.ratio.low < row.ratio.high else None


# Two runs, or variants of one

_COMPARED = (
    Column("case", fold=True, get="label"),
    Column("A", text.duration, get="a_s"),
    Column("B", text.duration, get="b_s"),
    Column("B / A", "{:.3f}".format, get="ratio"),
    Column("95% interval", lambda ratio: f"{ratio.low:.3f}–{ratio.high:.3f}", interval=True, get=_interval),
    Column("effect", "{:+.2f}".format, wide=True, get="effect"),
    Column("p", text.number_2, wide=True, get="p_corrected"),
    Column("launches", str, wide=True, get=lambda row: f"{row.a_launches}, {row.b_launches}"),
)
_MISSING = (
    Column("case", fold=True, get="label"),
    Column("not in", fold=True, get="run"),
    Column("reason", fold=True, get="reason"),
)
_CHANGED = (
    Column("what", fold=True, get="name"),
    Column("A", fold=True, get=lambda change: change.a or None),
    Column("B", fold=True, get=lambda change: change.b or None),
)


def comparison_sheet(comparison: Comparison) -> Sheet:
    """Return a comparison of two runs, or of the variants of one, for people."""
    rows, relevant = comparison.compared, comparison.relevant
    caption = "effect: Cliff's delta, -1 if every launch of B is faster, 1 if slower; p: corrected (Holm)"
    columns = (*_COMPARED, Column("answer", fold=True, get=lambda row: messages.compared(row, relevant)))
    return Sheet(
        sides={"A": comparison.a, "B": comparison.b},
        headline=_of_comparison(comparison),
        answers=[
            *(f"{row.label}: {messages.compared(row, relevant)}" for row in _worst_first(rows)),
            *(f"{row.label}: not compared: {row.reason}" for row in comparison.missing),
        ],
        tables=[
            *listed("Step times", rows, columns, caption=caption, tone=_tone),
            *listed("Not compared", comparison.missing, _MISSING, tone=lambda _: "pending"),
            *listed("What else differs", comparison.changes, _CHANGED),
        ],
        notes=[*messages.comparison_notes(comparison)],
        rows=frame("compared", rows, {}).assign(text=[messages.compared(row, relevant) for row in rows]),
    )


def _of_comparison(comparison: Comparison) -> str:
    answers = [row.answer for row in comparison.compared]
    if not answers:
        other = any(missing.run == "both" for missing in comparison.missing)
        return "No case does the same work in both runs." if other else "No case was measured in both runs."
    words = {"slower": "slower", "faster": "faster", "equal": "not different", "undecided": "undecided"}
    counted = ", ".join(_counted(answers, words))
    return f"Step times of B against A, {text.plural(len(answers), 'case')}: {counted}."


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return everything in a comparison for programs."""
    sheet = comparison_sheet(comparison)
    return {
        "format": FORMAT,
        "kind": "pscale comparison",
        **{name: getattr(comparison, name) for name in ("a", "b", "relevant")},
        "cases": records(sheet.rows),
        "missing": records(frame("missing", comparison.missing, {})),
        "changes": list(map(asdict, comparison.changes)),
        "notes": sheet.notes,
    }


# The history of a suite


def _bounds(ratio: Any) -> str:
    return f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"


_CHANGE = (
    Column("change", text.change, get=lambda row: row.ratio.value - 1),
    Column("95% interval", _bounds, interval=True, wide=True, get=_interval),
)
_CASES = (
    Column("case", fold=True, get="label"),
    Column("step time", text.duration, get="step_s"),
    Column("normal", text.duration, wide=True, get="normal_s"),
    *_CHANGE,
    Column("course", get=lambda case: text.sparkline(case.steps_s, _COURSE, _PER_BLOCK)),
    Column("runs", str, wide=True, get=lambda case: len(case.runs)),
    Column("answer", fold=True, get=messages.case_history),
    Column("since", wide=True, get=lambda case: case.since or None),
    Column("what changed", fold=True, get=lambda case: case.cause or None),
)
_LEVELS = (
    Column("case", fold=True, get="label"),
    Column("from run", get="run"),
    Column("before", text.duration, wide=True, get="before_s"),
    Column("after", text.duration, get="after_s"),
    *_CHANGE,
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


def history_sheet(history: SuiteHistory) -> Sheet:
    """Return the history of a suite for people."""
    course = (
        "course: each block is the slowest of some runs; ▄ is the median, "
        f"one block higher is {_PER_BLOCK:.0%} more"
    )
    exact = "of a step; exact, so any change is certain"
    tables = (
        ("Cases", history.cases, _CASES, course),
        ("Changes of step times", history.changes, _LEVELS, ""),
        ("Changes of counters", history.counters, _COUNTERS, exact),
    )
    cases = frame("histories", history.cases, {}).drop(columns=["runs", *SERIES["histories"]])
    return Sheet(
        sides={},
        headline=_of_history(history),
        answers=[f"{row.label}: {messages.case_history(row)}" for row in _worst_first(history.cases)],
        tables=[
            table
            for title, rows, columns, caption in tables
            for table in listed(title, rows, columns, caption=caption, filled=True, tone=_tone, case=_label)
        ],
        notes=[*messages.history_notes(history)],
        rows=cases.assign(text=[messages.case_history(case) for case in history.cases]),
    )


def _label(row: Row) -> str:
    return text.clean(row.label)


def _of_history(history: SuiteHistory) -> str:
    grown = sum(bool(case.counter) for case in history.cases)
    answers = [case.answer for case in history.cases if not case.counter]
    words = {"slower": "slower", "undecided": "undecided", "faster": "faster", "equal": "unchanged"}
    counted = [f"{grown} with more work"] * bool(grown) + _counted(answers, words)
    return f"{history.suite}, {text.plural(history.runs, 'run')}: {', '.join(counted) or 'no cases'}."


def history_document(history: SuiteHistory) -> dict[str, Any]:
    """Return everything in the history of a suite for programs."""
    sheet = history_sheet(history)
    return {
        **{name: getattr(history, name) for name in ("answer", "suite", "runs", "launches")},
        "damaged": messages.damaged_lines(history.damaged),
        "notes": sheet.notes,
        "cases": [
            {**values, **{name: getattr(case, name) for name in ("runs", "steps_s", "levels")}}
            for values, case in zip(records(sheet.rows), history.cases, strict=True)
        ],
        "changes": records(frame("level_changes", history.changes, {})),
        "counters": records(frame("counter_changes", history.counters, {})),
    }
