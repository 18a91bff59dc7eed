"""The commands and their options. Heavy libraries are imported by the command that needs them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from pscale import __version__
from pscale.cli import complete
from pscale.cli.options import (
    REPORTS,
    AsJson,
    FigureFormat,
    FigureStyle,
    Format,
    Only,
    Overrides,
    Reports,
    RunPath,
    SiteName,
    SuitePath,
    SuitePaths,
)
from pscale.errors import PscaleError, UsageError

app = typer.Typer(
    name="pscale",
    help="How well does training scale here, what limits it, what would fix it?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show Python's traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    if version:
        typer.echo(f"pscale {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at this machine: cores, MPI, BLAS and the traps that spoil measurements."""
    from pscale.cli import doctor as command

    raise typer.Exit(command.doctor(as_json=as_json))


@app.command()
def show(
    suite: SuitePath,
    overrides: Overrides = None,
    only: Only = None,
    site: SiteName = None,
    as_json: AsJson = False,
    memory: Annotated[bool, typer.Option("--memory", help="Tell the memory of a rank by kind.")] = False,
    schedule: Annotated[bool, typer.Option("--schedule", help="Draw the pipelines' schedules too.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw them into this file: svg, png or pdf.")] = None,
) -> None:
    """Print the cases of a suite: plan, parameters, FLOPs, bytes and memory per rank. Starts nothing."""
    from pscale.cli import show as command
    from pscale.cli.work import Chosen

    chosen = Chosen(overrides=overrides or [], only=only, site=site)
    options = {"as_json": as_json, "memory": memory, "schedule": schedule}
    command.show(suite, chosen, figure=figure, **options)


@app.command()
def run(
    suites: SuitePaths,
    overrides: Overrides = None,
    only: Only = None,
    reports: Reports = REPORTS,
    new: Annotated[bool, typer.Option("--new", help="Begin a new run even if one is unfinished.")] = False,
    run_path: Annotated[Path | None, typer.Option("--run", help="Go on with the run in this folder.")] = None,
    site: SiteName = None,
    wait: Annotated[
        bool, typer.Option("--wait/--detach", help="Stay until submitted jobs have ended.")
    ] = True,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Report each suite when it is measured.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print scripts and commands, start nothing.")
    ] = False,
) -> None:
    """Measure every case of the suites, then report. Goes on with an unfinished run of the same suite.

    On a login node it submits jobs, inside a job it launches there, elsewhere here: see `pscale doctor`.
    """
    from pscale.cli import run as command
    from pscale.cli.work import Chosen

    place = command.Place(reports, new=new, folder=run_path, wait=wait, report=report, dry_run=dry_run)
    raise typer.Exit(command.run(suites, Chosen(overrides=overrides or [], only=only, site=site), place))


@app.command()
def status(
    path: RunPath = None,
    reports: Reports = REPORTS,
    as_json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on showing it until the run has finished.")
    ] = False,
) -> None:
    """Say how a run is: its launches, its jobs and what the scheduler says of them."""
    from pscale.cli import status as command

    raise typer.Exit(command.status(path, reports, as_json=as_json, watch=watch))


@app.command()
def cancel(path: RunPath = None, reports: Reports = REPORTS) -> None:
    """End the jobs of a run. What is finished is kept; `pscale run` goes on with the rest."""
    from pscale.cli import status as command

    raise typer.Exit(command.cancel(path, reports))


@app.command("list")
def list_runs(
    reports: Reports = REPORTS,
    suite: Annotated[str | None, typer.Option(help="Runs of this suite alone.")] = None,
    most: Annotated[int | None, typer.Option("--most", "-n", min=1, metavar="N", help="Show N runs.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of a folder, those begun last first: how they went, and the best figure of each."""
    from pscale.cli import history as command

    command.list_runs(reports, suite, most=most, as_json=as_json)


@app.command()
def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Runs' folders, laid over each other; default: the newest.",
            autocompletion=complete.runs,
        ),
    ] = None,
    as_format: Annotated[Format, typer.Option("--format", "-f", help="What to print.")] = Format.terminal,
    figures: Annotated[
        bool, typer.Option(help="Draw the figures into the run's folder and the page.")
    ] = True,
    figure_format: Annotated[
        list[FigureFormat] | None,
        typer.Option(help="How to write figures; may be repeated. Default: svg, and pdf to publish."),
    ] = None,
    style: Annotated[
        FigureStyle, typer.Option(help="What figures are for; to publish: one column wide, without title.")
    ] = FigureStyle.screen,
    plot: Annotated[bool, typer.Option("--plot", help="Draw on the terminal too.")] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="NETWORK",
            help="Replay traced cases on another network: 'dp: {latency: 5us, bandwidth: 10GB/s}'.",
        ),
    ] = None,
    predict: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="N", help="Predict a step at this size, in ranks; may be repeated."),
    ] = None,
    bare: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Set calls beside the bare collectives that this run measured.",
            autocompletion=complete.runs,
        ),
    ] = None,
    reports: Reports = REPORTS,
) -> None:
    """Report a run: efficiency with intervals, where the time goes, warnings, figures.

    The terminal's report also writes report.html, report.md and figures/ into the run's folder; html writes
    report.html there alone, csv a folder csv/; md and json are printed.
    """
    from pscale.cli.drawer import Drawer, is_worthwhile

    draws = as_format == Format.terminal and style == FigureStyle.screen and figures and is_worthwhile()
    with Drawer() if draws else nullcontext() as drawer:  # it gets ready while this process does
        from pscale.cli import report as command

        formats = [str(name) for name in figure_format or []] if figures else None
        pictures = command.Pictures(formats=formats, style=style.value, plot=plot)
        options = (what_if or [], predict or [], bare, drawer)
        command.report(paths or [], reports, as_format.value, pictures, *options)


@app.command()
def compare(
    a: Annotated[
        Path,
        typer.Argument(metavar="A", help="Folder of the run to compare with.", autocompletion=complete.runs),
    ],
    b: Annotated[
        Path | None,
        typer.Argument(
            metavar="B",
            help="Folder of the run that may be slower or faster; none: A's other variants.",
            autocompletion=complete.runs,
        ),
    ] = None,
    as_format: Annotated[Format, typer.Option("--format", "-f", help="What to print.")] = Format.terminal,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Exit with 1 if so: slower:3%, faster, unclear, missing."),
    ] = None,
    relevant: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="The least difference that matters; default 5%.")
    ] = None,
) -> None:
    """Compare two runs, or the variants of one: slower, faster, no difference, or too noisy to tell."""
    from pscale.cli import compare as command

    raise typer.Exit(command.run(a, b, as_format.value, fail_if or [], relevant))


@app.command()
def check(
    path: RunPath = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Hold the run to these values too; may be repeated."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write the run's values as references, and check nothing.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdicts as JUnit XML, for CI.")
    ] = None,
    reports: Reports = REPORTS,
    as_json: AsJson = False,
) -> None:
    """Compare a run with what its suite and reference values expect; exit code 1 if it falls short."""
    from pscale.cli import check as command

    files = reference or []
    if not update:
        code = command.check(path, reports, reference_files=files, junit=junit, as_json=as_json)
        raise typer.Exit(code)
    if junit or as_json or len(files) > 1:
        raise UsageError(
            "--update writes one file of values, with --reference FILE that one; it checks nothing"
        )
    raise typer.Exit(command.update(path, reports, files[0] if files else None))


@app.command()
def trace(
    path: RunPath = None,
    case: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Id or label of the case; default: one with most ranks.",
            autocompletion=complete.cases,
        ),
    ] = None,
    launch: Annotated[int, typer.Option(min=1, metavar="N", help="Which launch of it.")] = 1,
    steps: Annotated[
        str | None, typer.Option(metavar="FIRST[-LAST]", help="These measured steps alone, from 0.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also .json.gz; - for here.")
    ] = None,
    reports: Reports = REPORTS,
) -> None:
    """Write the timeline of a traced case: every phase, call and message, for ui.perfetto.dev."""
    from pscale.cli import trace as command

    command.trace(path, reports, case, launch, command.window(steps), output)


@app.command()
def verify(
    suite: SuitePath,
    overrides: Overrides = None,
    only: Only = None,
    reports: Reports = REPORTS,
    every_tensor: Annotated[bool, typer.Option("--all", help="Print every tensor and call too.")] = False,
    site: SiteName = None,
    as_json: AsJson = False,
) -> None:
    """Prove every plan of a suite equal to the serial program: losses, gradients, weights, calls, bytes."""
    from pscale.cli import verify as command
    from pscale.cli.work import Chosen

    chosen = Chosen(overrides=overrides or [], only=only, site=site)
    options = {"every_tensor": every_tensor, "as_json": as_json}
    raise typer.Exit(command.verify(suite, chosen, reports, **options))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a suite, for editors."""
    from pscale.suite import editor_schema

    typer.echo(json.dumps(editor_schema(), indent=2))


def _asked(words: Sequence[str]) -> typer.Typer:
    """Return the app with the command alone that is the first word, if one is: Typer makes options of all."""
    named = {info.name or info.callback.__name__: info for info in app.registered_commands if info.callback}
    only = copy(app)
    only.registered_commands = [named[word] for word in words[:1] if word in named] or app.registered_commands
    if os.environ.get("NO_COLOR"):
        only.rich_markup_mode = None  # of help and of mistakes: bold and dim are codes too
    return only


def main() -> NoReturn:
    """Run the command line; a user's mistake ends in one message and the exit code of its kind."""
    try:
        _asked(sys.argv[1:])(prog_name="pscale")  # also for `python -m pscale`: completion goes by this name
    except PscaleError as error:
        if "--debug" in sys.argv[1:]:
            raise
        typer.echo(f"pscale: {error}", err=True)
        sys.exit(error.exit_code)
    sys.exit(0)
