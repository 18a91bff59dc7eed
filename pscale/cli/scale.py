"""`pscale scale`: a suite with a workload from one command line, measured as `pscale run` measures it."""

from __future__ import annotations

import os
import re
import select
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pscale.cli import tell
from pscale.cli.options import Scale, SuiteOptions
from pscale.cli.prepare import load, prepare
from pscale.cli.run import run_suites
from pscale.config import Launch
from pscale.config.expressions import names_in
from pscale.config.workload import FACTS
from pscale.config.workload_command import launched_program, why_nested
from pscale.errors import PlanError, UsageError
from pscale.runs import atomic_files
from pscale.suite.derive import suite_text
from pscale.suite.document import Document, Place, document_of, read_value
from pscale.suite.expand import expand
from pscale.suite.load import overridden

_BRACES = re.compile(r"\{\{\w+\}\}|\{([^{}:\"]+)\}")  # with a colon or a quote it is JSON for the program
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_METRIC = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?=(.+)", re.ASCII | re.DOTALL)
_UNIT_BEHIND = re.compile(r".*\)\s*(?:\\s[*+]?|[ :])*(min|ms|us|ns|s|h)\b.*", re.DOTALL)
_COUNT = re.compile(r"[1-9][0-9]{0,5}")
_OUTSIDE = re.compile(r",(?![^(]*\))")  # a comma that is in no parentheses
_LARGEST_DEFAULT = 1 << 20
_TIME, _RATE = "time", "rate"  # the figures of --step-time and --rate
_RATE_UNIT = re.compile(r"([A-Za-z]\w*/[A-Za-z]+)[^\w)]*\(|\)(?:\\s[*+]?|\s)*([A-Za-z]\w*/[A-Za-z]+)")
_TITLE = 80  # characters
_LAUNCH = ("bind", "launcher", "oversubscribe", "warmup")  # options that are fields of that group


def scale(options: Scale) -> int:
    """Measure how a program scales; return the exit code. With `save`, write the suite and run nothing."""
    program = options.program
    if not program:
        raise UsageError("name a program: pscale scale --ranks 1,2,4 -- ./a.out")
    if options.rate and (options.step_time or options.work):
        raise UsageError("--rate stands for --step-time and --work; give it without these")
    if why_nested(program):
        raise UsageError(_refusal(program))
    suite_options = SuiteOptions(site=options.site, folder=Path.cwd())
    smallest = Study(program, options, [1])
    _, _, target = load(smallest.document(), suite_options)
    cores = target.machine.all_cores
    ranks = _ranks(options.ranks) if options.ranks is not None else _powers(cores // options.threads)
    study = Study(program, options, ranks)
    document = study.document()
    if options.save is not None:
        _save(document, suite_options, options.save, {**target.machine.names(), "cores": 1 << 40})
        return 0
    if not options.oversubscribe:
        _check_cores(ranks, options.threads, cores, target.machine.host)
    if _standard_input() == "":
        tell("standard input is an open pipe, which launches do not read; name a file, `< FILE`")
    return run_suites([prepare(document, suite_options)], options)


def _refusal(program: Sequence[str]) -> str:
    """Return the refusal of a program that starts ranks itself, with the line to type."""
    name, inner, ranks = launched_program(program)
    series = ",".join(map(str, _powers(ranks)))
    line = f"pscale scale --ranks {series} -- {shlex.join(inner) or './a.out'}"
    return f"{name} starts ranks itself, which pscale does for each size; write the program alone:\n{line}"


def _powers(most: int) -> list[int]:
    """Return the powers of two up to a number, at least 1."""
    return [1 << power for power in range(max(min(most, _LARGEST_DEFAULT), 1).bit_length())]


def _ranks(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(_COUNT.fullmatch(word) for word in words):
        raise UsageError(f"--ranks: expected numbers such as 1,2,4,8, got '{text}'")
    return list(dict.fromkeys(map(int, words)))


def _check_cores(ranks: Sequence[int], threads: int, cores: int, host: str) -> None:
    large = [count for count in ranks if count * threads > cores]
    if not large:
        return
    others = ",".join(str(count) for count in ranks if count not in large)
    size = f" of {threads} threads" if threads > 1 else ""
    advice = f"--ranks {others} leaves them out, " if others else ""
    raise PlanError(
        f"{', '.join(map(str, large))} ranks{size} do not fit: {host} has {cores} cores; "
        f"{advice}--oversubscribe lets ranks share cores"
    )


def _save(document: Document, options: SuiteOptions, path: Path, machine: Mapping[str, float]) -> None:
    """Write the suite where it means the same as here, after all checks that need no machine."""
    if path.absolute().parent != Path.cwd():
        raise UsageError(f"--save {path}: names in the command are relative to this folder; save it here")
    if path.exists():
        raise UsageError(f"--save {path}: the file exists; name another, or remove it")
    suite, _, _ = load(document, options)
    expand(suite, machine)
    atomic_files.write(path, document.text)
    tell(f"{path} is the suite; pscale show {path} checks it, pscale run {path} measures it")


class Study:
    """The suite of one program: values of a file, and the option that each is from."""

    def __init__(self, program: Sequence[str], options: Scale, ranks: Sequence[int]):
        self._options = options
        self._label = f"-- {shlex.join(program)}"
        self._places: dict[tuple[str | int, ...], Place] = {}
        self._settings = dict(_setting(text) for text in options.values or ())
        self._params: dict[str, Any] = {}
        self._sweep: dict[str, Any] = {"ranks": list(ranks)}
        self._figures: dict[str, Any] = {}
        self._outputs: list[str] = []
        self._read_figures()
        self._command = self._command_of(program)
        self._fields = self._read_settings()
        self._program = program

    def document(self) -> Document:
        """Return the suite as `pscale run` reads it from a file."""
        options, name = self._options, _suite_name(self._program)
        launch = {
            field: value for field in _LAUNCH if (value := getattr(options, field)) != getattr(Launch, field)
        }
        workload: dict[str, Any] = {"command": self._command}
        workload |= {"stdin": file} if (file := _standard_input()) else {}
        workload |= {"params": self._params} if self._params else {}
        workload |= {"figures": self._figures} if self._figures else {}
        workload |= {"step_time": _TIME} if options.step_time else {}
        workload |= {"rate": _RATE} if options.rate else {}
        workload |= {"work": _expression(options.work)} if options.work else {}
        workload |= {"files": {"out": self._outputs}} if self._outputs else {}
        workload |= {"watch": "once"} if options.watch else {}
        scaling = "weak" if options.weak else "strong"
        values: dict[str, Any] = {
            "name": name,
            "title": f"{scaling.capitalize()} scaling of {shlex.join(self._program)}"[:_TITLE],
            "scaling": scaling,
            **({"threads": options.threads} if options.threads > 1 else {}),
            "workload": workload,
            "sweep": self._sweep,
            **({"launch": launch} if launch else {}),
        }
        self._place("workload", option=self._label)
        self._place("workload", "work", option="--work")
        document = Document(values=values, places={}, text="")
        for text in (*options.settings, *self._fields):
            document = overridden(document, text)
        text = suite_text(document.values, f"pscale scale … {self._label}")
        return document_of(text, {**document.places, **self._places})

    def _place(self, *path: str | int, option: str) -> None:
        self._places[path] = Place(option=option)

    def _read_figures(self) -> None:
        time, rate = self._options.step_time, self._options.rate
        for name, option, regex, better, in_unit, usual in (
            (_TIME, "--step-time", time, "lower", _UNIT_BEHIND, "s"),
            (_RATE, "--rate", rate, "higher", _RATE_UNIT, "1/s"),
        ):
            if regex:
                match = in_unit.search(regex)
                said = next(filter(None, match.groups()), usual) if match else usual
                unit = "match" if _groups(regex) == 2 else said
                self._figures[name] = {"regex": regex, "unit": unit, "better": better}
                self._place("workload", "figures", name, option=option)
        for text in self._options.metric or ():
            option = f"--metric {text}"
            if not (match := _METRIC.fullmatch(text)):
                form = "name=REGEX or name=@FILE:PATH, such as 'error=error: (\\S+)'"
                raise UsageError(f"{option}: expected {form}")
            name, unit, source = match.groups()
            if name in self._figures:
                raise UsageError(f"{option}: the name '{name}' is given twice; expected another")
            self._figures[name] = {**_reading(option, source), **({"unit": unit} if unit else {})}
            self._place("workload", "figures", name, option=option)

    def _command_of(self, program: Sequence[str]) -> str:
        """Return the command of the suite: expressions are parameters, files of this folder have `{here}`."""
        words = []
        for index, word in enumerate(program):
            text = _BRACES.sub(lambda match, at=index: self._placeholder(match, at), word)  # type: ignore[misc]
            words.append(self._with_folder(text) if index else text)
        return " ".join(word if _is_one_word(word) else shlex.quote(word) for word in words)

    def _placeholder(self, match: re.Match[str], index: int) -> str:
        """Return the name in braces that stands for what braces have in an argument of the program."""
        text = (match[1] or "").strip()
        if not text:
            return match[0]
        if _NAME.fullmatch(text):
            if text not in self._settings and text not in FACTS:
                raise UsageError(f"{self._label}: {{{text}}} has no value; give it one: --set {text}=400,800")
            return f"{{{text}}}"
        expression = _expression(text)
        name = next((name for name, value in self._params.items() if value == expression), f"arg{index}")
        while self._params.get(name, expression) != expression or name in self._settings:
            name += "_"
        self._params[name] = expression
        self._place("workload", "params", name, option=self._label)
        return f"{{{name}}}"

    def _with_folder(self, word: str) -> str:
        """Return an argument with the place of a file that it names: launches run in other folders."""
        option, equals, name = word.rpartition("=") if word.startswith("-") else ("", "", word)
        if not name or name.startswith(("/", "{")) or not os.path.isfile(name):  # noqa: PTH113 - False for what no path can be
            return word
        if name in {figure.get("json") or figure.get("csv") for figure in self._figures.values()}:
            self._outputs.append(name)
            return word
        return f"{option}{equals}{{here}}/{name}"

    def _read_settings(self) -> list[str]:
        """Sort what `--set` gives: parameters that the program has, and fields of the suite."""
        names = {name for name in self._settings if f"{{{name}}}" in self._command}
        expressions = [*self._params.values(), *filter(None, [self._options.work])]
        expressions += [value for value in self._settings.values() if value.startswith("=")]
        names |= {name for text in expressions for name in names_in(text.removeprefix("="))}
        fields = []
        for name, text in self._settings.items():
            option = f"--set {name}={text}"
            if name not in names and ("." in name or name in _SUITE_FIELDS):
                fields.append(f"{name}={text}")
                continue
            if name not in names:
                raise UsageError(f"{option}: the program has no {{{name}}}; write it where its value belongs")
            words = map(str.strip, _OUTSIDE.split(text))
            values = [word if word.startswith("=") else read_value(word, option) for word in words]
            if len(values) > 1:
                self._sweep[name] = values
                self._place("sweep", name, option=option)
            if len(values) == 1 or f"{{{name}}}" not in self._command:  # only expressions have the name
                self._params[name] = values[0]
                self._place("workload", "params", name, option=option)
        return fields


_SUITE_FIELDS = ("repeat", "known_to", "max_repeats", "title", "exclude", "base", "expect")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and value and name.strip()):
        raise UsageError(f"--set {text}: expected name=value or name=value,value, such as n=400,800")
    return name.strip(), value.strip()


def _expression(text: str) -> str:
    """Return an expression of a suite; `cores` are those of the case, as in the command."""
    return "=" + re.sub(r"\bcores\b", "(ranks * threads)", text.strip().removeprefix("="))


def _groups(regex: str) -> int:
    try:
        return re.compile(regex).groups
    except re.error:
        return 0  # the suite says what is wrong with it


def _reading(option: str, source: str) -> dict[str, str]:
    """Return how a figure is read: by a pattern of the output, or from a file that the program writes."""
    if not source.startswith("@"):
        return {"regex": source}
    file, colon, path = source[1:].partition(":")
    if not (file and colon and path):
        raise UsageError(f"{option}: expected @FILE:PATH, such as @result.json:norm.l2 or @table.csv:column")
    is_table = PurePosixPath(file).suffix in (".csv", ".tsv")
    return {"csv": file, "column": path} if is_table else {"json": file, "path": path}


def _suite_name(program: Sequence[str]) -> str:
    """Return the name of the results' folder: that of the program, or of an interpreter's script."""
    scripts = (word for word in program[1:] if PurePosixPath(word).suffix in (".py", ".sh", ".jl", ".R"))
    name = PurePosixPath(next(scripts, program[0])).name
    stem = name if name.startswith(".") else PurePosixPath(name).stem
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:40] or "program"


def _is_one_word(word: str) -> bool:
    try:
        return shlex.split(word) == [word]
    except ValueError:
        return False


def _standard_input() -> str | None:
    """Return the file that is standard input; empty: a pipe without data; None: a terminal or nothing."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    if stat.S_ISREG(mode):
        if not (link := Path("/proc/self/fd/0")).exists():
            raise UsageError("standard input: this system does not name the file; have the program open it")
        here, path = Path.cwd(), link.resolve()
        return str(path.relative_to(here) if path.is_relative_to(here) else path)
    if stat.S_ISFIFO(mode):
        if not select.select([0], [], [], 0)[0]:
            return ""
        if os.read(0, 1):
            why = "of which only one launch could read: name a file, `< FILE`"
            raise UsageError(f"standard input is a pipe, {why}")
    return None
