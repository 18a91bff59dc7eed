"""`pscale import`: a table of launches becomes a run, in which what it does not tell stays unknown."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pscale.cli.options import Import
from pscale.cli.run import report_alone
from pscale.cli.workload_tables import write_figures
from pscale.config import Case, to_document
from pscale.config.metrics import conversion
from pscale.config.workload import IMPORTED, Printed, number, with_text
from pscale.errors import UsageError
from pscale.launch.outcome import Reading
from pscale.runs import atomic_files
from pscale.runs.journal import Journal
from pscale.runs.run_events import Closed, Ended
from pscale.runs.store import planned_columns, write_part
from pscale.suite.derive import suite_text, unlimited
from pscale.suite.document import document_of
from pscale.suite.expand import expand
from pscale.suite.load import load_suite
from pscale.suite.problems import nearest

_SEPARATORS = "\t;,|"
_MOST_BYTES = 64 << 20
_MOST_ROWS = 10_000
_UNIT = re.compile(r"[\[(]\s*(.+?)\s*[\])]\s*$|(?<=[\w\s])[_/ ](min|ms|us|µs|ns|s|h)$")
_PLAIN = re.compile(r"[-+]?\d+")
_TIME = "time"
_UNKNOWN = (
    "Imported from {}, a line a launch: machine, MPI library, binding, and what ranks waited for are unknown."
)


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """One line of the table: which case it is of, and what it measured."""

    line: int
    ranks: int
    threads: int
    params: Mapping[str, Any]
    time: str
    metrics: Mapping[str, str]


def import_table(columns: Import) -> int:
    """Write the run of a table and report it; return the exit code."""
    file = columns.table
    table = _Table(file)
    launches = _launches(table, columns)
    unit = columns.unit or _unit_of(columns.time) or "s"
    if conversion(unit, "s") is None:
        raise UsageError(f"--unit: '{unit}' is not a unit of time; expected one such as s, ms, min or h")
    cases, document = _planned(file, columns, launches, unit)
    journal = Journal.create(columns.reports, document["suite"]["name"], document)
    repeats = dict.fromkeys(cases, 0)
    for index, launch in enumerate(launches):
        key = _key(launch)
        _write(journal, cases[key], (repeats[key], index), launch, columns)
        repeats[key] += 1
    journal.note(Closed())
    return report_alone(journal, reported=columns.report)


class _Table:
    """A text of columns: its separator is what its first line has most of."""

    def __init__(self, file: Path):
        self.file = file
        try:
            content = atomic_files.read(file)
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}; expected a table, a line a launch") from None
        if len(content) > _MOST_BYTES:
            raise UsageError(
                f"{file}: has more than {_MOST_BYTES >> 20} MiB, too many for a table of launches"
            )
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2:
            raise UsageError(f"{file}: expected a line of names, and a line for each launch")
        header = lines[0][1].removeprefix("#").strip()
        counts = {separator: header.count(separator) for separator in _SEPARATORS}
        self.separator = max(counts, key=lambda each: counts[each]) if any(counts.values()) else " "
        self.names = self._cells(header)
        self.rows = [(at, self._cells(line)) for at, line in lines[1:] if not line.startswith("#")]
        if len(self.rows) > _MOST_ROWS:
            raise UsageError(f"{file}: has {len(self.rows):,} lines; at most {_MOST_ROWS:,} are possible")

    def _cells(self, line: str) -> list[str]:
        if self.separator == " ":
            return line.split()
        try:
            (cells,) = csv.reader([line], delimiter=self.separator, skipinitialspace=True)
        except (csv.Error, ValueError) as error:
            raise UsageError(f"{self.file}: is not a table: {error}") from None
        return [cell.strip() for cell in cells]

    def place(self, option: str, name: str) -> int:
        """Return where a column is. Raises UsageError for one that is not there."""
        same = [at for at, each in enumerate(self.names) if each.casefold() == name.strip().casefold()]
        if len(same) != 1:
            how = "twice" if same else "not"
            raise UsageError(
                f"{option}: the column '{name}' is {how} in {self.file}; {nearest(name, self.names)}"
            )
        return same[0]

    def number(self, text: str) -> str:
        """Return a number as programs write it, whatever separates its decimals and its thousands."""
        decimal = "." if self.separator == "," and "," not in text else max(",.", key=text.rfind)
        other = {",": ".", ".": ","}[decimal]
        if decimal == "," and text.count(",") > 1:  # 1,234,567
            decimal, other = ".", ","
        return re.sub(r"[\s'\u00a0\u202f]", "", text).replace(other, "").replace(decimal, ".")


def _unit_of(name: str) -> str:
    match = _UNIT.search(name)
    return (match[1] or match[2]) if match else ""


def _launches(table: _Table, columns: Import) -> list[_Launch]:
    ranks, time = table.place("--ranks", columns.ranks), table.place("--time", columns.time)
    threads = table.place("--threads", columns.threads) if columns.threads else None
    params = _named(table, "--param", columns.param or ())
    metrics = _named(table, "--metric", columns.metric or ())
    launches = []
    for line, row in table.rows:
        cells = row + [""] * (len(table.names) - len(row))
        launches.append(
            _Launch(
                line=line,
                ranks=_count(table, line, "ranks", cells[ranks]),
                threads=1 if threads is None else _count(table, line, "threads", cells[threads]),
                params={name: _value(table, cells[at]) for name, at in params.items()},
                time=table.number(cells[time]),
                metrics={name: table.number(cells[at]) for name, at in metrics.items()},
            )
        )
    return launches


def _named(table: _Table, option: str, words: Sequence[str]) -> dict[str, int]:
    """Return the places of columns by the names that the command line gives them."""
    places: dict[str, int] = {}
    for word in words:
        name, equals, column = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise UsageError(f"{option} {word}: expected name=COLUMN, such as n=N")
        places[name] = table.place(f"{option} {word}", column if equals else name)
    return places


def _count(table: _Table, line: int, what: str, text: str) -> int:
    try:
        value = number(table.number(text))
    except ValueError:
        value = Printed("0")
    if not (value >= 1 and value.is_integer()):
        raise UsageError(f"{table.file}:{line}: '{text}' is not a number of {what}")
    return int(value)


def _value(table: _Table, text: str) -> Any:
    """Return a parameter: a number as it was written, or a text."""
    plain = table.number(text) if re.fullmatch(r"[-+\d.,eE]+", text) else text
    try:
        value = number(plain)
    except ValueError:
        return text
    return with_text(int(plain) if _PLAIN.fullmatch(plain) else float(value), plain)


def _key(launch: _Launch) -> tuple[Any, ...]:
    return launch.ranks, launch.threads, *launch.params.values()


def _planned(
    file: Path, columns: Import, launches: Sequence[_Launch], unit: str
) -> tuple[dict[tuple[Any, ...], Case], dict[str, Any]]:
    """Return the cases of the table by what their lines share, and the document of their run."""
    points = {_key(each): {"ranks": each.ranks, "threads": each.threads, **each.params} for each in launches}
    metrics = [word.partition("=") for word in columns.metric or ()]
    figures = {
        _TIME: {"csv": file.name, "column": columns.time, "unit": unit, "better": "lower"},
        **{
            name: {"csv": file.name, "column": column or name, "unit": _unit_of(column or name)}
            for name, _, column in metrics
        },
    }
    workload: dict[str, Any] = {"command": IMPORTED, "figures": figures, "step_time": _TIME}
    if params := launches[0].params:
        workload["params"] = dict(params)
    if columns.work:
        workload["work"] = "=" + columns.work.removeprefix("=")
    name = columns.name or re.sub(r"[^A-Za-z0-9_-]+", "-", PurePosixPath(file.name).stem).strip("-_")
    values = {
        "name": name[:64] or "imported",
        "title": f"{file.name}, imported",
        "scaling": "weak" if columns.weak else "strong",
        "workload": workload,
        "sweep": {"cases": [*points.values()]},
    }
    largest = max(each.ranks * each.threads for each in launches)
    suite = load_suite(document_of(suite_text(values), {}), folder=file.parent)
    cases = expand(suite, unlimited(largest), runs=False).cases
    document = {
        "suite": {
            **{field: values[field] for field in ("name", "title", "scaling")},
            "given": suite.given,
            "resolved": suite.resolved,
        },
        "cases": [to_document(case) for case in cases],
        "expect": [],
        "repeats": 1,
        "auto": None,
        "seed": 1,
        "notes": [_UNKNOWN.format(file.name)],
        "provenance": {"machine": {}, "packages": {}, "environment": {}},
    }
    return dict(zip(points, cases, strict=True)), document


def _write(journal: Journal, case: Case, numbers: tuple[int, int], launch: _Launch, columns: Import) -> None:
    """Write the row of a launch; one without a time that is a number has failed."""
    repeat, index = numbers
    figures: dict[str, Reading] = {}
    for name, text in {_TIME: launch.time, **launch.metrics}.items():
        with suppress(ValueError):
            value, unit = number(text), case.workload.figures[name].unit
            figures[name] = Reading(value=float(value), unit=unit, resolution=value.resolution)
    status, reason, timed = "ok", "", dict[str, Any]()
    if _TIME in figures and figures[_TIME].value > 0:
        timed = write_figures(journal, (case.id, repeat), case, figures)
    else:
        reason = f"line {launch.line} has no time in {columns.time}, but '{launch.time:.40}'"
        status = "failed"
    row = {"status": status, "reason": reason, "launch_index": index, "provenance": json.dumps({}), **timed}
    write_part(journal.data, "cases", case.id, repeat, [{**planned_columns(case), **row}])
    journal.note(Ended(case=case.id, repeat=repeat, status=status, reason=reason, wall_s=0.0))
