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
from operator import attrgetter
from pathlib import Path
from typing import Any

from pscale.errors import ResultsError, UsageError, writing
from pscale.runs import atomic_files
from pscale.runs.run_shape import mismatch

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
    code: str = ""  # the commit
    fingerprint: Mapping[str, str] = field(default_factory=dict)  # whatever else may explain a change
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_possible(self) -> bool:
        """Whether it has steps, as much of each launch, and numbers whose squares are finite."""
        logs = [*self.steps, *self.levels, *self.paces]
        return (
            bool(self.steps)
            and {len(self.levels), len(self.paces)} <= {0, len(self.steps)}
            and max(map(abs, logs)) <= _LARGEST_LOG
            and max(map(abs, [*self.times_s.values(), *self.counters.values()]), default=0) <= _LARGEST
        )


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
            f"'{suite}' is not a valid suite name: it has letters, digits, '.', '_' and '-', "
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
        text = atomic_files.read(path).decode("utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror or error}") from error
    lines = {
        number: line
        for number, line in enumerate(text.split("\n"), start=1)
        if line and not line.isspace() and not line.startswith(_MARKS)
    }
    entries: dict[tuple[str, str], Entry] = {}
    acceptances: dict[Acceptance, None] = {}
    damaged = []
    for number, line in lines.items():
        found = _entry_of(line[max(0, line.rfind(_BEGIN)) :], f"{path}:{number}")
        if isinstance(found, Entry):
            key = (found.run, found.label)
            entries[key] = max(entries[key], found, key=_completeness) if key in entries else found
        elif found is not None:
            acceptances[found] = None
        if found is None or not line.startswith(_BEGIN) or line.find(_BEGIN, 1) > 0:
            damaged.append(number)
    return History(
        suite=suite,
        entries=tuple(sorted(entries.values(), key=attrgetter("begun_unix_s", "run"))),
        acceptances=tuple(sorted(acceptances, key=lambda each: each.at_unix_s)),
        damaged=tuple(damaged),
    )


def _entry_of(line: str, place: str) -> Entry | Acceptance | None:
    """Return what a line says, of the types that were written and with times and counters that can be."""
    try:
        document = atomic_files.from_json(line)
        written = document.pop("format")
        if isinstance(written, int) and written > FORMAT:
            raise ResultsError(
                f"{place}: written by a newer pscale: format {written}, "
                f"this one reads up to {FORMAT}; upgrade pscale"
            )
        kind = Acceptance if "accepted" in document else Entry
        found: Entry | Acceptance = kind(**document)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    if mismatch(kind, document) or (isinstance(found, Entry) and not found.is_possible):
        return None
    return found


def _completeness(entry: Entry) -> tuple[int, str]:
    """Return what is larger for a run that was recorded again with more launches, in whatever order."""
    return len(entry.steps), str(entry)


def append(folder: Path, suite: str, added: Iterable[Entry | Acceptance]) -> Path:
    """Add lines to the history of a suite in one go; a line that was torn before them stays alone."""
    path = path_of(folder, suite)
    text = "".join(_line(each) for each in added).encode()
    with writing(path):
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
    return path


def _line(added: Entry | Acceptance) -> str:
    known: dict[str, Any] = {"format": FORMAT, **vars(added)}
    kept = {name: value for name, value in known.items() if value or name in ("format", "begun_unix_s")}
    return json.dumps(kept, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
