"""One launch of a workload: its folder, its command, and the figures in what it leaves."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pscale.config import Case, workload_command
from pscale.launch.figures import NotThereError, OutputSearch, readings
from pscale.launch.local import Observer
from pscale.launch.machine import Machine, place
from pscale.launch.outcome import STDERR, STDOUT, Verdict, cause, last_words, tail
from pscale.launch.search import visible
from pscale.runs import atomic_files
from pscale.runs.journal import Journal
from pscale.runs.launch_folder import LaunchFolder
from pscale.runs.run_events import Built

INSIDE = "work"  # the folder in which the program runs, in that of its launch
_LARGEST_FILE = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Watching:
    """How the recorder of MPI calls gets around a program, and how it tells that one hangs."""

    loading: Callable[[Sequence[str], Case], tuple[str, ...]]  # the words before a command
    variable: str  # of the environment, which names the folder of the record
    notes: str  # that folder, in the folder of a launch
    observer: Callable[[Case, Path], Observer]  # of a launch in a folder
    why_apart: Callable[[Path, int], str | None]  # why so many ranks are not one world, by the record so far


def started(case: Case, folder: Path, machine: Machine, watching: Watching | None = None) -> tuple[str, ...]:
    """Return the command of a rank in the launch of a workload in `folder`, recorded if `watching` is given.

    Raises LaunchError where it is to be watched and cannot be.
    """
    words = workload_command.arguments(case, place(case, machine).nodes)
    if watching is None:
        return words
    return (*watching.loading(words, case), f"{watching.variable}={folder / watching.notes}", *words)


def is_checked(case: Case) -> bool:
    """Tell whether a launch under the recorder shows first that the ranks of this case are one world."""
    return bool(
        case.workload.command
        and case.ranks > 1
        and case.workload.watch is not True
        and case.launch.check_ranks
    )


def program_of(case: Case) -> str:
    """Return what cases have in common of which one is checked: the command, before values are put in."""
    return " ".join([case.workload.command, workload_command.innermost(workload_command.arguments(case))])


@dataclass(frozen=True, kw_only=True)
class Work:
    """The folder in which a program runs, and its input files as they were copied there."""

    folder: LaunchFolder
    inputs: Mapping[str, tuple[int, int]]  # by name: inode and time of the last change in ns

    def is_written(self, name: str) -> bool:
        """Tell whether the program has written this file, or anything there is under this name."""
        return name not in self.inputs or self.inputs[name] != _state(self.folder.path / name)


def prepare(case: Case, folder: Path) -> Work:
    """Make the folder in which the program runs, with its input files."""
    inside = folder / INSIDE
    inside.mkdir()
    copies = [atomic_files.copy(path, inside) for path in workload_command.inputs(case)]
    inputs = {path.name: state for path in copies if (state := _state(path))}
    return Work(folder=LaunchFolder(inside), inputs=inputs)


def _state(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        facts = os.lstat(path)
        return facts.st_ino, facts.st_mtime_ns
    return None


def changed(case: Case) -> str:
    """Say which file is no longer what it was when the run began; empty if none is."""
    now = workload_command.digests(case)
    names = [name for name, digest in case.program.sha256.items() if now.get(name) != digest]
    return f"{', '.join(names)} changed after the run began: `pscale run` starts a new one" if names else ""


class Judge:
    """How a launch of a case ended, by its output and by what its program left in `work`."""

    def __init__(self, case: Case, work: Work, search: Callable[..., OutputSearch] = OutputSearch):
        self._case, self._work, self._search = case, work, cache(partial(search, case))

    def read_on(self, folder: LaunchFolder, log: str, end: int) -> None:
        """Search a log up to a byte, before parts of it are left out."""
        self._search(folder).advance(log, end)

    def __call__(self, folder: LaunchFolder, exit_code: int) -> Verdict:
        """Return how the launch in `folder` ended; of the program's files only those asked for are kept."""
        case, search = self._case, self._search(folder)
        try:
            if exit_code != case.workload.success.exit:
                unlike = _unlike(case.workload.success.exit, folder, exit_code)
                return Verdict(status="failed", reason=f"{unlike}{last_words(folder, STDERR, STDOUT)}")
            search.finish()
            figures = readings(case, search, partial(_content, self._work))
            _keep(case, self._work)
        except NotThereError as error:
            return Verdict(status="failed", reason=f"{error}{last_words(folder, STDOUT, STDERR)}")
        return Verdict(status="ok", figures=figures)


def _unlike(asked: int, folder: LaunchFolder, exit_code: int) -> str:
    """Say how a launch ended that should have ended with another exit code."""
    said = cause(folder, exit_code) if exit_code else "exit code 0"
    return f"{said}, not {asked}" if asked else said


def _content(work: Work, figure: str, file: str) -> bytes:
    """Return what is in the file that a figure is in."""
    missing = f"there is no figure {figure}: the program wrote no {file}"
    if not work.folder.is_in_place():
        raise NotThereError(f"{missing} in {work.folder.path}: it has put something else in that place")
    if not work.is_written(file):
        raise NotThereError(f"{missing}: that of `files.in` is unchanged")
    try:
        with work.folder.open(file) as written:
            content = written.read(_LARGEST_FILE + 1)
    except OSError as error:
        seen = f": {file} {error.strerror}" if os.path.lexists(work.folder.path / file) else ""
        raise NotThereError(f"{missing}{seen}") from None
    if len(content) > _LARGEST_FILE:
        raise NotThereError(f"figure {figure}: {file} has more than {_LARGEST_FILE >> 20} MiB")
    return content


def _keep(case: Case, work: Work) -> None:
    """Leave only the files that are to be kept; what the program has put in the folder's place, as it is."""
    inside, is_in_place = work.folder.path, work.folder.is_in_place()
    kept: set[str] = set()
    for pattern in workload_command.outputs(case):
        found = [
            str(path.relative_to(inside))
            for path in (inside.glob(pattern) if is_in_place else ())
            if path.is_file() and path.resolve().is_relative_to(inside.resolve())
        ]
        written = [name for name in found if work.is_written(name)]
        if not written:
            unchanged = ": that of `files.in` is unchanged" if found else ""
            raise NotThereError(f"the program left no file {pattern}{unchanged}")
        kept.update(written)
    if is_in_place:
        work.folder.clear(kept)
        if not kept:
            with suppress(OSError):  # it is not empty
                inside.rmdir()


_QUOTED_LINES = 3


def build(journal: Journal, cases: Sequence[Case], tell: Callable[[str], None]) -> None:
    """Run what builds these cases and was not run yet; the journal keeps how it ended and what it made."""
    notes = builds_of(journal)
    reasons = {note.command: note.reason for note in notes.values()}
    for case in cases:
        if not case.workload.build or case.id in notes:
            continue
        words = workload_command.arguments(case, build=True)
        command = shlex.join(words)
        if command not in reasons:
            tell(f"building: {command}")
            reasons[command] = _ended(words, case)
        made = dict(workload_command.digests(case))
        journal.note(Built(case=case.id, command=command, reason=reasons[command], sha256=made))


def why_not_built(case: Case, note: Built | None) -> str:
    """Say why a case that is built, as a run notes, cannot be launched; empty: it can."""
    if not case.workload.build or note is None:
        return ""
    made, now = note.sha256, workload_command.digests(case)
    changed = [name for name in {**made, **now} if made.get(name) != now.get(name)]
    if changed and not note.reason:
        return f"{', '.join(changed)} changed after it was built: `pscale run --new` starts another run"
    return note.reason


def builds_of(journal: Journal) -> Mapping[str, Built]:
    """Return how the builds of a run have ended, by case."""
    return {event.case: event for event in journal.events() if isinstance(event, Built)}


def _ended(words: Sequence[str], case: Case) -> str:
    """Run a build, at most as long as a launch may take; say why it failed, empty if it did not."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                words,
                cwd=case.program.folder,
                env={**os.environ, **case.launch.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return f"the build cannot be started: {words[0]}: {error.strerror}"
        try:
            code = process.wait(case.launch.time_limit_s)
            ending = f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, ending = 1, f"no end after {case.launch.time_limit_s:g} s (time_limit)"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = [visible(line.strip()) for line in _read(log).splitlines() if line.strip()]
    if code == 0:
        return ""
    said = " / ".join(lines[-_QUOTED_LINES:])
    return f"the build failed, {ending}{f': {said}' if said else ''}"


def _read(log: Any) -> str:
    return tail(os.fdopen(os.dup(log.fileno()), "rb"))
