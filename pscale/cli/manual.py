"""What docs and the man page say of commands, fields and events: `make manual` writes them again."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from typer.main import get_command

from pscale import __version__, errors
from pscale.cli.app import application, example_lines
from pscale.cli.options import COMMANDS
from pscale.config.choices import MOST, AnyValue, Bytes, Number, Text
from pscale.config.metrics import METRICS
from pscale.runs.run_events import KINDS
from pscale.suite.fields import Field, documentation, fields_of, fields_of_any_kind, group_at, kinds_of
from pscale.suite.file import Sweep
from pscale.suite.schema import editor_schema

_ENDS = {
    0: "All is well.",
    errors.FAILED: "A case failed, or a check did not hold.",
    **{kind.exit_code: inspect.getdoc(kind) for kind in (errors.UsageError, errors.PlanError)},
    **{kind.exit_code: inspect.getdoc(kind) for kind in (errors.LaunchError, errors.ResultsError)},
    errors.UNDECIDED: "No check failed, but intervals leave some undecided.",
    errors.INTERRUPTED: "Interrupted; what has ended is kept.",
}


class Entry(NamedTuple):
    """All that help says of a command; `words` are its arguments and options as typed, and their meanings."""

    name: str
    group: str
    usage: str
    paragraphs: Sequence[str]
    words: Sequence[tuple[str, str]]
    examples: Mapping[str, str]


def entries() -> list[Entry]:
    """Return pscale itself, then its commands, those of a group together, in the order of help."""
    root: Any = get_command(application())
    groups = list(dict.fromkeys(command.rich_help_panel for command in root.commands.values()))
    commands = sorted(root.commands.values(), key=lambda each: groups.index(each.rich_help_panel))
    return [_entry(root, "pscale", "Every command", {}), *map(_command_entry, commands)]


def _command_entry(command: Any) -> Entry:
    examples = COMMANDS[command.name].examples
    return _entry(command, f"pscale {command.name}", command.rich_help_panel, examples)


def _entry(command: Any, name: str, group: str, examples: Mapping[str, str]) -> Entry:
    said = [each for each in command.params if each.expose_value]  # those of Typer's own are not ours
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    named = [_argument(each) if each.required else f"[{_argument(each)}]" for each in arguments]
    options = ["[OPTIONS]"] * (len(arguments) < len(command.params))
    return Entry(
        name=name,
        group=group,
        usage=" ".join((name, *options, *(named if examples else ["COMMAND …"]))),
        paragraphs=[" ".join(part.split()) for part in command.help.split("\n\n")],
        words=[(_typed(each), _meaning(each)) for each in said],
        examples=examples,
    )


def _argument(parameter: Any) -> str:
    return str(parameter.metavar) + (" …" if parameter.nargs == -1 else "")


def _typed(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _argument(parameter)
    names = ", ".join((*sorted(parameter.opts, key=len), *parameter.secondary_opts))
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar}"


def _meaning(parameter: Any) -> str:
    text, default = str(parameter.help), parameter.default
    if default in (None, False) or "efault:" in text:
        return text
    if default is True:
        shown = parameter.opts[0]
    else:
        shown = format(default, "g") if isinstance(default, float) else str(default)
    return f"{text.rstrip('.')}; default: {shown}."


def page(commands: Sequence[Entry]) -> str:
    """Return docs/cli.md."""
    return "\n".join((*_page(commands), ""))


def _page(commands: Sequence[Entry]) -> Iterator[str]:
    yield "# Commands\n"
    yield "What `pscale COMMAND --help` says; `make manual` writes this page again. `man pscale` has it too."
    group = ""
    for entry in commands:
        if entry.group != group:
            group = entry.group
            yield f"\n## {group}"
        yield f"\n### {entry.name}\n"
        yield "\n\n".join(entry.paragraphs)
        yield f"\n```sh\n{entry.usage}\n```\n"
        if entry.words:
            yield "| | |\n|---|---|"
        yield from (f"| `{_cell(typed)}` | {_cell(meaning)} |" for typed, meaning in entry.words)
        if entry.examples:
            yield "\n".join(("\n```sh", *example_lines(entry.examples), "```"))
    yield "\n## Exit codes\n\n| | |\n|---|---|"
    yield from (f"| {code} | {meaning} |" for code, meaning in _ENDS.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def man_page(commands: Sequence[Entry]) -> str:
    """Return the man page, in the macros of man(7)."""
    return "\n".join((*_man_page(commands), ""))


def _man_page(commands: Sequence[Entry]) -> Iterator[str]:
    yield f'.TH PSCALE 1 "" "pscale {__version__}" "User Commands"\n.nh\n.ad l'
    yield f".SH NAME\npscale \\- {_roff(inspect.getdoc(sys.modules['pscale']) or '').splitlines()[0]}"
    group = ""
    for entry in commands:
        if entry.group != group:
            group = entry.group
            yield f".SH {group.upper()}"
        yield f".SS {_roff(entry.usage)}"
        yield "\n.PP\n".join(map(_roff, entry.paragraphs))
        yield from (f".TP\n\\fB{_roff(typed)}\\fR\n{_roff(meaning)}" for typed, meaning in entry.words)
        if entry.examples:
            yield ".PP\nExamples:"
        yield from (f".TP\n{_roff(typed)}\n{_roff(purpose)}" for typed, purpose in entry.examples.items())
    yield ".SH EXIT STATUS"
    yield from (f".TP\n{code}\n{_roff(str(meaning))}" for code, meaning in _ENDS.items())


def _roff(text: str) -> str:
    """Return a text of which nothing is a request or an escape, with `code` in bold."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    plain = re.sub(r"^(?=[.'])", "\\&", plain, flags=re.MULTILINE)
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", plain)


_TABLE = re.compile(r"<!-- (fields|metrics|events)(?:: ([a-z.]+))? -->\n(?:\|.*\n)*")
_PLAIN = {str: "text", bool: "true or false", int: "whole number", float: "number", NoneType: "null"}
_UNITS = {"bytes": "size", "s": "time", "share": "share"}
_SIZES = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, ""))
_UNSAID = (MOST, get_args(Bytes)[1].le)  # bounds that the page states once, for all fields


def with_tables(page: str) -> str:
    """Return the page with each table below a mark such as `<!-- fields: plan -->` made from declarations."""

    def table(mark: re.Match[str]) -> str:
        others = {"metrics": _metrics, "events": _events}
        path = tuple(filter(None, (mark[2] or "").split(".")))
        rows = others[mark[1]]() if mark[1] in others else _fields(path)
        return mark[0].partition("\n")[0] + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    return _TABLE.sub(table, page)


def _metrics() -> Iterator[Sequence[str]]:
    yield from (("metric", "units", "meaning"), ("---", "---", "---"))
    for name, metric in METRICS.items():
        yield f"`{name}`", ", ".join(metric.units), metric.meaning


def _events() -> Iterator[Sequence[str]]:
    yield from (("event", "field", "meaning"), ("---", "---", "---"))
    for name, kind in KINDS.items():
        said = documentation(kind)
        yield f"`{name}`", "", inspect.getdoc(kind) or ""
        own = (each.name for each in dataclasses.fields(kind) if each.compare)  # the time is common to all
        yield from (("", f"`{each}`", said[each]) for each in own)


def _fields(path: tuple[str, ...]) -> Iterator[Sequence[str]]:
    group = group_at(path)
    assert group is not None, f"the page names a group {path} that is not declared"
    kinds = kinds_of(group)
    heading = ("field", *["kinds"] * (kinds != ("",)), "type", "default", "meaning")
    yield from (heading, ["---"] * len(heading))
    said = documentation(group)
    for name, field in fields_of_any_kind(group).items():
        having = [kind for kind in kinds if name in fields_of(group, kind)]
        required = name == "kind" or field.default is dataclasses.MISSING
        default = "required" if required else f"`{default_text(field)}`"
        meaning = said.get(field.member) or _first_sentence(field.group or Sweep)
        yield f"`{name}`", *[", ".join(having)] * (kinds != ("",)), _type(field.hint), default, meaning


def _first_sentence(group: type) -> str:
    return re.split(r"[:;.]", inspect.getdoc(group) or "")[0] + "."


def _type(hint: Any) -> str:
    """Say in words what a field may hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        marked = [text for mark in arguments[1:] if (text := _marked(arguments[0], mark))]
        return marked[0] if marked else _type(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin is tuple:
        return f"list, each {_type(arguments[0])}"
    if origin is Mapping:
        held = arguments[1]
        values = any(isinstance(mark, AnyValue) for mark in get_args(held))
        return f"{'groups' if dataclasses.is_dataclass(held) else 'values' if values else 'texts'} by name"
    if origin in (Union, UnionType):
        return " or ".join(map(_type, arguments))
    return _PLAIN.get(hint, "group")


def _marked(hint: Any, mark: Any) -> str:
    if isinstance(mark, Text):
        return "see the table below" if mark.words else mark.expected
    if not isinstance(mark, Number):
        return ""
    bounds = {"≥": mark.ge, ">": mark.gt, "<": mark.lt, "≤": None if mark.le in _UNSAID else mark.le}
    said = ", ".join(f"{sign} {bound:,}" for sign, bound in bounds.items() if bound is not None)
    words = "".join(f", or `{word}`" for word, _ in mark.words)
    return f"{_UNITS.get(mark.unit) or _PLAIN.get(hint, 'number')} {said}{words}"


def default_text(field: Field) -> str:
    """Write a default as a suite would."""
    value = field.default
    if dataclasses.is_dataclass(value) or isinstance(value, Sweep):
        return f"{{kind: {value.kind}}}" if hasattr(value, "kind") else "{}"
    if isinstance(value, tuple | dict):
        return "{}" if value == {} else "[]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if field.unit:
        return _quantity(value, field.unit)
    return str(value) or '""'


def _quantity(value: float, unit: str) -> str:
    if unit == "bytes":
        return next(f"{value // size:g}{name}" for size, name in _SIZES if value % size == 0)
    if unit == "share":
        return f"{100 * value:g}%"
    return f"{value / 60:g}m" if value and value % 60 == 0 else f"{value:g}s"


def written(file: Path) -> str:
    """Return what a file says that is written again: the commands, the tables of a page, or the schema."""
    if file.suffix == ".json":
        return json.dumps(editor_schema(), indent=2) + "\n"
    if file.suffix == ".1":
        return man_page(entries())
    return page(entries()) if file.name == "cli.md" else with_tables(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(written(file), encoding="utf-8")
