"""The commands. Heavy libraries are imported by the command that needs them."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from importlib import import_module
from typing import Any, TypeVar

import typer

from pscale import __version__
from pscale.cli import fail
from pscale.cli import options as o
from pscale.errors import LaunchError, PscaleError, UsageError
from pscale.runs.run_folders import run_folder

app = typer.Typer(
    name="pscale",
    help="How well does training scale here, what limits it, what would fix it?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
BEFORE, MEASURE, READ, COMPARE = "Before a run", "Measure", "Read", "Compare and guard"
EXAMPLES: dict[str, Mapping[str, str]] = {}  # by command
Command = TypeVar("Command", bound=Callable[..., None])


def _command(name: str, panel: str, *examples: str, **settings: bool) -> Callable[[Command], Command]:
    """Return what makes a command of a function; `settings` are those of Click.

    Examples are what one types, then its purpose; they are paragraphs where help is plain, which joins lines.
    """
    EXAMPLES[name] = dict(example.split("  # ") for example in examples)
    between = "\n\n" if os.environ.get("NO_COLOR") else "\n"
    epilog = between.join(("Examples:", *example_lines(EXAMPLES[name])))
    return app.command(name, rich_help_panel=panel, epilog=epilog, context_settings=settings or None)


def example_lines(examples: Mapping[str, str]) -> list[str]:
    """Return examples, a line each."""
    width = max(map(len, examples))
    return [f"{typed:<{width}}  # {purpose}" for typed, purpose in examples.items()]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: o.Version = False, debug: o.Debug = False) -> None:  # noqa: ARG001
    if version:
        typer.echo(f"pscale {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_command("doctor", BEFORE, "pscale doctor  # is this machine fit for measuring?")
def doctor(
    as_json: o.AsJson = False, blas: o.Blas = False, hosts: o.Hosts = None, reports: o.Reports = o.REPORTS
) -> None:
    """Check this machine: cores, MPI, BLAS, and what would disturb measurements."""
    from pscale.cli import status as command

    if blas:
        raise typer.Exit(command.doctor_of_blas(as_json=as_json))
    raise typer.Exit(command.doctor(reports, o.host_list(hosts), as_json=as_json))


@_command("suites", BEFORE, "pscale suites  # what is ready to run")
def suites(as_json: o.AsJson = False) -> None:
    """List the shipped suites: the question that each answers, its cases and launches on this machine."""
    from pscale.cli import show as command

    command.list_suites(as_json=as_json)


@_command("init", BEFORE, "pscale init weak wide.yaml  # copy the suite weak to wide.yaml, to edit")
def init(suite: o.ShippedSuite, file: o.NewSuite = None) -> None:
    """Copy a shipped suite to a file to edit."""
    from pscale.cli import show as command

    command.init(suite, file)


@_command(
    "show",
    BEFORE,
    "pscale show weak  # cases and their costs",
    "pscale show weak --set model.width=512  # the same, wider",
    "pscale show pipeline --schedule  # work of each stage",
)
def show(
    suite: o.SuitePath,
    overrides: o.Overrides = None,
    only: o.Only = None,
    site: o.SiteName = None,
    as_json: o.AsJson = False,
    memory: o.Memory = False,
    schedule: o.Schedule = False,
    figure: o.ScheduleFigure = None,
) -> None:
    """Print the cases of a suite: plan, parameters, FLOPs, bytes and memory per rank. Starts nothing."""
    from pscale.cli import show as command
    from pscale.cli.prepare import SuiteOptions

    chosen = SuiteOptions(overrides=overrides or [], only=only, site=site)
    command.show(suite, chosen, o.REPORTS, figure=figure, as_json=as_json, memory=memory, schedule=schedule)


@_command(
    "run",
    MEASURE,
    "pscale run weak strong  # measure and report",
    "pscale run weak --only 'ranks <= 2'  # some cases",
    "pscale run weak --set inject.delay=10ms  # with a slow rank",
)
def run(
    suites: o.SuitePaths,
    overrides: o.Overrides = None,
    only: o.Only = None,
    reports: o.Reports = o.REPORTS,
    new: o.New = False,
    run_path: o.RunFolder = None,
    site: o.SiteName = None,
    wait: o.Wait = True,
    report: o.WriteReport = True,
    dry_run: o.DryRun = False,
    wait_idle: o.WaitIdle = False,
    budget: o.Budget = None,
    quick: o.Quick = False,
    precise: o.Precise = False,
    record: o.Record = False,
    events: o.Events = None,
) -> None:
    """Measure every case of the suites, then report. Continues an unfinished run of the same suite.

    Submits jobs on a login node, launches locally elsewhere: `pscale doctor` says which.
    """
    from pscale.cli import run as command
    from pscale.cli.prepare import SuiteOptions, effort

    asked = effort(budget, quick=quick, precise=precise)
    chosen = SuiteOptions(overrides=[*asked, *(overrides or [])], only=only, site=site)
    options = command.RunOptions(
        reports=reports,
        new=new,
        folder=run_path,
        wait=wait,
        report=report,
        dry_run=dry_run,
        wait_idle=wait_idle,
        record=o.HISTORY if record else None,
        events=events,
    )
    raise typer.Exit(command.run(suites, chosen, options))


@_command(
    "scale",
    MEASURE,
    "pscale scale -- ./mine 800  # strong scaling",
    "pscale scale --weak -- ./mine '{800 * ranks}'  # weak scaling",
    "pscale scale --set n=4,8 -- python mine.py '{n}'  # two series",
    "pscale scale --save mine.yaml -- ./mine 800  # the suite, to edit",
    allow_interspersed_args=False,
)  # options end at the program's name
def scale(
    program: o.Program = None,
    ranks: o.StudyRanks = None,
    weak: o.Weak = False,
    settings: o.Settings = None,
    step_time: o.StepTime = None,
    metric: o.Metrics = None,
    work: o.WorkOf = None,
    rate: o.RateOf = None,
    warmup: o.Warmup = 0,
    watch: o.WatchToo = True,
    threads: o.WatchThreads = 1,
    bind: o.WatchBind = "core",
    launcher: o.ScaleLauncher = "auto",
    oversubscribe: o.Oversubscribe = False,
    site: o.SiteName = None,
    budget: o.Budget = None,
    quick: o.Quick = False,
    precise: o.Precise = False,
    save: o.SaveSuite = None,
    dry_run: o.DryRun = False,
    reports: o.Reports = o.REPORTS,
    new: o.New = False,
    wait: o.Wait = True,
    report: o.WriteReport = True,
    wait_idle: o.WaitIdle = False,
) -> None:
    """Measure how any MPI program scales: efficiency over ranks, and what is lost to whom.

    Options end at the program's name: all behind it is the program's.
    '{ranks}' and '{800 * ranks}' in its arguments are numbers of each size.
    """
    from pscale.cli import scale as command
    from pscale.cli.prepare import effort
    from pscale.cli.run import RunOptions
    from pscale.config import Launch

    if not program:
        raise UsageError("name a program: pscale scale --ranks 1,2,4 -- ./a.out")
    launch = {"bind": bind, "launcher": launcher, "oversubscribe": oversubscribe, "warmup": warmup}
    options = command.ScaleOptions(
        ranks=ranks,
        weak=weak,
        settings=settings or [],
        step_time=step_time,
        metrics=metric or [],
        work=work,
        rate=rate,
        watch=watch,
        threads=threads,
        launch={name: value for name, value in launch.items() if value != getattr(Launch, name)},
        effort=effort(budget, quick=quick, precise=precise),
        site=site,
        save=save,
    )
    run_options = RunOptions(
        reports=reports, new=new, wait=wait, report=report, dry_run=dry_run, wait_idle=wait_idle
    )
    raise typer.Exit(command.scale(program, options, run_options))


@_command(
    "import",
    MEASURE,
    "pscale import table.csv --ranks P --time 'Time [s]'  # a table of launches",
    "pscale import t.csv --ranks P --time T --param n=N  # a series for each n",
)
def import_(
    table: o.TableFile,
    ranks: o.RanksColumn,
    time: o.TimeColumn,
    threads: o.ThreadsColumn = None,
    param: o.ParamColumns = None,
    metric: o.MetricColumns = None,
    unit: o.TimeUnit = None,
    weak: o.Weak = False,
    work: o.WorkOf = None,
    name: o.RunName = None,
    reports: o.Reports = o.REPORTS,
    report: o.WriteReport = True,
) -> None:
    """Make a run of a table of launches that exists already, and report it.

    Columns are separated by commas, semicolons, tabs, | or spaces; decimals by a point or a comma. What the
    table does not tell, such as the machine, stays unknown.
    """
    from pscale.cli import import_table as command

    columns = command.Columns(
        ranks=ranks,
        time=time,
        threads=threads,
        params=param or [],
        metrics=metric or [],
        unit=unit,
        weak=weak,
        work=work,
        name=name,
    )
    raise typer.Exit(command.import_table(table, columns, reports, reported=report))


@_command("status", MEASURE, "pscale status --watch  # launches and jobs until the run has finished")
def status(
    path: o.RunPath = None, reports: o.Reports = o.REPORTS, as_json: o.AsJson = False, watch: o.Watch = False
) -> None:
    """Show the state of a run: its launches, and its jobs in the scheduler's queue."""
    from pscale.cli import status as command

    raise typer.Exit(command.status(run_folder(path, reports), as_json=as_json, watch=watch))


@_command("cancel", MEASURE, "pscale cancel reports/weak/RUN  # finished launches are kept")
def cancel(path: o.RunPath = None, reports: o.Reports = o.REPORTS) -> None:
    """Cancel the jobs of a run. Finished launches are kept; `pscale run` continues with the rest."""
    from pscale.cli import status as command

    raise typer.Exit(command.cancel(run_folder(path, reports)))


@_command("list", READ, "pscale list --suite weak -n 5  # the five newest runs of a suite")
def list_runs(
    reports: o.Reports = o.REPORTS, suite: o.OfSuite = None, most: o.Most = None, as_json: o.AsJson = False
) -> None:
    """List the runs of a folder, newest first, with their outcome and best result."""
    from pscale.cli import status as command

    command.list_runs(reports, suite, most=most, as_json=as_json)


@_command(
    "predict",
    BEFORE,
    "pscale predict weak --from RUN --ranks 64,4096  # on more ranks",
    "pscale predict weak --from RUN --network cluster.yaml  # on another network",
    "pscale predict weak --from RUN --probe 30s  # at new shapes",
    "pscale predict weak --from RUN --tokens 300B --price 2  # time and cost",
)
def predict(
    suite: o.SuitePath,
    profiled: o.ProfiledIfAny = None,
    probe: o.Probe = None,
    bare: o.BareCalls = None,
    network: o.NetworkFile = None,
    engine: o.WithEngine = "vector",
    ranks: o.OnRanks = None,
    draws: o.Draws = 200,
    tokens: o.Tokens = None,
    price: o.PricePerHour = None,
    overrides: o.Overrides = None,
    only: o.Only = None,
    any_machine: o.AnyMachine = False,
    reports: o.Reports = o.REPORTS,
    as_json: o.AsJson = False,
) -> None:
    """Predict a suite on more ranks or another network: step times, efficiency, what limits it first.

    Writes SUITE.prediction.html, and SUITE.prediction.json, with which a later run is compared.
    """
    from pscale.cli import predict as command
    from pscale.cli.prepare import SuiteOptions

    options = command.PredictOptions(
        profiled=profiled and run_folder(profiled, reports),
        probe=probe,
        bare=bare and run_folder(bare, reports),
        network=network,
        engine=engine,
        ranks=ranks,
        draws=draws,
        tokens=tokens,
        price=price,
        anywhere=any_machine,
        as_json=as_json,
    )
    command.predict(suite, SuiteOptions(overrides=overrides or [], only=only), reports, options)


@_command(
    "advise",
    BEFORE,
    "pscale advise strong --from RUN --ranks 8  # the 5 best, measured",
    "pscale advise strong --from RUN --ranks 64 --measure 0  # only predicted",
)
def advise(
    suite: o.SuitePath,
    profiled: o.ProfiledRun,
    ranks: o.PlanRanks,
    bare: o.BareCalls = None,
    probe: o.ProbePlans = None,
    memory: o.NodeMemory = None,
    measure: o.MeasurePlans = 5,
    overrides: o.Overrides = None,
    only: o.Only = None,
    any_machine: o.AnyMachine = False,
    reports: o.Reports = o.REPORTS,
) -> None:
    """Find the fastest plan for a suite's model: predict every plan that fits, measure the best.

    Ends with the plan to paste. Only the suite's model and batch count; its own ranks and plans are ignored.
    """
    from pscale.cli import advise as command
    from pscale.cli.prepare import SuiteOptions

    options = command.AdviseOptions(
        profiled=run_folder(profiled, reports),
        bare=bare and run_folder(bare, reports),
        ranks=ranks,
        probe=probe,
        memory=memory,
        measure=measure,
        anywhere=any_machine,
        reports=reports,
    )
    command.advise(suite, SuiteOptions(overrides=overrides or [], only=only), options)


@_command(
    "report",
    READ,
    "pscale report  # the newest run in brief",
    "pscale report --full  # with all tables",
    "pscale report --what-if 'all: {latency: 5us}'  # on another network",
    "pscale report --format csv reports/weak/RUN  # for other programs",
)
def report(
    paths: o.RunPaths = None,
    as_format: o.AsFormat = "terminal",
    figures: o.Figures = True,
    figure_format: o.FigureFormats = None,
    style: o.Style = "screen",
    full: o.Full = False,
    plot: o.Plot = False,
    what_if: o.WhatIf = None,
    predict: o.Predict = None,
    bare: o.Bare = None,
    evidence: o.Evidence = False,
    target: o.Target = None,
    units: o.Units = None,
    reports: o.Reports = o.REPORTS,
) -> None:
    """Report a run: efficiency with intervals, where the time goes, warnings, figures.

    The default writes report.html, report.md and figures/ into the run's folder.
    `-f html` writes the page alone, `-f csv` a folder csv/; md, json, latex print.
    """
    from pscale.cli.drawer import Drawer, is_worthwhile
    from pscale.report.brief import FULL, Sources

    hint = " ".join((FULL, *map(str, paths or ())))
    paths = [run_folder(path, reports) for path in paths or ()] or [run_folder(None, reports)]
    bare = bare and run_folder(bare, reports)
    evidence = evidence or target is not None or units is not None
    formats = [str(name) for name in figure_format or ()] if figures else None
    leaves_files = as_format == "terminal" and style == "screen"
    plain = leaves_files and len(paths) == 1 and not (what_if or predict or bare or evidence)
    sources = Sources.of(paths[0], formats) if plain else None
    told = sources.drawn() if sources is not None else None
    if told is not None and not (full or plot):
        from pscale.cli.console import new_console
        from pscale.report.brief import print_answers

        print_answers([told], new_console(highlight=False), full=hint)
        return
    drawn = told is not None
    draws = leaves_files and figures and not drawn and is_worthwhile()
    with Drawer() if draws else nullcontext() as drawer:  # it starts while this process does
        from pscale.analysis.contrasts import Proposal
        from pscale.cli import report as command

        pictures = command.Pictures(
            formats=formats, style=style, plot=plot, sources=sources, drawn=drawn, hint=hint
        )
        options = (what_if or [], predict or [], bare, drawer)
        proposal = Proposal(target or Proposal().target, units) if evidence else None
        command.report(paths, reports, as_format, pictures, *options, full=full, proposal=proposal)


@_command(
    "compare",
    COMPARE,
    "pscale compare A B --fail-if slower:3%  # two runs; exit code 1 if B is slower",
    "pscale compare A  # the variants of one run",
)
def compare(
    a: o.BaselineRun,
    b: o.OtherRun = None,
    as_format: o.AsTables = "terminal",
    fail_if: o.FailIf = None,
    relevant: o.Relevant = None,
    reports: o.Reports = o.REPORTS,
) -> None:
    """Compare two runs, or the variants of one: slower, faster, no difference, or undecided."""
    from pscale.cli import check as command

    baseline, other = run_folder(a, reports), b and run_folder(b, reports)
    raise typer.Exit(command.compare(baseline, other, as_format, fail_if or [], relevant))


@_command(
    "check",
    COMPARE,
    "pscale check --junit results.xml  # do its expectations hold?",
    "pscale check --update --reference nightly.yaml  # keep references",
)
def check(
    path: o.RunPath = None,
    reference: o.References = None,
    update: o.Update = False,
    junit: o.Junit = None,
    reports: o.Reports = o.REPORTS,
    as_format: o.AsCheck = "terminal",
    as_json: o.AsJson = False,
) -> None:
    """Check a run against its suite's expectations and reference values.

    Exit code 1: one fails, or a case did. Exit code 6: none fails, but the intervals leave some undecided.
    """
    from pscale.cli import check as command

    folder, files = run_folder(path, reports), reference or []
    if not update:
        written = "json" if as_json else as_format
        code = command.check(folder, reference_files=files, junit=junit, as_format=written)
        raise typer.Exit(code)
    if junit or as_json or as_format != "terminal" or len(files) > 1:
        raise UsageError("--update writes one file and checks nothing; --reference FILE names it")
    raise typer.Exit(command.update(folder, files[0] if files else None))


@_command(
    "history",
    COMPARE,
    "pscale history add  # add the newest run",
    "pscale history weak  # what became slower, and when",
    "pscale history weak --check  # exit code 1 if the newest is worse",
    "pscale history weak --accept 'new MPI'  # the new speed is normal from now on",
)
def history(
    words: o.HistoryWords = None,
    check: o.CheckNewest = False,
    accept: o.Accept = None,
    cases: o.AcceptedCases = None,
    relevant: o.Relevant = None,
    as_format: o.AsFormat = "terminal",
    folder: o.HistoryFolder = o.HISTORY,
    reports: o.Reports = o.REPORTS,
) -> None:
    """Show when a suite's cases became faster or slower, run after run, and what changed with them.

    `pscale history add RUN` and `pscale run --record` keep runs in history/<suite>.jsonl.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # products are small: threads would cost more than they do
    from pscale.cli import history as command

    if words and words[0] == "add":
        if check or accept is not None or cases:
            raise UsageError("'pscale history add' only adds runs; --check and --accept take a suite")
        command.add(words[1:], folder, reports)
        return
    code = command.history(
        words or [],
        folder,
        as_format,
        check=check,
        accept=accept,
        cases=cases or [],
        relevant=relevant,
    )
    raise typer.Exit(code)


@_command("trace", READ, "pscale trace --steps 3-5 -o trace.json.gz  # for ui.perfetto.dev")
def trace(
    path: o.RunPath = None,
    case: o.CaseName = None,
    launch: o.LaunchNumber = 1,
    steps: o.StepRange = None,
    output: o.Output = None,
    figure: o.StepFigure = None,
    reports: o.Reports = o.REPORTS,
) -> None:
    """Write the timeline of a traced case: every phase, call and message, for ui.perfetto.dev."""
    from pscale.cli import trace as command

    folder = run_folder(path, reports)
    if figure is None:
        command.trace(folder, case, launch, command.window(steps), output)
    elif output is not None:
        raise UsageError("--output is the file of the timeline for a viewer; --figure draws a step instead")
    else:
        command.draw(folder, case, launch, command.window(steps), figure)


@_command(
    "export",
    READ,
    "pscale export --format goal  # the newest run for LogGOPSim",
    "pscale export RUN --format chakra --steps 0-3  # some steps for ASTRA-sim",
    "pscale export RUN --format extrap  # all launches for Extra-P",
)
def export(
    as_format: o.AsExport,
    path: o.RunPath = None,
    case: o.CaseName = None,
    launch: o.ExportLaunch = None,
    steps: o.StepRange = None,
    output: o.ExportFolder = None,
    reports: o.Reports = o.REPORTS,
) -> None:
    """Export a run to other tools: simulators, trace viewers, model fitting."""
    from pscale.cli import trace as command
    from pscale.cli.trace import window

    command.export(run_folder(path, reports), as_format, case, launch, window(steps), output)


@_command(
    "watch",
    MEASURE,
    "pscale watch -n 4 -- ./a.out --size 100  # any MPI program",
    "pscale watch -n 2 -- python train.py  # or a Python program",
    allow_interspersed_args=False,
)  # options end at the program's name
def watch(
    program: o.Program = None,
    ranks: o.WatchRanks = 2,
    threads: o.WatchThreads = 1,
    bind: o.WatchBind = "core",
    launcher: o.Launcher = "auto",
    hosts: o.Hosts = None,
    time_limit: o.TimeLimit = None,
    hang_after: o.HangAfter = "60s",
    notes: o.NotesFolder = None,
    reports: o.Reports = o.REPORTS,
    report: o.WriteReport = True,
) -> None:
    """Run any MPI program, record every call, and report it: who waits for whom, where, and why.

    C, C++, Fortran, mpi4py; MPICH, Open MPI, Intel MPI; no recompiling.
    """
    from pscale.cli import watch as command

    if notes is not None:
        raise typer.Exit(command.read_notes(notes, reports, reported=report))
    if not program:
        raise UsageError("name a program: pscale watch -n 4 -- ./a.out")
    options = command.WatchOptions(
        ranks=ranks,
        threads=threads,
        bind=bind,
        launcher=launcher,
        hosts=o.host_list(hosts),
        time_limit_s=o.seconds("--time-limit", time_limit) if time_limit is not None else None,
        hang_after_s=o.seconds("--hang-after", hang_after),
        reports=reports,
        reported=report,
    )
    raise typer.Exit(command.watch(program, options))


@_command("verify", BEFORE, "pscale verify strategies  # every plan equals the serial program")
def verify(
    suite: o.SuitePath,
    overrides: o.Overrides = None,
    only: o.Only = None,
    reports: o.Reports = o.REPORTS,
    every_tensor: o.EveryTensor = False,
    site: o.SiteName = None,
    as_json: o.AsJson = False,
) -> None:
    """Prove every plan of a suite equal to the serial program: losses, gradients, weights, calls, bytes."""
    from pscale.cli import verify as command
    from pscale.cli.prepare import SuiteOptions

    chosen = SuiteOptions(overrides=overrides or [], only=only, site=site)
    raise typer.Exit(command.verify(suite, chosen, reports, every_tensor=every_tensor, as_json=as_json))


@_command(
    "sample",
    READ,
    "pscale sample states --tokens 300  # what a saved model writes",
    "pscale sample states --prompt 'def '  # after some words",
)
def sample(
    folder: o.StateFolder,
    tokens: o.NewTokens = 300,
    prompt: o.Prompt = "",
    temperature: o.Temperature = 0.8,
    seed: o.Seed = 1,
) -> None:
    """Print text that a saved model writes: train.save in a suite saves one."""
    from pscale.training.sample import sample as text_of

    typer.echo(text_of(folder, tokens, prompt=prompt, temperature=temperature, seed=seed))


@_command("schema", BEFORE, "pscale schema > suite.schema.json  # completion and checks in an editor")
def schema(events: o.OfEvents = False) -> None:
    """Print the JSON Schema of a suite, for editors."""
    from pscale.suite.schema import editor_schema, event_schema

    typer.echo(json.dumps(event_schema() if events else editor_schema(), indent=2))


def _with_command(words: Sequence[str]) -> typer.Typer:
    """Return the app with only the command that is the first word, if one is: Typer makes options of all."""
    named = {info.name or info.callback.__name__: info for info in app.registered_commands if info.callback}
    only = copy(app)
    only.registered_commands = [named[word] for word in words[:1] if word in named] or app.registered_commands
    if os.environ.get("NO_COLOR"):
        only.rich_markup_mode = None  # of help and of mistakes: bold and dim are codes too
    return only


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
        _with_command(sys.argv[1:])(prog_name="pscale")  # also for `python -m pscale`: for completion
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
