"""The figures of a launch of a workload: numbers in its output, and in the files that its program writes."""

from __future__ import annotations

import csv
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pscale.config import Case, workload_command
from pscale.config.expressions import evaluate, names_in
from pscale.config.metrics import conversion
from pscale.config.workload import MATCH, Figure, number
from pscale.errors import UsageError
from pscale.launch.outcome import STDERR, STDOUT, Reading
from pscale.launch.search import CHUNK, MOST, Log, Pattern, alarm, text_of, visible
from pscale.runs.launch_folder import LaunchFolder

_LOGS = STDOUT, STDERR
_QUOTED = 60  # characters of what is no number
_SEPARATORS = ",;\t"
Texts = Sequence[tuple[str, str]]  # numbers as they were written, each with its unit


class NotThereError(Exception):
    """What a program left that lacks a figure, or the sign of its success."""


class OutputSearch:
    """The patterns of a workload in the logs of a launch; one that takes too long ends the search.

    A pattern may take `pattern_s` for a part of the output, and all may take `search_s`, or as long as a
    launch may if that is more.
    """

    def __init__(
        self, case: Case, folder: LaunchFolder, pattern_s: float = 10.0, search_s: float = 60.0
    ) -> None:
        workload = case.workload
        self._success = workload.success.regex
        asked = {
            f"figure {name}": (
                figure.regex,
                figure.pick == "first",
                figure.pick in (None, "last") and not figure.steps,
            )
            for name, figure in workload.figures.items()
            if figure.regex
        }
        if self._success:
            asked["success"] = self._success, True, False
        self._logs = {
            name: Log(
                folder.descriptor(name),
                workload.encoding,
                {pattern: Pattern(*words) for pattern, words in asked.items()},
            )
            for name in (_LOGS if asked else ())
        }
        self._encoding, self._trouble = workload.encoding, ""
        self._pattern_s, self._limit_s = pattern_s, max(case.launch.time_limit_s, search_s)
        self._left_s = self._limit_s

    def advance(self, name: str, end: int | None = None) -> None:
        """Search a log up to a byte, before that part of it is left out; by default to its end."""
        if name not in self._logs or self._trouble:
            return
        for window in self._logs[name].windows(end):
            for what, pattern in self._logs[name].patterns.items():
                if not self._is_in_time(pattern, window):
                    limit = f"{self._pattern_s:g} s in {CHUNK >> 20} MiB of output"
                    if self._left_s < 0:
                        limit = f"{self._limit_s:g} s in output"
                    self._trouble = (
                        f"{what}: the search for '{pattern.regex}' took more than {limit}: write it without "
                        "repetition within repetition, as (a+)+"
                    )
                    return

    def _is_in_time(self, pattern: Pattern, window: str) -> bool:
        begun_s, done = time.monotonic(), False
        with suppress(TimeoutError, MemoryError), alarm(min(self._pattern_s, self._left_s)):
            pattern.search(window)
            done = True
        self._left_s -= time.monotonic() - begun_s
        return done and self._left_s >= 0

    def finish(self) -> None:
        """Search what is left; raises NotThereError where that takes too long or nothing tells success."""
        for name in self._logs:
            self.advance(name)
        if self._trouble:
            raise NotThereError(self._trouble)
        if self._success and not self.pattern("success").count:
            raise NotThereError(f"no success: nothing matches '{self._success}' {self.scope}")

    def pattern(self, name: str) -> Pattern:
        """Return a pattern with its matches in standard output, else those in standard error."""
        patterns = [log.patterns[name] for log in self._logs.values()]
        return next((pattern for pattern in patterns if pattern.count), patterns[0])

    @property
    def scope(self) -> str:
        """Where was searched; in which encoding, if the output does not look like it."""
        searched = sum(log.searched for log in self._logs.values())
        where = f"in {searched:,} bytes of output" if searched else "as the output is empty"
        if any(log.foreign for log in self._logs.values()):
            where += f", which are not all {self._encoding}: name their `encoding`, as utf-16 or latin-1"
        return where


def readings(case: Case, search: OutputSearch, opened: Callable[[str, str], bytes]) -> dict[str, Reading]:
    """Return the value of each figure by name; `opened` returns a file's content, given it and the figure.

    Raises NotThereError where there is none; a step time must be above 0.
    """
    known: dict[str, Reading] = {}
    for name, figure in case.workload.figures.items():
        if figure.value:
            known[name] = _computed(case, name, known)
            continue
        if figure.regex:
            texts, where = _in_output(name, figure, search), ""
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


def _in_output(name: str, figure: Figure, search: OutputSearch) -> Texts:
    pattern = search.pattern(f"figure {name}")
    if figure.pick == "count":
        return [(str(pattern.count), "")]
    if not pattern.count:
        raise NotThereError(
            f"the output has no figure {name}: nothing matches '{figure.regex}' {search.scope}"
        )
    if pattern.count > MOST and len(pattern.texts) > 1:
        said = f"'{figure.regex}' has {pattern.count:,} matches; expected at most {MOST:,}"
        raise NotThereError(f"figure {name}: {said}")
    return pattern.texts


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


def _decoded(content: bytes, encoding: str) -> str:
    return text_of(content, encoding).removeprefix("\ufeff")


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
