"""The history of a suite as a page, in the manner of a run's report."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.history import SuiteHistory, is_worse
from pscale.report import drawing, text
from pscale.report.blocks import Block, Headlines, Listing, Picture, Section, Words
from pscale.report.comparison import history_sheet
from pscale.report.figure_style import BAD, INK, QUIET, sized
from pscale.report.page import Head, render
from pscale.report.vector import mark, vector

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 24  # cases that are drawn
_OPEN = 24  # rows that are not folded away
_BETTER = "#00818f"


def render_history(history: SuiteHistory) -> str:
    """Return the history as one HTML page that needs no other file."""
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
    verdict: Block = Headlines(warning="", lines=(("", sheet.headline),), more=lines)
    lead = _LEAD
    if len(history.cases) > _MOST:
        lead += f" {_MOST} of {len(history.cases):,} cases are drawn; the tables have all."
    listings: list[Block] = [
        Listing(
            name=f"history-{place}",
            table=table,
            folded=len(table.rows) > _OPEN,
        )
        for place, table in enumerate(sheet.tables)
    ]
    sections = [
        Section(name="verdict", title="Verdict", lead="", blocks=[verdict]),
        Section(name="course", title="Step times", lead=lead, blocks=_pictures(history)),
        Section(name="changes", title="Changes", lead="", blocks=listings),
    ]
    if sheet.notes:
        words = Words(title="Notes", lines=tuple(sheet.notes))
        sections.append(Section(name="notes", title="Notes", lead="", blocks=[words]))
    labels = {text.clean(case.label): case.label for case in history.cases}
    return render(head, [section for section in sections if section.blocks], labels)


_LEAD = (
    "Each dot is a run, corrected for the machine's pace where that was measured. Lines are levels, labelled "
    "with what else changed when they begin."
)


def _pictures(history: SuiteHistory) -> list[Block]:
    shown = history.cases[:_MOST]
    return [
        _picture(case, place, {each.run: each.cause for each in history.changes if each.label == case.label})
        for place, case in enumerate(shown)
    ]


def _picture(case: Row, place: int, causes: Mapping[str, str]) -> Picture:
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
