"""docs/cli.md and the man page, made from the commands: `make manual` writes both again."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.main import get_command

from pscale import __version__, errors
from pscale.cli.app import app
from pscale.cli.examples import examples_of

_ENDS = {
    0: "All is well.",
    errors.FAILED: "A case failed, or a check did not hold.",
    **{kind.exit_code: inspect.getdoc(kind) for kind in (errors.UsageError, errors.PlanError)},
    **{kind.exit_code: inspect.getdoc(kind) for kind in (errors.LaunchError, errors.ResultsError)},
    errors.UNDECIDED: "No check failed, but intervals leave some undecided.",
    errors.INTERRUPTED: "Interrupted; what has ended is kept.",
}


@dataclass(frozen=True, kw_only=True)
class Word:
    """An argument or option as one types it, and what it means."""

    typed: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """All that help says of a command."""

    name: str
    group: str
    usage: str
    paragraphs: Sequence[str]
    words: Sequence[Word]
    examples: Sequence[tuple[str, str]]


def entries() -> list[Entry]:
    """Return pscale itself, then its commands, those of a group together, in the order of help."""
    root: Any = get_command(app)
    commands = root.commands.values()
    groups = list(dict.fromkeys(command.rich_help_panel for command in commands))
    grouped = [each for group in groups for each in commands if each.rich_help_panel == group]
    return [
        _entry(root, "pscale", "Every command", ["COMMAND …"], ()),
        *(_command_entry(command) for command in grouped),
    ]


def _command_entry(command: Any) -> Entry:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    names = [_argument(each) if each.required else f"[{_argument(each)}]" for each in arguments]
    examples = examples_of(command.name)
    return _entry(command, f"pscale {command.name}", command.rich_help_panel, names, examples)


def _entry(
    command: Any, name: str, group: str, arguments: Sequence[str], examples: Sequence[tuple[str, str]]
) -> Entry:
    has_options = any(each.param_type_name == "option" for each in command.params)
    return Entry(
        name=name,
        group=group,
        usage=" ".join((name, *["[OPTIONS]"] * has_options, *arguments)),
        paragraphs=[" ".join(part.split()) for part in command.help.split("\n\n")],
        words=[
            Word(typed=_typed(each), meaning=_meaning(each))
            for each in command.params
            if each.expose_value  # those of Typer's own are not ours to describe
        ],
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
        yield from (f"| `{_cell(word.typed)}` | {_cell(word.meaning)} |" for word in entry.words)
        if entry.examples:
            width = max(len(typed) for typed, _ in entry.examples)
            lines = (f"{typed:<{width}}  # {purpose}" for typed, purpose in entry.examples)
            yield "\n".join(("\n```sh", *lines, "```"))
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
        yield from (f".TP\n\\fB{_roff(word.typed)}\\fR\n{_roff(word.meaning)}" for word in entry.words)
        if entry.examples:
            yield ".PP\nExamples:"
        yield from (f".TP\n{_roff(typed)}\n{_roff(purpose)}" for typed, purpose in entry.examples)
    yield ".SH EXIT STATUS"
    yield from (f".TP\n{code}\n{_roff(str(meaning))}" for code, meaning in _ENDS.items())


def _roff(text: str) -> str:
    """Return a text of which nothing is a request or an escape, with `code` in bold."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    plain = re.sub(r"^(?=[.'])", "\\&", plain, flags=re.MULTILINE)
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", plain)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        written = page(entries()) if file.suffix == ".md" else man_page(entries())
        file.write_text(written, encoding="utf-8")
