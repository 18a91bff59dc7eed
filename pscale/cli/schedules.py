"""The schedules of a suite's pipelines, as text and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pscale.config import Case
from pscale.errors import UsageError
from pscale.parallel.pipeline import timetable
from pscale.parallel.schedule import Timetable
from pscale.parallel.schedule_timing import bubble, table, time_slots

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


def check_figure(path: Path) -> None:
    """Raise UsageError for the name of a figure that says no format."""
    if path.suffix.removeprefix(".") not in FORMATS:
        raise UsageError(f"--figure '{path}': expected a name that ends in .{', .'.join(FORMATS)}")


def draw(cases: Sequence[Case], path: Path, title: str) -> None:
    """Draw every different pipeline into one figure; its format is that of the file's name."""
    check_figure(path)
    found = different(cases)
    if not found:
        raise UsageError(f"--figure '{path}': there is nothing to draw. {NONE}")
    from pscale.analysis.columns import Row, row
    from pscale.report import drawing
    from pscale.report.step_figure import draw_steps

    def spans(drawn: Timetable) -> list[Row]:  # a part's work is the same in however many chunks
        slots = time_slots(drawn)
        length = max(slot.stop for of_stage in slots for slot in of_stage) / drawn.chunks
        return [
            row(
                "timeline",
                stages=drawn.stages,
                length_s=length,
                rank=stage,
                kind="backward" if slot.action.kind == "input" else slot.action.kind,
                micro=slot.action.micro,
                part=slot.action.part,
                start_s=slot.start / drawn.chunks,
                stop_s=slot.stop / drawn.chunks,
            )
            for stage, of_stage in enumerate(slots)
            for slot in of_stage
        ]

    looks: Any = {"row": "stage", "across": "time, in forwards of a stage", "write": "{:g}".format}
    with drawing.styled():
        steps = [spans(drawn) for _, drawn in found]
        drawing.save(draw_steps(steps, [named for named, _ in found], title, **looks), path)
