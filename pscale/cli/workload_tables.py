"""What is written of a launch of a workload: its figures and, if it is watched, the tables of its calls."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pscale.config import Case, Launch
from pscale.config.workload import WALL
from pscale.config.workload_command import WRITE_ALONE, arguments, innermost, is_launcher
from pscale.errors import LaunchError, ResultsError
from pscale.launch.launcher import Launcher
from pscale.launch.local import Observer
from pscale.launch.outcome import Outcome, Reading
from pscale.launch.runner import CaseLaunch
from pscale.launch.workload import Watching
from pscale.runs.host import as_ranges
from pscale.runs.journal import Journal
from pscale.runs.launch_folder import LaunchFolder
from pscale.runs.run_events import Key
from pscale.runs.step_time import step_time_of
from pscale.runs.store import write_columns, write_part
from pscale.watch.preload import FOLDER, preload_words, program_library, sibling_library

if TYPE_CHECKING:
    from pscale.watch.notes import Recorded

NOTES = "notes"  # the folder of a launch in which its ranks write their calls


def sibling_launcher(asked: str, library: Path | None) -> str:
    """Return the launcher that is installed with a library, unless one is asked for.

    Systems that have several MPIs name launchers after them, as Debian does.
    """
    if library is None or asked != "auto":
        return asked
    folders = (library.parent.resolve() / library.name).parents[1:3]  # /lib may be a link to /usr/lib
    names = f"mpiexec.{'mpich' if 'mpich' in library.name else 'openmpi'}", "mpiexec"
    found = (folder / "bin" / name for name in names for folder in folders)
    return next((str(path) for path in found if path.is_file()), asked)


def launcher_of(case: Case) -> str:
    """Return what a case's `launcher` is: for a program by default that of the MPI library that it loads.

    Under the launcher of another library every rank would be alone in a world of its own.
    """
    asked = case.launch.launcher
    if not case.workload.command or asked != "auto":
        return asked
    return sibling_launcher(asked, library_of_command(arguments(case), case.launch))


def library_of_command(words: Sequence[str], launch: Launch) -> Path | None:
    """Return the MPI library of the program that a command starts, if it is known."""
    program = innermost(words)
    before = [word.partition("=") for word in words[: words.index(program)]]  # such as of `env A=1 ./a.out`
    environ = {**os.environ, **launch.env, **{name: value for name, equals, value in before if equals}}
    return program_library(Path(shutil.which(program) or words[0]), environ, launch.launcher)


def watching(launcher: Launcher) -> Watching:
    """Return how workloads are watched that `launcher` starts."""

    def loading(words: Sequence[str], case: Case) -> tuple[str, ...]:
        library = library_of_command(words, case.launch) or sibling_library(Path(launcher.path))
        return preload_words(library, {**os.environ, **case.launch.env})

    return Watching(loading=loading, variable=FOLDER, notes=NOTES, observer=_observer, why_apart=why_apart)


def _observer(case: Case, folder: Path) -> Observer:
    return observer_of(folder / NOTES, case.launch.hang_after_s)


def observer_of(notes: Path, hang_after_s: float | None) -> Observer:
    """Return what the record of a program tells while it runs; its folder is there."""
    from pscale.watch.hang import Progress

    progress = Progress(notes, hang_after_s or math.inf)
    return Observer(is_stuck=progress.is_stuck, is_joining=progress.is_joining, ending=progress.ending)


def program_columns(
    journal: Journal, launch: CaseLaunch, outcome: Outcome, analysed: Callable[[float], None]
) -> dict[str, Any]:
    """Write the tables of a launch of a workload; return what its row says of it."""
    case, figures = launch.case, outcome.figures
    columns: dict[str, Any] = {}
    if case.is_watched(launch.repeat) and outcome.status in ("ok", "hung"):
        try:
            columns = _watched(journal, launch, outcome, analysed)
        except (LaunchError, ResultsError) as error:
            reason = str(error).replace(f"{journal.folder}/", "")
            if outcome.status != "ok" or case.workload.watch is True or isinstance(error, LaunchError):
                return {"status": "failed", "reason": reason}
            columns = {"provenance": json.dumps({"watch": [f"Its calls were not recorded: {reason}"]})}
    if outcome.status != "ok" or case.well(launch.repeat) != "ok":
        return columns
    timed = write_figures(journal, launch.key, case, figures)
    if case.workload.lists_steps:
        found = figures[case.workload.times]
        steps = [case.workload.step_s(step, found.unit) for step in found.steps]
        return _step_columns(journal, launch, steps)
    usual = outcome.wall_s if case.workload.times == WALL else columns.get("step_s")
    return {**columns, "step_s": usual, **timed}


def write_figures(journal: Journal, key: Key, case: Case, figures: Mapping[str, Reading]) -> dict[str, Any]:
    """Write the figures of a launch; return what its row says of the step time if that is one of them."""
    rows = [
        {"figure": name, **{column: getattr(found, column) for column in ("value", "unit", "resolution")}}
        | {"better": case.workload.figures[name].better}
        for name, found in figures.items()
    ]
    if rows:
        write_part(journal.data, "figures", *key, rows)
    if (found := figures.get(case.workload.times)) is None:
        return {}
    step_s = case.workload.step_s(found.value, found.unit)
    resolution_s = found.resolution / found.value * step_s if found.resolution else None
    return {"step_s": step_s, "step_resolution_s": resolution_s}


def _step_columns(journal: Journal, launch: CaseLaunch, steps_s: Sequence[float]) -> dict[str, Any]:
    """Write the steps of a launch whose program tells their times; return what its row says of them."""
    count, ends_s = len(steps_s), list(itertools.accumulate(steps_s))
    numbers = {"rank": [0] * count, "step": [*range(count)], "phase": ["program"] * count}
    write_columns(journal.data, "steps", *launch.key, {**numbers, "wall_s": steps_s, "end_s": ends_s})
    return {"steps": count, "warmup": 0, "step_s": step_time_of(steps_s)}


def read_of(notes: Path | LaunchFolder, ranks: int) -> Recorded:
    """Read what so many ranks recorded; raises LaunchError where they are not one world."""
    from pscale.watch.notes import read

    recorded = read(notes)
    if why := why_apart(notes, ranks):
        raise LaunchError(why)
    return recorded


def why_apart(notes: Path | LaunchFolder, ranks: int) -> str | None:
    """Say why so many ranks are not one world; empty: they are; None: the record tells neither so far."""
    from pscale.watch.notes import worlds

    try:
        found, programs = worlds(notes)
    except ResultsError:
        return None
    sizes = [world[0].size for world in found]
    launchers = [name for name in programs if is_launcher(name)]
    if launchers and len(several := [size for size in sizes if size > 1]) > 1:
        return (
            f"each of {ranks} ranks has started {launchers[0]}, which starts ranks itself: they are "
            f"{len(several)} worlds of {as_ranges(sorted({*several}), ', ')} ranks; {WRITE_ALONE}"
        )
    if ranks in sizes:
        return None if launchers else ""
    if sum(map(len, found)) < ranks:
        return None
    library = found[-1][0].library.partition(",")[0] or "which is not known"
    return (
        f"{ranks} ranks were started, and the program found itself in a world of {max(sizes)}: "
        f"the launcher is not that of its MPI library, {library}; name its mpiexec with --launcher, "
        "in a suite `launch: {launcher: /path/to/mpiexec}`"
    )


def _watched(
    journal: Journal, launch: CaseLaunch, outcome: Outcome, analysed: Callable[[float], None]
) -> dict[str, Any]:
    """Write the tables of what ranks recorded; of a launch that hung, return where they were."""
    from pscale.watch.tables import record_tables

    recorded = read_of(journal.case_folder(launch.key) / NOTES, launch.case.ranks)
    found = record_tables(recorded, progressed=analysed)
    if outcome.status == "hung":
        still = f"no progress for {launch.case.launch.hang_after_s:g} s"
        return {"reason": ". ".join([still, *found.warnings])}
    kept = launch.case.timing.trace
    for name, columns in found.tables.items():
        if name != "events" or (kept if kept is not None else launch.repeat == launch.case.launch.warmup):
            write_columns(journal.data, name, *launch.key, columns)
    said = {"mpi": {"library": found.library}, "watch": [*found.notes, *found.warnings]}
    return {**found.columns, "provenance": json.dumps(said)}
