"""What compares runs, for every format: two runs, the variants of one, or the history of a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.text import Text

from pscale.analysis import messages, text
from pscale.analysis.columns import SERIES, Row, frame
from pscale.analysis.contrasts import Comparison
from pscale.analysis.frames import records
from pscale.analysis.history import SuiteHistory, is_worse
from pscale.analysis.stats import Estimate
from pscale.report.blocks import Headlines, Picture, Section, Words, listings
from pscale.report.figure_style import BAD, INK, QUIET, mark, sized, vector
from pscale.report.table import CASE, Column, Table, Tone, listed, print_list, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        from pscale.report.exports import csv_text
        from pscale.report.markup import latex, summary

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
    CASE,
    Column("A", text.duration, get="a_s"),
    Column("B", text.duration, get="b_s"),
    Column("B / A", "{:.3f}".format, get="ratio"),
    Column("95% interval", lambda ratio: f"{ratio.low:.3f}–{ratio.high:.3f}", interval=True, get=_interval),
    Column("effect", "{:+.2f}".format, wide=True, get="effect"),
    Column("p", text.number_2, wide=True, get="p_corrected"),
    Column("launches", str, wide=True, get=lambda row: f"{row.a_launches}, {row.b_launches}"),
)
_MISSING = (
    CASE,
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


def _change(row: Row) -> Estimate | None:
    ratio = _interval(row)
    return ratio and Estimate(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)


_CHANGE = (
    Column("change", text.change, get=lambda row: row.ratio.value - 1),
    Column("95% interval", text.change_interval, interval=True, wide=True, get=_change),
)
_CASES = (
    CASE,
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
    CASE,
    Column("from run", get="run"),
    Column("before", text.duration, wide=True, get="before_s"),
    Column("after", text.duration, get="after_s"),
    *_CHANGE,
    Column("p", text.number_2, wide=True, get="p"),
    Column("what changed", fold=True, get="cause"),
    Column("in the step", fold=True, wide=True, get=lambda change: change.parts or None),
)
_COUNTERS = (
    CASE,
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
    tables = (
        ("Cases", history.cases, _CASES, course),
        ("Changes of step times", history.changes, _LEVELS, ""),
        ("Changes of counters", history.counters, _COUNTERS, "of a step; exact, so any change is certain"),
    )
    how: dict[str, Any] = {"filled": True, "tone": _tone, "case": lambda row: text.clean(row.label)}
    cases = frame("histories", history.cases, {}).drop(columns=["runs", *SERIES["histories"]])
    return Sheet(
        sides={},
        headline=_of_history(history),
        answers=[f"{row.label}: {messages.case_history(row)}" for row in _worst_first(history.cases)],
        tables=[
            table
            for title, rows, columns, caption in tables
            for table in listed(title, rows, columns, caption=caption, **how)
        ],
        notes=[*messages.history_notes(history)],
        rows=cases.assign(text=[messages.case_history(case) for case in history.cases]),
    )


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


# The history of a suite as a page, in the manner of a run's report

_MOST_DRAWN = 24  # cases that are drawn
_BETTER = "#00818f"


def render_history(history: SuiteHistory) -> str:
    """Return the history as one HTML page that needs no other file."""
    from pscale.report.page import Head, render

    sheet = history_sheet(history)
    head = Head(
        of=f"history of {history.suite}",
        title=f"History of {history.suite}",
        facts=(("Runs", str(history.runs)), ("Written", datetime.now(UTC).date().isoformat())),
        source=f"from {text.plural(history.launches, 'launch')}. Definitions: docs/history.md in the "
        "source tree of pscale. "
        f"Complete tables: `pscale history {history.suite} --format json`.",
    )
    open_ = [case for case in history.cases if is_worse(case) or case.answer == "undecided"]
    lines = tuple((case.label, messages.case_history(case)) for case in open_)
    lead, drawn = _LEAD, history.cases[:_MOST_DRAWN]
    if len(history.cases) > len(drawn):
        lead += f" {_MOST_DRAWN} of {len(history.cases):,} cases are drawn; the tables have all."
    tables = listings(sheet.tables, "history")
    verdict = Headlines(warning="", lines=(("", sheet.headline),), more=lines)
    pictures = [_picture(case, place, history.changes) for place, case in enumerate(drawn)]
    notes = [Words(title="Notes", lines=tuple(sheet.notes))] * bool(sheet.notes)
    sections = [
        Section(name="verdict", title="Verdict", lead="", blocks=[verdict]),
        Section(name="course", title="Step times", lead=lead, blocks=pictures),
        Section(name="changes", title="Changes", lead="", blocks=tables),
        Section(name="notes", title="Notes", lead="", blocks=notes),
    ]
    labels = {text.clean(case.label): case.label for case in history.cases}
    return render(head, [section for section in sections if section.blocks], labels)


_LEAD = (
    "Each dot is a run, corrected for the machine's pace where that was measured. Lines are levels, labelled "
    "with what else changed when they begin."
)


def _picture(case: Row, place: int, changes: Sequence[Row]) -> Picture:
    from pscale.report import drawing

    causes = {each.run: each.cause for each in changes if each.label == case.label}
    with drawing.styled():
        figure = drawing.canvas(9.2, 2.4, "")
        _draw(figure.subplots(), case, causes)
        svg = drawing.place(figure).inline()
    return Picture(
        name=f"course-{place}",
        title=f"{text.clean(case.label)}: {messages.case_history(case)}",
        description=f"Step times of {len(case.runs)} runs, with {text.plural(len(case.levels), 'level')}.",
        vector=vector(svg, f"h{place}"),
        case=text.clean(case.label),
    )


def _draw(axes: Axes, case: Row, causes: Mapping[str, str]) -> None:
    times = [1e3 * each for each in case.steps_s]
    dots = axes.plot(range(len(times)), times, "o", color=QUIET, markersize=3)
    texts = [f"{run}: {text.duration(each)}" for run, each in zip(case.runs, case.steps_s, strict=True)]
    mark(dots[0], case.label, text.clean(case.label), texts)
    before = case.levels[0].step_s
    for level in case.levels:
        colour = INK if level.start == 0 else BAD if level.step_s > before else _BETTER
        axes.hlines(1e3 * level.step_s, level.start - 0.4, level.stop - 0.6, colors=colour, linewidth=1.8)
        before = level.step_s
    for level in case.levels[1:]:
        axes.axvline(level.start - 0.5, color=QUIET, linewidth=0.8, linestyle=":")
        words = text.clean(causes[case.runs[level.start]])
        axes.annotate(
            words if len(words) <= 40 else f"{words[:39]}…",
            (level.start - 0.4, 1.0),
            xycoords=("data", "axes fraction"),
            va="top",
            ha="left" if level.start < 0.7 * len(times) else "right",
            fontsize=sized(7.5),
        )
    low, high = min(times), max(times)
    room = max(high - low, 0.02 * high)
    axes.set_ylim(low - 0.15 * room, high + 0.35 * room)
    axes.set_xlabel("run")
    axes.set_ylabel("step time, ms")
