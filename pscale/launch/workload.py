"""One launch of a workload: its folder, its command, and the figures in what it leaves."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pscale import atomic_files, workload_command
from pscale.config import Case
from pscale.config.workload import Figure, compiled, number
from pscale.launch.machine import Machine, place
from pscale.launch.outcome import STDERR, STDOUT, Verdict, cause, last_words
from pscale.launch_folder import LaunchFolder

INSIDE = "work"  # the folder in which the program runs, in that of its launch
_READ_BYTES = 64 << 20  # of each stream, from its end; of a JSON file


@dataclass(frozen=True, kw_only=True)
class Watching:
    """How the recorder of MPI calls gets around a program, and how it tells that one hangs."""

    loading: Callable[[str], tuple[str, ...]]  # the words before a program, given its path
    variable: str  # of the environment, which names the folder of the record
    notes: str  # that folder, in the folder of a launch
    is_stuck: Callable[[Case, Path], Callable[[], bool] | None]


def started(case: Case, folder: Path, machine: Machine, watching: Watching | None = None) -> tuple[str, ...]:
    """Return the command of a rank in the launch of a workload in `folder`.

    Raises LaunchError where it is to be watched and cannot be.
    """
    words = workload_command.arguments(case, place(case, machine).nodes)
    if watching is None or not case.workload.watch:
        return words
    return (*watching.loading(words[0]), f"{watching.variable}={folder / watching.notes}", *words)


class _NotThereError(Exception):
    """What the output of a program lacks."""


def never() -> bool:
    """Tell of no hang: where nothing is recorded only the time limit ends a program."""
    return False


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


def judge(case: Case, work: Work, folder: LaunchFolder, exit_code: int) -> Verdict:
    """Return how a launch in `folder` ended, whose program ran in `work`; only files asked for are kept."""
    if exit_code != case.workload.success.exit:
        unlike = _unlike(case.workload.success.exit, folder, exit_code)
        return Verdict(status="failed", reason=f"{unlike}{last_words(folder, STDERR, STDOUT)}")
    try:
        _check_success(case, folder)
        figures = dict(_figures(case, work, folder))
        _keep(case, work)
    except _NotThereError as error:
        return Verdict(status="failed", reason=f"{error}{last_words(folder, STDOUT, STDERR)}")
    return Verdict(status="ok", figures=figures)


def _unlike(asked: int, folder: LaunchFolder, exit_code: int) -> str:
    """Say how a launch ended that should have ended with another exit code."""
    said = cause(folder, exit_code) if exit_code else "exit code 0"
    return f"{said}, not {asked}" if asked else said


def _check_success(case: Case, folder: LaunchFolder) -> None:
    regex = case.workload.success.regex
    if regex and not any(compiled(regex).search(text) for text in _texts(folder)):
        raise _NotThereError(f"no success: nothing in the output matches '{regex}'")


def _figures(case: Case, work: Work, folder: LaunchFolder) -> Iterator[tuple[str, float]]:
    """Yield name and value of each figure; a step time has to be above 0."""
    for name, figure in case.workload.figures.items():
        value = _in_json(case, name, work) if figure.json else _in_text(name, figure, folder)
        if name == case.workload.times and not value > 0:
            raise _NotThereError(f"figure {name} is {value:g}, which is no step time")
        yield name, value


def _in_text(name: str, figure: Figure, folder: LaunchFolder) -> float:
    for text in _texts(folder):
        if found := [match[1] for match in compiled(figure.regex or "").finditer(text)]:
            try:
                return number(found[-1] or "")
            except ValueError as error:
                raise _NotThereError(f"figure {name}: {error}") from None
    raise _NotThereError(f"the output has no figure {name}: nothing matches '{figure.regex}'")


def _in_json(case: Case, name: str, work: Work) -> float:
    file, path = workload_command.json_file(case, name), case.workload.figures[name].path
    try:
        with _opened(work, name, file) as written:
            content = written.read(_READ_BYTES + 1)
        if len(content) > _READ_BYTES:
            raise _NotThereError(f"figure {name}: {file} has more than {_READ_BYTES >> 20} MiB")
        value: Any = json.loads(content.decode("utf-8"), parse_int=float)
    except (OSError, ValueError, RecursionError) as error:
        raise _NotThereError(f"figure {name}: {file} is not JSON: {error}") from None
    for part in (path or "").split("."):
        value = _member(value, part)
        if value is None:
            raise _NotThereError(f"{file} has no figure {name}: there is no {path} in it")
    if not isinstance(value, float) or not math.isfinite(value):
        raise _NotThereError(f"figure {name}: {path} in {file} is {json.dumps(value)[:60]}, no finite number")
    return value


def _opened(work: Work, figure: str, file: str) -> BinaryIO:
    """Open the file that a figure is in."""
    missing = f"there is no figure {figure}: the program wrote no {file}"
    if not work.folder.is_in_place():
        raise _NotThereError(f"{missing} in {work.folder.path}: it has put something else in that place")
    if not work.is_written(file):
        raise _NotThereError(f"{missing}: that of `files.in` is unchanged")
    try:
        return work.folder.open(file)
    except OSError as error:
        seen = f": {file} {error.strerror}" if os.path.lexists(work.folder.path / file) else ""
        raise _NotThereError(f"{missing}{seen}") from None


def _member(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, list) and name.isdecimal() and len(name) < 10 and int(name) < len(value):
        return value[int(name)]
    return None


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
            raise _NotThereError(f"the program left no file {pattern}{unchanged}")
        kept.update(written)
    if is_in_place:
        work.folder.clear(kept)
        if not kept:
            with suppress(OSError):  # it is not empty
                inside.rmdir()


def _texts(folder: LaunchFolder) -> Iterator[str]:
    """Yield what the program wrote, standard output first."""
    for name in (STDOUT, STDERR):
        with suppress(OSError), folder.open(name) as file:
            file.seek(max(0, file.seek(0, 2) - _READ_BYTES))
            yield file.read(_READ_BYTES).decode(errors="replace")
