"""The command of a workload: its arguments, the files that it names, and what is wrong with it.

A command is divided into words before values are put in, and no shell reads it unless it asks for one. The
first word is always the absolute path of a program, so no value is ever an option of the launcher.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from pscale.config import Case, Program
from pscale.config.expressions import names_in
from pscale.config.workload import FACTS, PLACEHOLDER, numeric, placeholders, plain
from pscale.runs import atomic_files

SHELL = "/bin/sh"
_ASSIGNED = re.compile(r"-{1,2}[\w-]+=(.+)", re.DOTALL)
_SEPARATOR = ":"  # of several programs in one command of mpiexec and srun
_WRAPPERS = {"env", "numactl", "time", "stdbuf", "nice", "taskset", "setarch"}
_LAUNCHERS = re.compile(r"(mpi(exec|run)(\.\w+)?|srun|prun|prterun|aprun|jsrun) |flux (run|submit|alloc) ")
_COUNTS = ("-n", "-np", "--np", "-c", "--ntasks")  # options of launchers: how many ranks
_COUNT = re.compile(r"(?:-n|--np=|--ntasks=|-np=)(\d+)")
WRITE_ALONE = (
    "write the program alone, as ./a.out; the number of ranks is `ranks` of a suite, or `-n` of pscale "
    "watch, and options of the launcher are `launch: {extra: [...]}`"
)
Path_ = tuple[str | int, ...]
Found = tuple[Path_, str]  # a field, and what is wrong with it


def arguments(case: Case, nodes: int = 1, *, build: bool = False) -> tuple[str, ...]:
    """Return what each rank of a case is, or what builds it: a program by its absolute path, and arguments.

    `nodes` is how many the case runs on. Raises ValueError where the command is none.
    """
    values, command = _values(case, nodes), (case.workload.build or "") if build else case.workload.command
    if case.workload.shell:
        quoted = {name: shlex.quote(value) for name, value in values.items()}
        return SHELL, "-c", _filled(command, quoted)
    first, *rest = (_filled(word, values) for word in shlex.split(command))
    return str(_program(first, case.program.folder) or first), *rest


def innermost(words: Sequence[str]) -> str:
    """Return the program that a command starts behind `env`, `numactl`, `time`, `stdbuf` and their like.

    It is the first word behind them that is a program and no option; else the first word of all.
    """
    if PurePosixPath(words[0]).name not in _WRAPPERS:
        return words[0]
    rest = (place for place, word in enumerate(words[1:], 1) if word[:1] != "-" and shutil.which(word))
    place = next(rest, None)
    return innermost(words[place:]) if place else words[0]


def why_nested(words: Sequence[str]) -> str:
    """Say why a command is refused that starts ranks itself; empty: it does not."""
    place = words.index(innermost(words))
    program = PurePosixPath(words[place]).name
    if not _LAUNCHERS.match(" ".join([program, *words[place + 1 :], ""])):
        return ""
    return f"each rank would start {program}, which starts ranks itself: {WRITE_ALONE}"


def launched_program(words: Sequence[str]) -> tuple[str, Sequence[str], int]:
    """Return the launcher that a nested command starts, the program behind it, and its number of ranks.

    The program is the first word behind the launcher that is one and follows no option; it may be none.
    """
    place = words.index(innermost(words))
    rest = [*words[place + 1 :]]
    counts = [int(value) for option, value in pairwise(rest) if option in _COUNTS and value.isdecimal()]
    counts += [int(found[1]) for word in rest if (found := _COUNT.fullmatch(word))]
    programs = (at for at, word in enumerate(rest) if word[:1] != "-" and shutil.which(word))
    inner = next(programs, len(rest))
    return PurePosixPath(words[place]).name, rest[inner:], max(counts[:1] or [1])


def is_launcher(program: str) -> bool:
    """Tell whether a program of this name may start ranks."""
    return program == "flux" or _LAUNCHERS.fullmatch(f"{program} ") is not None


def inputs(case: Case) -> list[Path]:
    """Return the files that are copied into the folder of every launch."""
    values = _values(case)
    return [_beside(case, _filled(name, values)) for name in case.workload.files.in_]


def standard_input(case: Case) -> Path | None:
    """Return the file that the program reads as standard input; None: it is empty."""
    name = case.workload.stdin
    return _beside(case, _filled(name, _values(case))) if name else None


def outputs(case: Case) -> list[str]:
    """Return names, or patterns of names, of the files that a launch leaves."""
    values = _values(case)
    return [_filled(name, values) for name in case.workload.files.out]


def figure_file(case: Case, name: str) -> str:
    """Return the name of the file in which a figure is."""
    return _filled(case.workload.figures[name].file, _values(case))


def with_program(case: Case, folder: Path) -> Case:
    """Return a case of a workload with what its command names in `folder`, and the hashes of all of it."""
    found = replace(case, program=Program(folder=str(folder.absolute())))
    if found.workload.build:  # makes what would be hashed: the run keeps what it made
        return found
    return replace(found, program=replace(found.program, sha256=digests(found)))


def digests(case: Case) -> Mapping[str, str]:
    """Return the SHA-256 of the program and of every file that it is given, by the names of the suite."""
    try:
        words = arguments(case)
    except (ValueError, KeyError):
        return {}  # `problems` says why
    given = [SHELL, *_shell_words(words[-1])] if case.workload.shell else [*words]
    named = [Path(path) for word in given if (path := _assigned(word)).startswith("/")]
    read = standard_input(case)
    files = [path for path in (*named, *inputs(case), *([read] if read else [])) if _is_file(path)]
    names = Counter(path.name for path in set(files))
    return {path.name if names[path.name] == 1 else str(path): atomic_files.sha256(path) for path in files}


def problems(case: Case) -> Iterator[Found]:
    """Yield what keeps the program of a case from being started, before anything is."""
    unknown = list(_unknown_names(case))
    yield from unknown
    if unknown:
        return
    first = "build" if case.workload.build else "command"  # its program has to be there
    words: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(("command", first)):
        try:
            words[name] = arguments(case, build=name == "build")
        except ValueError as error:
            yield ("workload", name), f"cannot be divided into arguments: {error}"
    if "command" not in words:
        return
    if not case.workload.shell:
        if first in words and (why := _why_no_program(words[first][0], case.program.folder)):
            yield ("workload", first), why
        whys = filter(None, (why_nested(words["command"]), *_why_no_arguments(case, words["command"][1:])))
        yield from ((("workload", "command"), why) for why in whys)
    if first == "command":
        yield from _input_problems(case)
    yield from _figure_problems(case)
    for path, text in _texts(case):
        file = PurePosixPath(_filled(text, _values(case)))
        written = "out" in path or path[1] == "figures"
        if written and (file.is_absolute() or ".." in file.parts):
            yield path, f"{file} is outside of the launch's folder"


def numbers(case: Case) -> dict[str, float | str | bool]:
    """Return what the expression of a figure may name, beside other figures."""
    facts = {"ranks": case.ranks, "threads": case.threads, "cores": case.cores}
    return {**{name: numeric(value) for name, value in case.workload.params.items()}, **facts}


def used_names(case: Case) -> set[str]:
    """Return the names in braces in the command and in the names of files."""
    return {name for _, text in _texts(case) for name in placeholders(text)}


def _figure_problems(case: Case) -> Iterator[Found]:
    """Yield names in the expressions of figures that no parameter and no figure above has."""
    known = [*numbers(case)]
    for name, figure in case.workload.figures.items():
        for unknown in sorted(names_in((figure.value or "").removeprefix("=")) - {*known}):
            near = difflib.get_close_matches(unknown, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
            yield ("workload", "figures", name, "value"), f"unknown name '{unknown}'; {hint}"
        known.append(name)


def _values(case: Case, nodes: int = 1) -> dict[str, str]:
    facts: dict[str, float | str] = {
        "ranks": case.ranks,
        "threads": case.threads,
        "cores": case.ranks * case.threads,
        "nodes": nodes,
        "here": case.program.folder,
    }
    return {name: plain(value) for name, value in {**case.workload.params, **facts}.items()}


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Put values in the place of names, once: what a value says is never looked at again."""
    return PLACEHOLDER.sub(lambda found: f"{{{found[1]}}}" if found[1] else values[found[2]], text)


def _texts(case: Case) -> Iterator[tuple[Path_, str]]:
    """Yield what may have names in braces, and where it was written."""
    workload = case.workload
    yield ("workload", "command"), workload.command
    for name in ("build", "stdin"):
        if text := getattr(workload, name):
            yield ("workload", name), text
    for kind, names in (("in", workload.files.in_), ("out", workload.files.out)):
        yield from ((("workload", "files", kind, place), name) for place, name in enumerate(names))
    for name, figure in workload.figures.items():
        if figure.file:
            yield ("workload", "figures", name, "json" if figure.json else "csv"), figure.file


def _unknown_names(case: Case) -> Iterator[Found]:
    known = [*case.workload.params, *FACTS]
    for path, text in _texts(case):
        for name in dict.fromkeys(placeholders(text)):
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {{{near[0]}}}?" if near else f"known are {', '.join(known)}"
                yield path, f"{{{name}}} has no value; {hint}; give it one in params or sweep"


def _program(word: str, folder: str) -> Path | None:
    """Return the absolute path of a program: by its name on PATH, or relative to `folder`."""
    if "/" not in word:
        found = shutil.which(word)
        return Path(found).absolute() if found else None
    return Path(os.path.normpath(Path(folder, os.path.expanduser(word))))  # noqa: PTH111 - keeps ~nobody


def _why_no_program(word: str, folder: str) -> str:
    path = Path(word)
    if not path.is_absolute():
        beside = Path(folder, word)
        hint = f"; the file next to the suite is './{word}'" if _is_file(beside) else ""
        return f"there is no program '{word}' on PATH{hint}"
    if not os.path.exists(path):  # noqa: PTH110 - a path may be too long
        return f"there is no program {path}; build it first, or correct its path"
    if not path.is_file():
        return f"{path} is a folder, not a program"
    return "" if os.access(path, os.X_OK) else f"{path} cannot be executed: chmod +x '{path}'"


def _why_no_arguments(case: Case, words: tuple[str, ...]) -> Iterator[str]:
    copied = {path.name for path in inputs(case)} | {*outputs(case)}
    for word in words:
        if word == _SEPARATOR:
            yield "an argument ':' would begin another program for mpiexec; expected another text"
        name = _assigned(word)
        beside = name and not name.startswith("/") and name not in copied and _is_file(_beside(case, name))
        if beside:
            yield (
                f"'{name}' is a file next to the suite, but each launch runs in its own folder: write "
                f"'{{here}}/{name}', or have it copied there, `files: {{in: [{name}]}}`"
            )


def _input_problems(case: Case) -> Iterator[Found]:
    if (read := standard_input(case)) and not _is_file(read):
        yield ("workload", "stdin"), f"there is no file {read}"
    seen: dict[str, Path] = {}
    for place, path in enumerate(inputs(case)):
        written = ("workload", "files", "in", place)
        if not _is_file(path):
            yield written, f"there is no file {path}"
        if seen.setdefault(path.name, path) != path:
            yield written, f"has the name of another file: {seen[path.name]}"


def _assigned(word: str) -> str:
    """Return the value of an argument such as --input=FILE; else the argument."""
    found = _ASSIGNED.fullmatch(word)
    return found[1] if found else word


def _shell_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _beside(case: Case, name: str) -> Path:
    return Path(os.path.normpath(Path(case.program.folder, name)))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that can be no path
        return False
