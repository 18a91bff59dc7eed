"""One launch of a workload: its folder, its command, and the figures in what it leaves."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pscale import atomic_files, workload_command
from pscale.config import Case
from pscale.config.workload import Figure, compiled, number
from pscale.launch.journal import writing_in
from pscale.launch.machine import Machine, place
from pscale.launch.outcome import RESULT, STDERR, STDOUT, Status, cause, last_words

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


def prepare(case: Case, folder: Path) -> Path:
    """Make the folder in which the program runs, with its input files."""
    inside = folder / INSIDE
    inside.mkdir()
    for path in workload_command.inputs(case):
        shutil.copy(path, inside)
    return inside


def changed(case: Case) -> str:
    """Say which file is no longer what it was when the run began; empty if none is."""
    now = workload_command.digests(case)
    names = [name for name, digest in case.program.sha256.items() if now.get(name) != digest]
    return f"{', '.join(names)} changed after the run began: `pscale run` starts a new one" if names else ""


def judge(case: Case, folder: Path, exit_code: int) -> tuple[Status, str]:
    """Return status and reason of a launch that has ended; its figures go into its result."""
    if exit_code != case.workload.success.exit:
        unlike = _unlike(case.workload.success.exit, folder, exit_code)
        return "failed", f"{unlike}{last_words(folder, STDERR, STDOUT)}"
    try:
        _check_success(case, folder)
        figures = dict(_figures(case, folder))
        _keep(case, folder / INSIDE)
    except _NotThereError as error:
        return "failed", f"{error}{last_words(folder, STDOUT, STDERR)}"
    document = {"status": "ok", "reason": "", "figures": figures, "columns": {}}
    if not folder.is_dir() or (folder / RESULT).is_dir():
        return "failed", f"the program left no place for {folder / RESULT}"
    with writing_in(folder):
        atomic_files.write(folder / RESULT, json.dumps(document, indent=1))
    return "ok", ""


def _unlike(asked: int, folder: Path, exit_code: int) -> str:
    """Say how a launch ended that should have ended with another exit code."""
    said = cause(folder, exit_code) if exit_code else "exit code 0"
    return f"{said}, not {asked}" if asked else said


def _check_success(case: Case, folder: Path) -> None:
    regex = case.workload.success.regex
    if regex and not any(compiled(regex).search(text) for text in _texts(folder)):
        raise _NotThereError(f"no success: nothing in the output matches '{regex}'")


def _figures(case: Case, folder: Path) -> Iterator[tuple[str, float]]:
    """Yield name and value of each figure; a step time has to be above 0."""
    for name, figure in case.workload.figures.items():
        value = _in_json(case, name, folder) if figure.json else _in_text(name, figure, folder)
        if name == case.workload.times and not value > 0:
            raise _NotThereError(f"figure {name} is {value:g}, which is no step time")
        yield name, value


def _in_text(name: str, figure: Figure, folder: Path) -> float:
    for text in _texts(folder):
        if found := [match[1] for match in compiled(figure.regex or "").finditer(text)]:
            try:
                return number(found[-1] or "")
            except ValueError as error:
                raise _NotThereError(f"figure {name}: {error}") from None
    raise _NotThereError(f"the output has no figure {name}: nothing matches '{figure.regex}'")


def _in_json(case: Case, name: str, folder: Path) -> float:
    file, path = workload_command.json_file(case, name), case.workload.figures[name].path
    written = folder / INSIDE / file
    if not written.is_file():
        raise _NotThereError(f"there is no figure {name}: the program wrote no {file}")
    if written.stat().st_size > _READ_BYTES:
        raise _NotThereError(f"figure {name}: {file} has more than {_READ_BYTES >> 20} MiB")
    try:
        value: Any = json.loads(written.read_text(encoding="utf-8"), parse_int=float)
    except (OSError, ValueError, RecursionError) as error:
        raise _NotThereError(f"figure {name}: {file} is not JSON: {error}") from None
    for part in (path or "").split("."):
        value = _member(value, part)
        if value is None:
            raise _NotThereError(f"{file} has no figure {name}: there is no {path} in it")
    if not isinstance(value, float) or not math.isfinite(value):
        raise _NotThereError(f"figure {name}: {path} in {file} is {json.dumps(value)[:60]}, no finite number")
    return value


def _member(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, list) and name.isdecimal() and len(name) < 10 and int(name) < len(value):
        return value[int(name)]
    return None


def _keep(case: Case, inside: Path) -> None:
    """Leave only the files that are to be kept."""
    kept: set[Path] = set()
    for pattern in workload_command.outputs(case):
        found = [path for path in inside.glob(pattern) if path.is_file()]
        if not found:
            raise _NotThereError(f"the program left no file {pattern}")
        kept.update(found)
    for path in sorted(inside.rglob("*"), reverse=True):  # what is in a folder before it
        with suppress(OSError):  # a folder that is not empty, or that the program has closed
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path not in kept:
                path.unlink()
    if not kept:
        shutil.rmtree(inside, ignore_errors=True)


def _texts(folder: Path) -> Iterator[str]:
    """Yield what the program wrote, standard output first."""
    for name in (STDOUT, STDERR):
        if (folder / name).is_file():  # and nothing that the program has put there
            with (folder / name).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _READ_BYTES))
                yield file.read().decode(errors="replace")
