"""A program to measure in place of pscale's trainer: how it is started, and where its figures are."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pscale.config.choices import AnyValue, Group, NonEmpty, Number, Text
from pscale.config.metrics import conversion

WALL, WATCH = "wall", "watch"  # what a step time may be, beside a figure
ONCE = "once"  # `watch`: in one launch of its own
IMPORTED = "imported"  # the command of launches that somebody else made
# What a command may name beside its parameters; expressions call two of these the machine's.
FACTS = ("ranks", "threads", "cores", "nodes", "here")
_NUMBER = re.compile(r"\s*[-+]?((\d+\.?\d*|\.\d+)([eEdD][-+]?\d+)?|(\d+\.\d*|\.\d+)[-+]\d{3})\s*", re.ASCII)
_WAYS = {  # to a number, by what a text that is none looks like
    re.compile(r"\s*[-+]?\*+\s*"): "Fortran prints * where a number does not fit: widen its format",
    re.compile(r"\s*\d+(:\d+)+(\.\d*)?\s*"): "have the program print seconds, or write `step_time: wall`",
    re.compile(r"\s*[-+]?\d[\d.]*([,'\s]\d+)+\.?\d*\s*"): (
        "where a locale adds commas, `launch: {env: {LC_ALL: C}}` leaves them out; else have it print 1234.5"
    ),
    re.compile(r"\s*[-+]?\d+(\.\d*)?([eEdD][-+]?\d+)?[^\d\s._'].*"): (
        r"the group has more than a number: `([-+.\deE]+)` ends before a unit or a comma"
    ),
}
_BARE_EXPONENT = re.compile(r"(?<=[\d.])(?=[-+])")  # of three digits
_SUITE_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]{1,308}(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
LARGEST_WHOLE = 1 << 53  # that programs agree on which read JSON
MATCH = "match"  # the unit of a figure that is read from the output, too
_MOST_FIGURES = 100
_MOST_REGEX, _BEYOND_ASCII = 4_000, 10  # characters of all patterns; a rare one counts as so many: see below
_RARE = re.compile(r"[^\0-\x7f]|\\[uUN]")
_TAKEN = frozenset({*FACTS, "cores_per_node", "memory_gib"})

Name = Annotated[str, Text(r"[A-Za-z_][A-Za-z0-9_]*", "a name of letters, digits and _")]
Regex = Annotated[str, Text(r"[^\0]{1,500}", "a regular expression of at most 500 characters")]
Command = Annotated[str, Text(r"[^\0]*[^\s\0][^\0]*", "a program with its arguments, such as './a.out {n}'")]
FileName = Annotated[str, Text(r"[^\0]+", "the name of a file")]
Value = Annotated[bool | int | float | str, AnyValue()]


@dataclass(frozen=True, kw_only=True)
class Figure(Group):
    """A figure of merit: a number in the output of the program, or in a JSON or CSV file that it writes."""

    regex: Regex | None = None
    """Regular expression over the whole output, with one group: the number. `^` and `$` are those of a line.
    Standard error is searched if standard output has no match."""
    json: FileName | None = None
    """Instead of `regex`: a JSON file that the program writes. Of several documents, a line each, all count
    that have the number."""
    path: NonEmpty | None = None
    """`json`: the names that lead to the number, joined by dots, as `runs.0.cg`; places in lists are numbers,
    -1 is the last. Names that have dots: a JSON Pointer, as `/latency/99.9`."""
    csv: FileName | None = None
    """Instead of `regex`: a CSV file that the program writes, its columns separated by `,`, `;` or tabs."""
    column: NonEmpty | None = None
    """`csv`: the name of the column in the first line, or its place from 0."""
    row: NonEmpty | None = None
    """`csv`: the text in the first column of the row; null: all rows."""
    value: Annotated[str, Text(r"=[^\0]+", "an expression such as '=2 * n**3 / total'")] | None = None
    """Instead of `regex`: an expression over parameters, `ranks`, `threads`, `cores` (ranks × threads) and
    figures above this one, each in its unit."""
    pick: Literal["last", "first", "min", "max", "mean", "median", "sum", "count"] | None = None
    """Which of several numbers counts, or what of them: `count` is how many there are, and needs no group.
    Null: the last."""
    steps: bool = False
    """All numbers are the steps of the launch, in order: for the figure that is the `step_time`."""
    unit: str = ""
    """Unit, for the report and for `expect`; that of a step time is `s`, `ms`, `us`, `ns`, `min` or `h`.
    `match`: a second group of `regex`."""
    better: Literal["lower", "higher"] | None = None
    """Which values are better: `pscale check --update` bounds the others; null: neither."""

    @property
    def file(self) -> str:
        """The file that the number is in; empty: the output."""
        return self.json or self.csv or ""

    def check_fields(self) -> None:
        """Raise ValueError for a figure that could never be found."""
        if sum(map(bool, (self.regex, self.json, self.csv, self.value))) != 1:
            raise ValueError("expected regex, json, csv or value, one of them: where the number is")
        if self.value and (self.pick or self.steps):
            raise ValueError("pick and steps are for numbers that the program writes, not for value")
        if self.json and not self.path:
            raise ValueError(f"path is missing; expected where in {self.json} the number is, as cg.time")
        if self.path and not self.json:
            raise ValueError("path is for json, a file that the program writes")
        if self.csv and not self.column:
            raise ValueError(f"column is missing; expected its name in the first line of {self.csv}")
        if (self.column or self.row) and not self.csv:
            raise ValueError("column and row are for csv, a file that the program writes")
        if self.steps and self.pick:
            raise ValueError("pick and steps: all numbers are steps, or one figure is made of them")
        if self.unit == MATCH and not self.regex:
            raise ValueError("unit: match is for regex, whose second group is the unit")
        if self.regex:
            self._check_groups(self.regex)

    def _check_groups(self, regex: str) -> None:
        groups = compiled(regex).groups
        if self.unit == MATCH:
            if groups != 2 or self.pick == "count":
                raise ValueError(f"regex has {groups} groups; expected two, the number and its unit")
        elif groups != 1 and not (self.pick == "count" and groups == 0):
            raise ValueError(f"regex has {groups} groups; expected one, the number: 'Time: (\\S+)'")


@dataclass(frozen=True, kw_only=True)
class Success(Group):
    """What the end of a launch has to be like; else it failed."""

    regex: Regex | None = None
    """Regular expression that the output has to match somewhere; null: none."""
    exit: Annotated[int, Number(ge=0, le=255, computed=False)] = 0
    """Exit code of the launcher: that of a rank that failed."""

    def check_fields(self) -> None:
        """Raise ValueError for an expression that is none."""
        compiled(self.regex or "")


@dataclass(frozen=True, kw_only=True)
class Files(Group):
    """Files of a launch, which runs in a folder of its own; their names may have `{…}` as the command."""

    in_: tuple[FileName, ...] = ()
    """Files that are copied into that folder, relative to the suite's."""
    out: tuple[FileName, ...] = ()
    """Files that the program has to leave there, such as `out.json` or `*.log`. They are kept; whatever else
    it writes there is deleted when it has ended well."""


@dataclass(frozen=True, kw_only=True)
class Workload(Group):
    """A program to measure in place of pscale's trainer: any command that mpiexec can start."""

    command: Annotated[
        str, Text(r"[^\0]*[^\s\0][^\0]*", "a program with its arguments, such as './a.out {n}'")
    ]
    """Program and arguments, as on a command line. `{ranks}`, `{threads}`, `{cores}` (ranks × threads),
    `{nodes}` (of the case) and `{NAME}` of every parameter stand for their values, `{here}` for the suite's
    folder; `{{NAME}}` is `{NAME}`. It is split into arguments before values are put in, so a value is always
    two arguments."""
    build: Annotated[str, Text(r"[^\0]*[^\s\0][^\0]*", "a program with its arguments")] | None = None
    """Command that makes the program or its input, such as `mpicc -DN={n} -o mine-{n} mine.c`: run once for
    each set of the parameters that it names, in the suite's folder and before any launch. If it fails, its
    cases do."""
    stdin: FileName | None = None
    """File that rank 0 reads as standard input, relative to the suite's folder; its name may have `{…}` as
    the command. Null: it is empty, and reading it ends at once."""
    params: Mapping[Name, Value] = field(default_factory=dict)
    """Parameters by name: numbers, texts, or expressions as `"=64 * ranks"`; `sweep` varies them by name."""
    figures: Mapping[Name, Figure] = field(default_factory=dict)
    """Figures of merit by name: [below](#workloadfigures-values-read-from-the-output)."""
    step_time: Name | None = None
    """What the report calls a step: a figure; `wall`, the whole launch with its start; or `watch`, the steps
    that `watch: true` finds. Null: `watch` with `watch: true`, else `wall`."""
    rate: Name | None = None
    """Instead of `step_time` and `work`: a figure that is a rate, as GFLOP/s or ns/day. Efficiency is the
    rate of a core; the step time is that of one unit, by the time behind the `/` of the figure's unit."""
    same_work: tuple[NonEmpty, ...] = ()
    """Parameters that change how the work is done, not what it is, and `command` where that is so: cases that
    differ in others are listed by `pscale compare`, not compared."""
    work: Annotated[float, Number(gt=0)] | None = None
    """What a step computes on all ranks, in any unit: `"=n ** 3"`. Efficiency is work per core and second.
    Null: equal work at all sizes of strong scaling, and on each core in weak scaling."""
    success: Success = Success()
    encoding: Annotated[str, Text(r"[A-Za-z0-9_.:-]{1,40}", "the name of an encoding")] = "utf-8"
    """Encoding of what the program prints and of the JSON and CSV files that it writes."""
    files: Files = Files()
    shell: bool = False
    """Let `/bin/sh` read the command; values are quoted for it, so `{NAME}` stands outside of quotes."""
    watch: bool | Literal["once"] = False
    """Record every MPI call, as [`pscale watch`](any-program.md) does: who waits for whom, and why. `once`:
    in one more launch of each case, whose times do not count."""

    @property
    def times(self) -> str:
        """What a step is: the name of a figure, `wall` or `watch`."""
        return self.rate or self.step_time or (WATCH if self.watch is True else WALL)

    @property
    def timed(self) -> str:
        """What is timed, a step or a whole launch, as a noun."""
        return "launch" if self.command and self.times == WALL else "step"

    def step_s(self, value: float, unit: str) -> float:
        """Return the step time that the figure `times` says; NaN where its unit is not one of time."""
        if self.rate is None:
            return value * (conversion(unit, "s") or math.nan)
        return (conversion(unit.rpartition("/")[2], "s") or 1.0) / value

    @property
    def lists_steps(self) -> bool:
        """Whether the program tells the time of each of its steps."""
        return self.watch is not True and self.times in self.figures and self.figures[self.times].steps

    @classmethod
    def check_written(cls, values: Any) -> None:
        """Raise ValueError for so many patterns that it could take seconds to compile them."""
        figures = values.get("figures", {}) if isinstance(values, dict) else None
        if not isinstance(figures, dict):
            return
        if len(figures) > _MOST_FIGURES:
            raise ValueError(f"figures: there are {len(figures)}; expected at most {_MOST_FIGURES}")
        given = (*figures.values(), values.get("success"))
        patterns = [each["regex"] for each in given if isinstance(each, dict) and "regex" in each]
        if sum(_weight(pattern) for pattern in patterns if isinstance(pattern, str)) > _MOST_REGEX:
            most = f"at most {_MOST_REGEX}, where one beyond ASCII counts as {_BEYOND_ASCII}"
            raise ValueError(f"figures: the regular expressions have too many characters; expected {most}")

    def check_fields(self) -> None:
        """Raise ValueError for what does not fit together."""
        for name in self.params:
            if name in _TAKEN:
                raise ValueError(f"params: {name} is known already; expected another name")
        for name in self.same_work:
            if name != "command" and name not in self.params and name not in placeholders(self.command):
                raise ValueError(f"same_work: there is no parameter '{name}'; expected one, or command")
        for name, figure in self.figures.items():
            if name in (WALL, WATCH):
                raise ValueError(f"figures: {name} stands for a step time; expected another name")
            if figure.steps and name != self.times:
                raise ValueError(f"figures: {name} has steps: true, which is for the figure of step_time")
        try:
            "".encode(self.encoding)
        except (LookupError, UnicodeError):
            raise ValueError(f"encoding: there is no '{self.encoding}'; expected one as utf-8") from None
        if self.rate is not None:
            self._check_rate()
        elif self.times == WATCH and self.watch is not True:
            raise ValueError("step_time: watch needs watch: true")
        elif self.times not in (WALL, WATCH):
            self._check_step_time()

    def _check_rate(self) -> None:
        if self.step_time or self.work is not None:
            raise ValueError("rate stands for step_time and work; leave these out")
        if self.rate not in self.figures:
            known = ", ".join(self.figures) or "none"
            raise ValueError(f"rate: there is no figure '{self.rate}'; there are {known}")

    def _check_step_time(self) -> None:
        if self.times not in self.figures:
            known = ", ".join([*self.figures, WALL, WATCH])
            raise ValueError(f"step_time: there is no figure '{self.times}'; expected one of {known}")
        unit = self.figures[self.times].unit
        if unit != MATCH and conversion(unit, "s") is None:
            expected = "expected a unit of time for the figure, such as s, ms, us, ns, min or h"
            raise ValueError(f"step_time: {self.times} is in {unit or 'no unit'}; {expected}")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What the command of a case names here: found when its suite is expanded."""

    folder: str = ""  # of the suite: where relative names begin
    sha256: Mapping[str, str] = field(default_factory=dict)  # of the program and of every file it is given


def _weight(regex: str) -> int:
    """Return how long it can take to compile a pattern: a range of 65,000 characters takes some ms."""
    return len(regex) + (_BEYOND_ASCII - 1) * len(_RARE.findall(regex))


def compiled(regex: str) -> re.Pattern[str]:
    """Return a regular expression of a suite; raises ValueError for one that is none."""
    try:
        return re.compile(regex, re.MULTILINE)
    except (re.error, RecursionError) as error:
        raise ValueError(f"regex is not a valid regular expression: {error}") from None


class Printed(float):
    """A number as programs write it, with the `resolution` of its text: the unit of the last digit.

    That is 0.01 of `1.50` and 100 of `2.5e3`.
    """

    resolution: float

    def __new__(cls, text: str) -> Self:
        """Read a text, also `1.5D-03` and `1.5-103` of Fortran."""
        written = _BARE_EXPONENT.sub("e", text.strip().lower().replace("d", "e"))
        digits, _, exponent = written.partition("e")
        read = super().__new__(cls, f"{digits}e{exponent or 0}")
        read.resolution = float(f"1e{int(exponent or 0) - len(digits.partition('.')[2])}")
        return read


def number(text: str) -> Printed:
    """Read a number as programs write it; raises ValueError for any other text."""
    value = Printed(text) if _NUMBER.fullmatch(text) else math.nan
    if not isinstance(value, Printed) or not math.isfinite(value):
        way = next((f": {way}" for looks, way in _WAYS.items() if looks.fullmatch(text)), "")
        raise ValueError(f"not a finite number{way}")
    return value


class WholeNumber(int):
    """A whole number with its text in a suite, where Python writes it in another way: `007`."""

    text: str


class DecimalNumber(float):
    """A number with its text in a suite, where Python writes it in another way: `1e6`, `3.10`."""

    text: str


def with_text(value: int | float, text: str) -> int | float:
    """Return a number that keeps the text in which it was written."""
    if str(value) == text:
        return value
    number: WholeNumber | DecimalNumber = (WholeNumber if isinstance(value, int) else DecimalNumber)(value)
    number.text = text
    return number


def without_text(value: Any) -> Any:
    """Return a number of `with_text` as a plain one; anything else as it is."""
    return value.real if isinstance(value, WholeNumber | DecimalNumber) else value


def plain(value: Value | None) -> str:
    """Return a single value as YAML has it: a number as it was written."""
    words = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return getattr(value, "text", words)


_BARE = re.compile(r"(?!(true|false|null)$)[A-Za-z0-9_./][\w./ -]*(?<! )", re.IGNORECASE | re.ASCII)
_DIGITS = re.compile(r"[\d.eE_-]*")


def flow(value: Any) -> str:
    """Return a value as YAML has it in a line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if not isinstance(value, str):
        return plain(value)
    quoted = "'" + value.replace("'", "''") + "'" if value.isprintable() else json.dumps(value)
    return value if _BARE.fullmatch(value) and not _DIGITS.fullmatch(value) else quoted


def stored(value: Value) -> Value:
    """Return a parameter as results keep it: a number by its text where JSON would not give that back."""
    exact = isinstance(value, bool | str) or (str(value) == plain(value) and abs(value) <= LARGEST_WHOLE)
    return value if exact else plain(value)


def numeric(value: Value) -> Value:
    """Return the number that `stored` keeps by its text; any other value as it is."""
    if not isinstance(value, str) or not _SUITE_NUMBER.fullmatch(value):
        return value
    number = int(value) if value.lstrip("+-").isdecimal() else float(value)
    return number if stored(with_text(number, value)) == value and math.isfinite(number) else value


PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")


def placeholders(text: str) -> Iterator[str]:
    """Yield the names in braces in a text."""
    yield from (found[2] for found in PLACEHOLDER.finditer(text) if found[2])
