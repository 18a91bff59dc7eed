"""The history of a suite: `history/<suite>.jsonl`, a line a case and run, in any order, never changed.

Two branches that both add runs are merged line by line (git's union). Whatever a merge or a crash leaves is
read: lines that are there twice, marks of conflicts, a line that was torn and what was added behind it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
_END = ',"fingerprint":'  # from here on, most lines of a case are the same
_LARGEST_LOG, _LARGEST = 100.0, 1e30  # of a time in s, and of any other number: their squares are finite
_NUMBERS = {int, float}  # and no bool
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
    documents = _documents([line[max(0, line.rfind(_BEGIN)) :] for line in lines.values()])
    for (number, line), found in zip(lines.items(), _whole(documents, path, lines), strict=True):
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


def _documents(lines: Sequence[str]) -> list[Any]:
    """Return what lines say; None of a damaged one.

    All are read together, and what many end with once, which takes a third of the time. If one is damaged,
    that fails, and halves are tried.
    """
    parts = [line.partition(_END) for line in lines]
    try:
        known = {end for _, _, end in parts}
        ends = {end: atomic_files.from_json(f'{{"fingerprint":{end}' if end else "{}") for end in known}
        begins = atomic_files.from_json(f"[{','.join(begin + '}' * bool(end) for begin, _, end in parts)}]")
        if len(begins) == len(lines):
            return [begin | ends[end] for begin, (_, _, end) in zip(begins, parts, strict=True)]
    except (ValueError, RecursionError, TypeError):
        pass
    half = len(lines) // 2
    return [*_documents(lines[:half]), *_documents(lines[half:])] if half else [None]


def _completeness(entry: Entry) -> tuple[int, str]:
    """Return what is larger for a run that was recorded again with more launches, in whatever order."""
    return len(entry.steps), str(entry)


def _whole(documents: Sequence[Any], path: Path, numbers: Iterable[int]) -> list[Entry | Acceptance | None]:
    """Return what documents say; None of one that says nothing."""
    found = [_read_document(*each, path) for each in zip(documents, numbers, strict=True)]
    return found if _are_whole(found) else [each if _are_whole([each]) else None for each in found]


def _read_document(document: Any, number: int, path: Path) -> Entry | Acceptance | None:
    try:
        written = document.pop("format")
        if isinstance(written, int) and written > FORMAT:
            raise ResultsError(
                f"{path}:{number}: written by a newer pscale: format {written}, "
                f"this one reads up to {FORMAT}; upgrade pscale"
            )
        return (Acceptance if "accepted" in document else Entry)(**document)
    except (TypeError, AttributeError, KeyError):
        return None


def _are_whole(found: Sequence[Entry | Acceptance | None]) -> bool:
    """Tell whether what was read is of the types that were written, and times and counters can be.

    Nothing is looked at one by one: a long history has a million numbers.
    """
    try:
        if any(mismatch(Acceptance, vars(each)) for each in found if isinstance(each, Acceptance)):
            return False
        entries = [each for each in found if isinstance(each, Entry)]
        lists = [each for entry in entries for each in (entry.steps, entry.levels, entry.paces)]
        logs = [*chain.from_iterable(lists)]
        amounts = [*chain.from_iterable(each.values() for each in _apart(entries, "times_s", "counters"))]
        texts = chain.from_iterable(each.values() for each in _apart(entries, "fingerprint"))
        said = ((entry.run, entry.case, entry.label, entry.work, entry.code) for entry in entries)
        begun = [entry.begun_unix_s for entry in entries]
        return (
            {type(each) for each in lists if each != ()} <= {list}
            and all(
                entry.steps and {len(entry.levels), len(entry.paces)} <= {0, len(entry.steps)}
                for entry in entries
            )
            and {*map(type, logs), *map(type, amounts), *map(type, begun)} <= _NUMBERS
            and {*map(type, texts), *map(type, chain.from_iterable(said))} <= {str}
            and math.isfinite(sum(begun) + sum(logs) + sum(amounts))
            and max(map(abs, logs), default=0) <= _LARGEST_LOG
            and max(map(abs, amounts), default=0) <= _LARGEST
        )
    except (TypeError, AttributeError, OverflowError):
        return False


def _apart(entries: Sequence[Entry], *names: str) -> Iterable[Any]:
    """Return these fields of all entries, but once if entries have one in common."""
    return {id(each): each for name in names for each in map(attrgetter(name), entries)}.values()


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
