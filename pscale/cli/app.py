"""The command line as Typer runs it: commands by their options, errors as messages and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from inspect import Signature
from typing import Annotated, Any

import typer

from pscale import __version__
from pscale.cli import fail, tell
from pscale.cli.options import COMMANDS, Command, Report
from pscale.errors import LaunchError, PscaleError, UsageError
from pscale.runs.run_folders import run_folder

_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def application(words: Sequence[str] = ()) -> typer.Typer:
    """Return the app with the command that is the first of `words`, or with all, which takes longer."""
    plain = bool(os.environ.get("NO_COLOR"))  # bold and dim are codes too
    app = typer.Typer(
        name="pscale",
        help="How well does training scale here, what limits it, what would fix it?",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None if plain else "rich",
    )
    app.callback(invoke_without_command=True)(_root)
    # Examples are paragraphs where help is plain, which joins lines.
    between = "\n\n" if plain else "\n"
    for command in [COMMANDS[word] for word in words[:1] if word in COMMANDS] or COMMANDS.values():
        epilog = between.join(("Examples:", *example_lines(command.examples)))
        settings = {"allow_interspersed_args": False} if command.ends_at_program else None
        declare = app.command(
            command.name, rich_help_panel=command.panel, epilog=epilog, context_settings=settings
        )
        declare(_callback(command))
    return app


def _callback(command: Command) -> Callable[..., None]:
    """Return the function of a command, whose module is imported when it is called."""

    def call(**given: Any) -> None:
        for name, value in command.options.environ.items():
            os.environ.setdefault(name, value)
        module, _, function = command.run.partition(":")
        run = getattr(import_module(f"pscale.cli.{module}"), function)
        raise typer.Exit(run(command.options(**given)) or 0)

    parameters = command.options.parameters()
    call.__doc__ = command.options.__doc__
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return call


def example_lines(examples: Mapping[str, str]) -> list[str]:
    """Return examples, a line each."""
    width = max(map(len, examples))
    return [f"{typed:<{width}}  # {purpose}" for typed, purpose in examples.items()]


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    debug: Annotated[  # noqa: ARG001
        bool, typer.Option("--debug", help="Show the Python traceback of an error.")
    ] = False,
) -> None:
    if version:
        typer.echo(f"pscale {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def report(options: Report) -> None:
    """Report runs, or print what the report that a run has says in brief: that needs no other imports."""
    from pscale.cli.drawer import Drawer, is_worthwhile
    from pscale.report.brief import Sources, placed, print_answers, print_evidence

    reports = options.reports
    folders = [run_folder(path, reports) for path in options.paths or ()] or [run_folder(None, reports)]
    sources = Sources.of(folders[0], options.formats) if options.usual and len(folders) == 1 else None
    told, left = sources.drawn(options.file) if sources else None, folders[0] / options.file
    if told and options.as_format == "html":
        tell(str(left))
    elif told and not options.leaves_files:
        print(placed(left.read_text(encoding="utf-8"), folders[0]), end="")
    elif told and not (options.full or options.plot):
        from pscale.cli.console import new_console

        if options.proposes:
            print_evidence(told, new_console())
        print_answers([told], new_console(highlight=False), full=options.hint)
        if options.proposes and options.figures:
            tell(str(folders[0] / "figures" / "publication" / "evidence.pdf"))
    else:
        draws = options.leaves_files and options.figures and not told and is_worthwhile()
        with Drawer() if draws else nullcontext() as drawer:  # it starts while this process does
            from pscale.cli.report import report

            report(folders, options, drawer, sources, drawn=told is not None)


def _prepare_help() -> None:
    """Leave out of help the types that some versions of Typer show, as `--new <bool>`: nobody types them."""
    with suppress(ImportError):
        help_writer: Any = import_module("typer.rich_utils")
        highlight = help_writer.types_highlighter
        help_writer.types_highlighter = lambda types: "" if str(types).startswith("<") else highlight(types)


def _subject(error: OSError) -> str:
    """Return the file that an error is about; the current folder may be gone."""
    if error.filename:
        return f"{error.filename}: "
    try:
        os.getcwd()  # noqa: PTH109 - only to see whether it is there
    except OSError:
        return f"{os.environ.get('PWD', '.')}, the current folder: "
    return ""


def main() -> int:
    """Run the command line; a user's mistake ends in one message and the exit code of its kind."""
    if not {"-h", "--help"}.isdisjoint(sys.argv[1:]):
        _prepare_help()
    try:
        application(sys.argv[1:])(prog_name="pscale")  # also for `python -m pscale`: for completion
    except PscaleError as error:
        if "--debug" in sys.argv[1:]:
            raise
        fail(str(error))
        return error.exit_code
    except OSError as error:  # of a disk that is full, or a path that cannot be
        if "--debug" in sys.argv[1:]:
            raise
        fail(f"{_subject(error)}{error.strerror or error}")
        return LaunchError.exit_code if error.errno in _OF_DISKS else UsageError.exit_code
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        of_option = type(end.__context__).__name__ == "NoSuchOption"  # of Click, which Typer may hide
        if of_option and sys.argv[1:2] in (["watch"], ["scale"]):
            ranks = "watch -n 4" if sys.argv[1] == "watch" else "scale --ranks 1,2,4"
            fail(f"options of the program follow its name: pscale {ranks} -- ./a.out --size 100")
        return code
    return 0
