"""The figures of a launch of a workload: numbers in its output, and in the files that its program writes."""

from __future__ import annotations

import csv
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pscale.config import Case, workload_command
from pscale.config.expressions import evaluate, names_in
from pscale.config.metrics import conversion
from pscale.config.workload import MATCH, Figure, number
from pscale.errors import UsageError
from pscale.launch import search
from pscale.launch.outcome import STDERR, STDOUT, Reading
from pscale.launch.search import MOST, visible
from pscale.runs.launch_folder import LaunchFolder

_LOGS = STDOUT, STDERR
_PATTERN_S = 10.0  # that a pattern may take for one part of the output
_SEARCH_S = 60.0  # that a search may take in all, if `time_limit` is no more
_START_S = 60.0  # that Python may take to start, from a slow disk
_LARGEST_FILE = 64 << 20
_QUOTED = 60  # characters of what is no number
_SEPARATORS = ",;\t"
Texts = Sequence[tuple[str, str]]  # numbers as they were written, each with its unit


class NotThereError(Exception):
    """What a program left that lacks a figure, or the sign of its success."""


class OutputSearch:
    """The search for the patterns of a workload in the logs of a launch: in a process that can be ended."""

    def __init__(self, case: Case, folder: LaunchFolder):
        self._figures, self._success = case.workload.figures, case.workload.success.regex
        self._folder, self._encoding = folder, case.workload.encoding
        self._names = [f"figure {name}" for name, figure in self._figures.items() if figure.regex]
        self._patterns = [
            (figure.regex, figure.pick == "first", figure.pick in (None, "last") and not figure.steps)
            for figure in self._figures.values()
            if figure.regex
        ]
        if self._success:
            self._names.append("success")
            self._patterns.append((self._success, True, False))
        self._process: subprocess.Popen[bytes] | None = None
        self._limit_s = max(case.launch.time_limit_s, _SEARCH_S)
        self._left_s = self._limit_s
        self._trouble = ""

    def advance(self, name: str, end: int) -> None:
        """Search a log up to a byte, before that part of it is left out."""
        if self._patterns and not self._trouble:
            self._ask(_LOGS.index(name), end, is_last=False)

    def finish(self) -> Found:
        """Search what is left; raises NotThereError where a pattern takes too long, or fails."""
        if not self._patterns:
            return Found([], [], 0, "")
        document: Any = None
        for place, name in enumerate(_LOGS):
            if not self._trouble:
                end = os.fstat(self._folder.descriptor(name)).st_size
                document = self._ask(place, end, is_last=True)
        if self._trouble:
            raise NotThereError(self._trouble)
        return Found(
            self._names, document["found"], document["searched"], document["foreign"] and self._encoding
        )

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, log: int, end: int, *, is_last: bool) -> Any:
        """Return the answer to a request; a pattern that takes too long is noted, and all ends."""
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        busy, deadline = 0, time.monotonic() + self._left_s
        with suppress(OSError):
            process.stdin.write(json.dumps([log, end, is_last]).encode() + b"\n")
            process.stdin.flush()
            for line in _lines(process.stdout.fileno(), _PATTERN_S):
                answer = json.loads(line)
                self._left_s = deadline - time.monotonic()
                if not isinstance(answer, int):
                    return answer
                busy = answer
                if self._left_s < 0:
                    break
        limits = f"{_PATTERN_S:g} s in {search.CHUNK >> 20} MiB of output", f"{self._limit_s:g} s in output"
        self._trouble = (
            f"{self._names[busy]}: the search for '{self._patterns[busy][0]}' took more than"
            f" {limits[self._left_s < 0]}: write it without repetition within repetition, as (a+)+"
        )
        self.close()
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        logs = [self._folder.descriptor(name) for name in _LOGS]
        command = [sys.executable, "-I", "-S", search.__file__]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, pass_fds=logs)
        asked = {"encoding": self._encoding, "patterns": self._patterns, "logs": logs}
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        next(_lines(process.stdout.fileno(), _START_S), b"")
        return process


def _lines(pipe: int, limit_s: float) -> Iterator[bytes]:
    """Yield what a process writes, line by line, until it ends or takes too long for the next."""
    content = bytearray()
    while select.select([pipe], [], [], limit_s)[0] and (part := os.read(pipe, 1 << 16)):
        content += part
        *whole, content = content.split(b"\n")
        yield from map(bytes, whole)


class Found:
    """What was found of each pattern: its matches in standard output, else in standard error.

    `foreign` is the encoding where the output does not look like it.
    """

    def __init__(self, names: Sequence[str], logs: Sequence[Sequence[Any]], searched: int, foreign: str):
        self._of: dict[str, tuple[int, list[tuple[str | None, str | None]]]] = {
            name: next((log[place] for log in logs if log[place][0]), (0, []))
            for place, name in enumerate(names)
        }
        self.searched = f"in {searched:,} bytes of output" if searched else "as the output is empty"
        if foreign:
            self.searched += f", which are not all {foreign}: name their `encoding`, as utf-16 or latin-1"

    def count(self, name: str) -> int:
        """Return how many matches a pattern has."""
        return self._of[name][0]

    def texts(self, name: str) -> Texts:
        """Return the numbers in the matches of a pattern, with their units."""
        return [(text or "", unit or "") for text, unit in self._of[name][1]]


def readings(case: Case, found: Found, opened: Callable[[str, str], bytes]) -> dict[str, Reading]:
    """Return the value of each figure by name; `opened` returns a file's content, given it and the figure.

    Raises NotThereError where there is none; a step time must be above 0.
    """
    known: dict[str, Reading] = {}
    for name, figure in case.workload.figures.items():
        if figure.value:
            known[name] = _computed(case, name, known)
            continue
        if figure.regex:
            texts, where = _in_output(name, figure, found), ""
        else:
            file = workload_command.figure_file(case, name)
            content = _decoded(opened(name, file), case.workload.encoding)
            where = f"{figure.path or figure.column} in {file}"
            values = (_in_json if figure.json else _in_csv)(name, figure, file, content)
            texts = [(value, "") for value in values]
        known[name] = _reading(case, name, texts, where)
    return known


def _computed(case: Case, name: str, known: Mapping[str, Reading]) -> Reading:
    """Return a figure that is computed from others, as precise as those were printed."""
    figure = case.workload.figures[name]
    text = (figure.value or "").removeprefix("=")
    values = {each: reading.value for each, reading in known.items()}
    names = {**workload_command.numbers(case), **values}
    try:
        value = float(evaluate(text, names))
        read = [known[each] for each in names_in(text) if each in known and known[each].resolution]
        moved = [
            abs(
                float(evaluate(text, {**names, each: values[each] + (known[each].resolution or 0.0)})) - value
            )
            for each in names_in(text)
            if each in known
        ]
    except (UsageError, TypeError, ValueError) as error:
        raise NotThereError(f"figure {name}: {error}") from None
    if name == case.workload.times and not value > 0:
        raise NotThereError(f"figure {name} is {value:g}, which is not a {_kind(case)}")
    return Reading(value=value, unit=figure.unit, resolution=max(moved) if read else None)


def _kind(case: Case) -> str:
    return "rate" if case.workload.rate else "step time"


def check_success(case: Case, found: Found) -> None:
    """Raise NotThereError where the output does not have the sign of success."""
    regex = case.workload.success.regex
    if regex and not found.count("success"):
        raise NotThereError(f"no success: nothing matches '{regex}' {found.searched}")


def _in_output(name: str, figure: Figure, found: Found) -> Texts:
    count = found.count(f"figure {name}")
    if figure.pick == "count":
        return [(str(count), "")]
    if not count:
        raise NotThereError(
            f"the output has no figure {name}: nothing matches '{figure.regex}' {found.searched}"
        )
    texts = found.texts(f"figure {name}")
    if count > MOST and len(texts) > 1:
        said = f"'{figure.regex}' has {count:,} matches; expected at most {MOST:,}"
        raise NotThereError(f"figure {name}: {said}")
    return texts


def _reading(case: Case, name: str, texts: Texts, where: str) -> Reading:
    """Return what numbers say: the one that is picked, or the steps of the launch."""
    figure = case.workload.figures[name]
    if figure.pick == "count":
        return Reading(value=float(texts[0][0]) if figure.regex else len(texts), unit=figure.unit)
    ends: dict[str | None, Texts] = {None: texts[-1:], "last": texts[-1:], "first": texts[:1]}
    chosen = texts if figure.steps else ends.get(figure.pick, texts)
    unit = _unit(case, name, chosen[-1][1])
    values, resolutions = [], []
    for text, written in chosen:
        try:
            value = number(text)
        except ValueError as error:
            quoted = f"'{visible(text[:_QUOTED])}'"
            said = f"{where} is {quoted}, {error}" if where else f"{quoted} is {error}"
            raise NotThereError(f"figure {name}: {said}") from None
        factor = conversion(visible(written), unit) if figure.unit == MATCH else 1.0
        if factor is None:
            raise NotThereError(f"figure {name} is in '{visible(written)}' and in '{unit}'")
        values.append(value * factor)
        resolutions.append(value.resolution * factor)
        if name == case.workload.times and not values[-1] > 0:
            raise NotThereError(f"figure {name} is {values[-1]:g}, which is not a {_kind(case)}")
    steps = tuple(values) if figure.steps else ()
    exact = not unit and all(value.is_integer() for value in values)
    resolution = None if exact else (sum if figure.pick == "sum" else max)(resolutions)
    picked = _PICKS.get(figure.pick or "", _only)(values)
    return Reading(value=picked, unit=unit, resolution=resolution, steps=steps)


def _unit(case: Case, name: str, written: str) -> str:
    """Return the unit of a figure: that of the suite, or the one that was read."""
    figure = case.workload.figures[name]
    unit = visible(written).strip() if figure.unit == MATCH else figure.unit
    if name == case.workload.times and not case.workload.rate and conversion(unit, "s") is None:
        raise NotThereError(
            f"figure {name}, the step time, is in '{unit[:_QUOTED]}', which is not a unit of time"
        )
    return unit


def _only(values: Sequence[float]) -> float:
    return values[0] if len(values) == 1 else statistics.median(values)


_PICKS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": sum,
}


def content_of(file: str, name: str, folder: LaunchFolder) -> bytes:
    """Return what is in a file that a program has written; raises OSError where it is none."""
    with folder.open(file) as written:
        content = written.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise NotThereError(f"figure {name}: {file} has more than {_LARGEST_FILE >> 20} MiB")
    return content


def _decoded(content: bytes, encoding: str) -> str:
    return search.text_of(content, encoding).removeprefix("\ufeff")


def _in_json(name: str, figure: Figure, file: str, content: str) -> list[str]:
    """Return the numbers at a path of a JSON document, or of each of several, a line each."""
    path = figure.path or ""
    try:
        documents = [_parsed(content)]
    except (ValueError, RecursionError) as error:
        try:
            documents = [_parsed(line) for line in content.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            documents = []
        if len(documents) < 2:
            raise NotThereError(f"figure {name}: {file} is not JSON: {error}") from None
    found = [value for document in documents if (value := _at(document, path)) is not None]
    if not found:
        way = "" if path.startswith("/") else "; names with dots need a JSON Pointer, as /latency/99.9"
        raise NotThereError(f"{file} has no figure {name}: there is no {path} in it{way}")
    lists = len(found) == 1 and isinstance(found[0], list) and bool(figure.pick or figure.steps)
    values = found[0] if lists else found
    for value in values:
        if not isinstance(value, str):
            shown = visible(json.dumps(value))[:_QUOTED]
            raise NotThereError(f"figure {name}: {path} in {file} is {shown}, not a finite number")
    if not values:
        raise NotThereError(f"figure {name}: {path} in {file} is an empty list")
    return values


def _parsed(text: str) -> Any:
    """Return what JSON says, its numbers as they were written."""
    return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)


def _at(document: Any, path: str) -> Any:
    """Return what is at a path, a JSON Pointer (RFC 6901) or names joined by dots; None where nothing is."""
    if path.startswith("/"):
        parts = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    else:
        parts = path.split(".")
    for part in parts:
        document = _member(document, part)
    return document


def _member(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, list) and name.removeprefix("-").isdecimal() and len(name) < 10:
        with suppress(IndexError):
            return value[int(name)]
    return None


def _in_csv(name: str, figure: Figure, file: str, content: str) -> list[str]:
    """Return the cells of a column, of all rows or of those whose first cell is a text."""
    lines = content.splitlines()
    first = lines[0] if lines else ""
    separator = max(_SEPARATORS, key=first.count)
    try:
        rows = [row for row in csv.reader(lines, delimiter=separator, skipinitialspace=True) if row]
    except csv.Error as error:
        raise NotThereError(f"figure {name}: {file} is not CSV: {error}") from None
    header = [cell.strip() for cell in rows[0]] if rows else []
    column = figure.column or ""
    if column in header:
        place, rows = header.index(column), rows[1:]
    elif column.isdecimal() and len(column) < 6:
        place = int(column)
    else:
        seen = visible(", ".join(header))[:200]
        raise NotThereError(f"{file} has no figure {name}: it has no column {column}, but {seen}")
    if figure.row is not None:
        rows = [row for row in rows if row[0].strip() == figure.row]
    found = [row[place] for row in rows if place < len(row)]
    if not found:
        row = f" in a row {figure.row}" if figure.row is not None else ""
        raise NotThereError(f"{file} has no figure {name}: there is nothing in column {column}{row}")
    return found
