"""The history of a suite: `history/<suite>.jsonl`, a line a case and run, in any order, never changed.

Two branches that both add runs are merged line by line (git's union). Whatever a merge or a crash leaves is
read: lines that are there twice, marks of conflicts, a line that was torn and what was added behind it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pscale.errors import ResultsError, UsageError
from pscale.run_shape import mismatch

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # as of suites
_MARKS = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")  # of a conflict
_BEGIN = '{"format":'
_LARGEST_LOG, _LARGEST = 100.0, 1e30  # of a time in s, and of any other number: their squares are finite
_UNION = "*.jsonl merge=union\n"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One case of one run. `steps` are logarithms of the step times of its launches.

    Where a fixed piece of work was timed beside the steps, `levels` and `paces` are mean logarithms of steps
    and of that work, by launch. `counters` are those on which all launches agree.
    """

    run: str
    begun_unix_s: float
    case: str  # content id
    label: str
    work: str  # what a step computes: times of other work cannot be compared
    steps: Sequence[float]
    levels: Sequence[float] = ()
    paces: Sequence[float] = ()
    times_s: Mapping[str, float] = field(default_factory=dict)  # of a step, by phase and kind
    counters: Mapping[str, float] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The level of a case in a run is the normal one from then on."""

    accepted: str  # the run
    label: str
    reason: str
    at_unix_s: float


@dataclass(frozen=True, kw_only=True)
class History:
    """What a file holds, runs in the order in which they began; `damaged` are lines that say nothing."""

    suite: str
    entries: tuple[Entry, ...]
    acceptances: tuple[Acceptance, ...]
    damaged: tuple[int, ...]


def path_of(folder: Path, suite: str) -> Path:
    """Return the file of a suite; a name that could lead out of the folder is refused."""
    if not _NAME.fullmatch(suite):
        raise UsageError(
            f"'{suite}' is no name of a suite: it has letters, digits, '.', '_' and '-', "
            "and begins with a letter or digit; name one such as weak"
        )
    return folder / f"{suite}.jsonl"


def suites(folder: Path) -> list[str]:
    """Return the suites that have a history in `folder`."""
    return sorted(path.stem for path in folder.glob("*.jsonl") if _NAME.fullmatch(path.stem))


def read(folder: Path, suite: str) -> History:
    """Read the history of a suite; empty where there is none."""
    path = path_of(folder, suite)
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror or error}") from error
    entries: dict[tuple[str, str], Entry] = {}
    acceptances: dict[Acceptance, None] = {}
    damaged = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith(_MARKS):
            continue
        found = _read_line(line, path, number)
        if isinstance(found, Entry):
            key = (found.run, found.label)
            entries[key] = max(entries[key], found, key=_completeness) if key in entries else found
        elif found is not None:
            acceptances[found] = None
        if found is None or not line.startswith(_BEGIN) or line.count(_BEGIN) > 1:
            damaged.append(number)
    return History(
        suite=suite,
        entries=tuple(sorted(entries.values(), key=lambda entry: (entry.begun_unix_s, entry.run))),
        acceptances=tuple(sorted(acceptances, key=lambda each: each.at_unix_s)),
        damaged=tuple(damaged),
    )


def _completeness(entry: Entry) -> tuple[int, str]:
    """Return what is larger for a run that was recorded again with more launches, in whatever order."""
    return len(entry.steps), str(entry)


def _read_line(line: str, path: Path, number: int) -> Entry | Acceptance | None:
    """Return what a line says; of one that was added to a torn line, what was added."""
    try:
        document = json.loads(line[max(0, line.rfind(_BEGIN)) :])
        written = document.pop("format")
        if isinstance(written, int) and written > FORMAT:
            raise ResultsError(
                f"{path}:{number}: written by a newer pscale: format {written}, "
                f"this one reads up to {FORMAT}; upgrade pscale"
            )
        kind = Acceptance if "accepted" in document else Entry
        found: Entry | Acceptance = kind(**document)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    return None if mismatch(kind, document) or not _is_whole(found) else found


def _is_whole(found: Entry | Acceptance) -> bool:
    """Tell whether an entry has times, and those can be."""
    if isinstance(found, Acceptance):
        return True
    logs = *found.steps, *found.levels, *found.paces
    return (
        len(found.steps) > 0
        and {len(found.levels), len(found.paces)} <= {0, len(found.steps)}
        and max(map(abs, logs)) <= _LARGEST_LOG
        and max(map(abs, (*found.times_s.values(), *found.counters.values())), default=0) <= _LARGEST
    )


def append(folder: Path, suite: str, added: Iterable[Entry | Acceptance]) -> Path:
    """Add lines to the history of a suite in one go; a line that was torn before them stays alone."""
    path = path_of(folder, suite)
    text = "".join(_line(each) for each in added).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        attributes = folder / ".gitattributes"
        if not attributes.exists():
            attributes.write_text(_UNION, encoding="utf-8")
        with path.open("ab+") as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                text = text if file.read(1) == b"\n" else b"\n" + text
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _line(added: Entry | Acceptance) -> str:
    known: dict[str, Any] = {"format": FORMAT, **vars(added)}
    kept = {name: value for name, value in known.items() if value or name in ("format", "begun_unix_s")}
    return json.dumps(kept, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
