"""The schedules of a suite's pipelines, as text and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pscale.config import Case
from pscale.errors import UsageError
from pscale.parallel.pipeline import timetable
from pscale.parallel.schedule import Timetable
from pscale.parallel.schedule_timing import Slot, bubble, table, time_slots

NONE = "No case has more than one pipeline stage."
FORMATS = ("svg", "png", "pdf")


def different(cases: Sequence[Case]) -> list[tuple[str, Timetable]]:
    """Return every different pipeline with a title: the first case that has it, and how long stages idle."""
    tables = {timetable(case.plan, case.train.micro_batches): case for case in reversed(cases)}
    return [(_title(case, drawn), drawn) for drawn, case in reversed(tables.items()) if drawn.stages > 1]


def texts(cases: Sequence[Case], columns: int) -> list[str]:
    """Return a table of every different pipeline, no wider than `columns` characters."""
    return [f"{title}\n{table(drawn, columns)}" for title, drawn in different(cases)] or [NONE]


def _title(case: Case, drawn: Timetable) -> str:
    named = case.label if drawn.schedule in case.label else f"{case.label}: {drawn.schedule}"
    return f"{named}, bubble {bubble(time_slots(drawn)):.1%} of the work if all parts cost the same"


def figure_format(path: Path) -> str:
    """Return the format of a figure that has this name; raises UsageError where there is none."""
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"--figure '{path}': expected a name that ends in .{', .'.join(FORMATS)}")
    return kind


def draw(cases: Sequence[Case], path: Path, title: str) -> None:
    """Draw every different pipeline into one figure; its format is that of the file's name."""
    kind = figure_format(path)
    found = different(cases)
    if not found:
        raise UsageError(f"--figure '{path}': there is nothing to draw. {NONE}")
    from pscale.report import drawing
    from pscale.report.schedules import Bar, Pipeline, schedules

    def bar(slot: Slot, drawn: Timetable) -> Bar:  # a stage's work is the same in however many chunks
        kind = "backward" if slot.action.kind == "input" else slot.action.kind
        chunk = slot.action.part // drawn.stages
        return Bar(kind, slot.action.micro, chunk, slot.start / drawn.chunks, slot.stop / drawn.chunks)

    pipelines = [
        Pipeline(
            title=named,
            chunks=drawn.chunks,
            stages=[[bar(slot, drawn) for slot in stage] for stage in time_slots(drawn)],
        )
        for named, drawn in found
    ]
    with drawing.styled():
        figure = schedules(pipelines, title)
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.place(figure).save(path.parent, path.stem, [kind])
