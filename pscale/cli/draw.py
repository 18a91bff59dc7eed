"""The schedules of a suite's pipelines, as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pscale.cli.schedules import NONE, different
from pscale.config import Case
from pscale.errors import UsageError
from pscale.parallel.dry_run import Slot, dry_run
from pscale.parallel.schedule import Timetable
from pscale.report import style
from pscale.report.draw_schedule import Bar, Pipeline, schedules

FORMATS = ("svg", "png", "pdf")


def draw(cases: Sequence[Case], path: Path, title: str) -> None:
    """Draw every different pipeline into one figure; its format is that of the file's name."""
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"--figure '{path}': expected a name that ends in .{', .'.join(FORMATS)}")
    pipelines = [_pipeline(title, drawn) for title, drawn in different(cases)]
    if not pipelines:
        raise UsageError(f"--figure '{path}': there is nothing to draw. {NONE}")
    with style.styled():
        figure = schedules(pipelines, title)
        path.parent.mkdir(parents=True, exist_ok=True)
        style.place(figure).save(path.parent, path.stem, [kind])


def _pipeline(title: str, drawn: Timetable) -> Pipeline:
    stages = [[_bar(slot, drawn) for slot in stage] for stage in dry_run(drawn)]
    return Pipeline(title=title, chunks=drawn.chunks, stages=stages)


def _bar(slot: Slot, drawn: Timetable) -> Bar:
    """Return a slot as it is drawn: a stage's work is the same in however many chunks it is cut."""
    action = slot.action
    return Bar(
        kind="backward" if action.kind == "input" else action.kind,
        micro=action.micro,
        chunk=action.part // drawn.stages,
        start=slot.start / drawn.chunks,
        stop=slot.stop / drawn.chunks,
    )
