"""What each command takes, declared once: its arguments and options, with help, defaults and completion.

Completion offers suites, runs, cases and fields; whatever goes wrong, nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
)

import typer
from typer.models import ParameterInfo

from pscale.errors import ResultsError, UsageError
from pscale.runs import atomic_files
from pscale.runs.run_folders import run_folder, run_folders
from pscale.suite import shipped as shipped_suites

_MOST = 200  # more are no help


def suites(incomplete: str) -> list[str]:
    """Return YAML files where the word points, and at first the shipped suites too."""
    return [*_below(incomplete, lambda path: path.suffix in (".yaml", ".yml")), *shipped(incomplete)]


def shipped(incomplete: str) -> list[str]:
    """Return the names of shipped suites."""
    return _starting(shipped_suites.suites(), incomplete)


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return suites that have runs under `--reports`, and the runs, newest first; else what a folder has."""
    root = Path(str(ctx.params.get("reports") or REPORTS))
    found = sorted(run_folders(root), key=lambda folder: folder.name, reverse=True)[:_MOST]
    suites_ = sorted({folder.parent.name for folder in found})
    known = [word for word in (*suites_, *map(str, found)) if word.startswith(incomplete)]
    return known or _below(incomplete, lambda path: (path / "run.json").exists())


def cases(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the cases of the run that is named before, or of the newest, with their labels."""
    named = ctx.params.get("path")
    root = Path(str(ctx.params.get("reports") or REPORTS))
    try:
        folder = run_folder(Path(str(named)) if named else None, root)
        listed = atomic_files.read_json(folder / "run.json")["cases"]
        known = [(str(case["id"]), str(case.get("label", ""))) for case in listed]
    except (OSError, ValueError, KeyError, TypeError, ResultsError):
        return []
    return [(case, label) for case, label in known if case.startswith(incomplete)][:_MOST]


def settings(incomplete: str) -> list[str]:
    """Return fields of suites, each with the sign after which its value comes."""
    from pscale.suite.fields import LEAVES

    return _starting([f"{leaf}=" for leaf in LEAVES], incomplete)


def names(incomplete: str) -> list[str]:
    """Return the names that the last word of a condition may be."""
    from pscale.suite.fields import SHORT

    before, space, last = incomplete.rpartition(" ")
    known = _starting(sorted(SHORT), last)
    return [f"{before}{space}{name}" for name in known]


def _starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in known if word.startswith(incomplete)]


def _below(incomplete: str, wanted: Any) -> list[str]:
    """Return what is wanted, and folders to go on into, where the word points."""
    written, _, _ = incomplete.rpartition("/")
    found = []
    with suppress(OSError):
        for path in sorted(Path(written or ("/" if incomplete.startswith("/") else ".")).iterdir()):
            if not path.name.startswith(".") and (wanted(path) or path.is_dir()):
                found.append(str(path) if wanted(path) else f"{path}/")
    return _starting(found, incomplete)[:_MOST]


REPORTS = Path("reports")
HISTORY = Path("history")


def percentage(option: str, text: str) -> float:
    """Return the share that a text such as "5%" states; more than none."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", text)
    if found is None or not float(found[1]) > 0:
        raise UsageError(f"{option}: expected a percentage such as 5%, got '{text}'")
    return float(found[1]) / 100


def seconds(option: str, text: str) -> float:
    """Return the time that a text such as "90", "90s" or "1h 30m" states; more than none."""
    from pscale.config.metrics import duration_s

    try:
        found = float(text) if text.replace(".", "", 1).isdecimal() else duration_s(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
    if not found > 0:
        raise UsageError(f"{option}: expected more than no time, got '{text}'")
    return found


def host_list(text: str | None) -> tuple[str, ...]:
    """Return what `launch.hosts` is of a suite, from an option."""
    return tuple(word.strip() for word in text.split(",")) if text else ()


def _option(metavar: str | None, help_: str, names: str = "", *, default: Any = None, **more: Any) -> Any:
    """Return an option; without `names` it has that of its field."""
    return typer.Option(default, *names.split(), metavar=metavar, help=help_, **more)


def _flag(names: str, help_: str, *, default: bool = False) -> Any:
    return typer.Option(default, *names.split(), help=help_)


def _argument(metavar: str, help_: str, *, default: Any = None, **more: Any) -> Any:
    return typer.Argument(default, metavar=metavar, help=help_, **more)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Options:
    """What a command takes. Fields that Typer describes are typed; programs alone set the others."""

    environ: ClassVar[Mapping[str, str]] = {}  # of the command, set before it imports libraries

    def __init__(self, **given: Any):
        described = {each.name: each.default.default for each in self.parameters()}
        vars(self).update({**described, **given})

    def but(self, **changes: Any) -> Self:
        """Return these options with other values of some."""
        return type(self)(**{**vars(self), **changes})

    @classmethod
    @cache
    def parameters(cls) -> list[Parameter]:
        """Return the parameters of the command, for Typer."""
        return [
            Parameter(name, Parameter.KEYWORD_ONLY, default=described, annotation=hint)
            for name, hint in get_type_hints(cls).items()
            if isinstance(described := getattr(cls, name, None), ParameterInfo)
        ]


class Command(NamedTuple):
    """A command: `run` names its function in a module of this package, which gets its options."""

    name: str
    panel: str
    run: str
    examples: Mapping[str, str]
    options: type[Options]
    ends_at_program: bool  # all words behind the first argument are of a program


COMMANDS: dict[str, Command] = {}
BEFORE, MEASURE, READ, COMPARE = "Before a run", "Measure", "Read", "Compare and guard"
Kind = TypeVar("Kind", bound=type[Options])


def _command(
    name: str, panel: str, run: str, *examples: str, ends_at_program: bool = False
) -> Callable[[Kind], Kind]:
    """Declare a command by its options; examples are what one types, then its purpose."""

    def declare(options: Kind) -> Kind:
        typed = dict(example.split("  # ") for example in examples)
        COMMANDS[name] = Command(name, panel, run, typed, options, ends_at_program)
        return options

    return declare


def _one_of(choices: Any) -> str:
    return f"One of {', '.join(get_args(choices))}."


Format = Literal["terminal", "html", "md", "json", "csv", "latex"]
TableFormat = Literal["terminal", "md", "markdown", "json", "csv", "latex"]
CheckFormat = Literal["terminal", "md", "markdown", "json"]
Bind = Literal["core", "socket", "numa", "none"]
FigureFormat = StrEnum("FigureFormat", ["svg", "png", "pdf"])  # Typer takes no list of literals
_SUITE = _argument("SUITE", "Name of a shipped suite, or a YAML file.", default=..., autocompletion=suites)
_REPORTS = _option("FOLDER", "Folder that holds the runs.", default=REPORTS)
_RUN = _argument(
    "RUN",
    "A run's folder, or a suite: its newest run, SUITE~1: the one before; default: the newest.",
    autocompletion=runs,
)
_JSON = _flag("--json", "Print JSON for scripts.")
_HOSTS = _option(
    "HOST:CORES,…", "Hosts without a scheduler, with the cores of each, or a file of them; default: this one."
)
_SITE = _option("NAME", "Profile in sites.yaml; default: the one for this host.")
_PROGRAM = _argument("-- PROGRAM", "The program and its arguments.")
_THREADS = _option("N", "Threads of a rank: OMP_NUM_THREADS.", default=1, min=1)
_BIND = _option("TO", "Bind ranks to: core, socket, numa, none.", default="core")
_WEAK = _flag("--weak", "The work grows with the ranks; default: the same work for all sizes.")
_WORK = _option("EXPR", "Work of a case, as sizes may be rounded: 'n**3'.")
_WRITE_REPORT = _flag("--report/--no-report", "Report the run when it has ended.", default=True)
_BARE = _option(
    "RUN", "Take calls that it did not make from this run of bare collectives.", autocompletion=runs
)
_ANY_MACHINE = _flag("--any-machine", "Accept a run from another machine, and predict for that machine.")
_PROFILED = ("RUN", "Traced run to take the times of the parts of a step from.", "--from")
_RELEVANT = _option("PERCENT", "Smallest relevant difference; default: 5%.")
_CASE = _option("ID", "Id or label of the case; default: one with the most ranks.", autocompletion=cases)
_STEPS = _option("FIRST[-LAST]", "Only these measured steps, counted from 0.")


class SuiteOptions(Options):
    """What the command line says of a suite."""

    overrides: list[str] | None = _option(
        "FIELD=VALUE", "Change a field: model.width=256; may be repeated.", "--set", autocompletion=settings
    )
    only: str | None = _option("CONDITION", 'Keep cases such as "ranks == 2".', autocompletion=names)
    site: str | None = None
    folder: Path | None = None  # where sites.yaml and files are; None: beside the suite


class RunOptions(Options):
    """Where runs are kept, whether to continue one, and how far to go."""

    reports: Path = _REPORTS
    new: bool = _flag("--new", "Start a new run even if one is unfinished.")
    wait: bool = _flag("--wait/--detach", "Wait for submitted jobs and report, or return.", default=True)
    report: bool = _WRITE_REPORT
    dry_run: bool = _flag("--dry-run", "Print job scripts and commands; start nothing.")
    wait_idle: bool = _flag("--wait-idle", "Wait, for at most 10 minutes, until the machine is idle.")
    run: Path | None = None  # the folder of the one to continue
    record: bool = False  # in a history
    events: Path | None = None  # the file of the run's events, `-` for standard output


class Effort(Options):
    """How long to measure."""

    budget: str | None = _option("TIME", "Stop once intervals are narrow enough, or after this time: 3m.")
    quick: bool = _flag("--quick", "The same as --budget 30s.")
    precise: bool = _flag("--precise", "Run until intervals are within ±1%, for at most an hour.")

    @property
    def settings(self) -> list[str]:
        """The overrides of a suite that stand for it."""
        from pscale.suite.load import Override

        if self.quick and (self.precise or self.budget):
            raise UsageError("--quick is a budget of 30 s; give it without --budget and --precise")
        time = self.budget or ("30s" if self.quick else "1h" if self.precise else None)
        if time is None:
            return []
        option = f"--budget {self.budget}" if self.budget else "--quick" if self.quick else "--precise"
        precisely = ("known_to=1%", "max_repeats=1000") if self.precise else ()
        return [Override(text, option) for text in ("repeat=auto", f"budget={time}", *precisely)]


@_command("doctor", BEFORE, "status:doctor", "pscale doctor  # is this machine fit for measuring?")
class Doctor(Options):
    """Check this machine: cores, MPI, BLAS, and what would disturb measurements."""

    as_json: bool = _JSON
    blas: bool = _flag("--blas", "Rank the installed BLAS libraries by speed.")
    hosts: str | None = _HOSTS
    reports: Path = _REPORTS


@_command("suites", BEFORE, "show:list_suites", "pscale suites  # what is ready to run")
class Suites(Options):
    """List the shipped suites: the question that each answers, its cases and launches on this machine."""

    as_json: bool = _JSON


@_command(
    "init", BEFORE, "show:init", "pscale init weak wide.yaml  # copy the suite weak to wide.yaml, to edit"
)
class Init(Options):
    """Copy a shipped suite to a file to edit."""

    suite: str = _argument("SUITE", "Name of a shipped suite.", default=..., autocompletion=shipped)
    file: Path | None = _argument("FILE", "The copy; default: SUITE.yaml in this folder.")


@_command(
    "show",
    BEFORE,
    "show:show",
    "pscale show weak  # cases and their costs",
    "pscale show weak --set model.width=512  # the same, wider",
    "pscale show pipeline --schedule  # work of each stage",
)
class Show(SuiteOptions):
    """Print the cases of a suite: plan, parameters, FLOPs, bytes and memory per rank. Starts nothing."""

    suite: Path = _SUITE
    site: str | None = _SITE
    as_json: bool = _JSON
    memory: bool = _flag("--memory", "Show the memory per rank by kind.")
    schedule: bool = _flag("--schedule", "Show pipeline schedules too.")
    figure: Path | None = _option("FILE", "Draw pipeline schedules into this file: svg, png or pdf.")
    reports: Path = REPORTS  # earlier runs tell how long launches take


@_command(
    "run",
    MEASURE,
    "run:run",
    "pscale run weak strong  # measure and report",
    "pscale run weak --only 'ranks <= 2'  # some cases",
    "pscale run weak --set inject.delay=10ms  # with a slow rank",
)
class Run(RunOptions, Effort, SuiteOptions):
    """Measure every case of the suites, then report. Continues an unfinished run of the same suite.

    Submits jobs on a login node, launches locally elsewhere: `pscale doctor` says which.
    """

    suites: list[Path] = _argument(
        "SUITE", "Names of shipped suites, or YAML files.", default=..., autocompletion=suites
    )
    site: str | None = _SITE
    run: Path | None = _option("RUN", "Continue the run in this folder.")
    record: bool = _flag("--record", "Add the run to its suite's history when it has ended.")
    events: Path | None = _option("FILE", "Add what happens to this file, a line of JSON each; - prints it.")


@_command(
    "scale",
    MEASURE,
    "scale:scale",
    "pscale scale -- ./mine 800  # strong scaling",
    "pscale scale --weak -- ./mine '{800 * ranks}'  # weak scaling",
    "pscale scale --set n=4,8 -- python mine.py '{n}'  # two series",
    "pscale scale --save mine.yaml -- ./mine 800  # the suite, to edit",
    ends_at_program=True,
)
class Scale(RunOptions, Effort):
    """Measure how any MPI program scales: efficiency over ranks, and what is lost to whom.

    Options end at the program's name: all behind it is the program's.
    '{ranks}' and '{800 * ranks}' in its arguments are numbers of each size.
    """

    program: list[str] | None = _PROGRAM
    ranks: str | None = _option(
        "N,…", "Sizes: 1,2,4,8; default: powers of two up to all cores.", "--ranks -n"
    )
    weak: bool = _WEAK
    values: list[str] | None = _option(
        "NAME=VALUE,…",
        "Values of {NAME} in the command, each a series; or a field of a suite. May be repeated.",
        "--set",
    )
    step_time: str | None = _option(
        "REGEX", "Time to compare, in the output: 'Total time: (\\S+) s'; default: that of the whole launch."
    )
    metric: list[str] | None = _option(
        "NAME=REGEX", "Another number of the output; NAME=@FILE:PATH reads JSON or CSV. May be repeated."
    )
    work: str | None = _WORK
    rate: str | None = _option("REGEX", "Instead of a time: a rate, 'GFLOP/s: (\\S+)'; compared by core.")
    warmup: int = _option("N", "First launches that are not counted.", default=0, min=0, max=100)
    watch: bool = _flag(
        "--watch/--no-watch", "Record the MPI calls of one untimed launch of each size.", default=True
    )
    threads: int = _THREADS
    bind: Bind = _BIND
    launcher: str = _option("COMMAND", "Launcher, such as mpiexec; auto: the program's.", default="auto")
    oversubscribe: bool = _flag("--oversubscribe", "Allow more ranks than cores; they share them.")
    site: str | None = _SITE
    save: Path | None = _option("FILE", "Write the suite to this file, and run nothing.")


@_command(
    "import",
    MEASURE,
    "import_table:import_table",
    "pscale import table.csv --ranks P --time 'Time [s]'  # a table of launches",
    "pscale import t.csv --ranks P --time T --param n=N  # a series for each n",
)
class Import(Options):
    """Make a run of a table of launches that exists already, and report it.

    Columns are separated by commas, semicolons, tabs, | or spaces; decimals by a point or a comma. What the
    table does not tell, such as the machine, stays unknown.
    """

    table: Path = _argument("TABLE", "A CSV file, a line a launch.", default=...)
    ranks: str = _option("COLUMN", "Column of the ranks.", default=...)
    time: str = _option("COLUMN", "Column of the time of a launch.", default=...)
    threads: str | None = _option("COLUMN", "Column of the threads of a rank; default: 1.")
    param: list[str] | None = _option("NAME=COLUMN", "A parameter, a series each; may be repeated.")
    metric: list[str] | None = _option("NAME=COLUMN", "Another figure; may be repeated.")
    unit: str | None = _option("UNIT", "Unit of the time; default: that in its name, else s.")
    weak: bool = _WEAK
    work: str | None = _WORK
    name: str | None = _option("NAME", "Name of the program; default: that of the file.")
    reports: Path = _REPORTS
    report: bool = _WRITE_REPORT


@_command(
    "status",
    MEASURE,
    "status:status",
    "pscale status --watch  # launches and jobs until the run has finished",
)
class Status(Options):
    """Show the state of a run: its launches, and its jobs in the scheduler's queue."""

    path: Path | None = _RUN
    reports: Path = _REPORTS
    as_json: bool = _JSON
    watch: bool = _flag("--watch", "Update the output until the run has finished.")


@_command("cancel", MEASURE, "status:cancel", "pscale cancel reports/weak/RUN  # finished launches are kept")
class Cancel(Options):
    """Cancel the jobs of a run. Finished launches are kept; `pscale run` continues with the rest."""

    path: Path | None = _RUN
    reports: Path = _REPORTS


@_command(
    "list", READ, "status:list_runs", "pscale list --suite weak -n 5  # the five newest runs of a suite"
)
class ListRuns(Options):
    """List the runs of a folder, newest first, with their outcome and best result."""

    reports: Path = _REPORTS
    suite: str | None = _option("NAME", "Only runs of this suite.")
    most: int | None = _option("N", "Show N runs.", "--most -n", min=1)
    as_json: bool = _JSON


@_command(
    "predict",
    BEFORE,
    "predict:predict",
    "pscale predict weak --from RUN --ranks 64,4096  # on more ranks",
    "pscale predict weak --from RUN --network cluster.yaml  # on another network",
    "pscale predict weak --from RUN --probe 30s  # at new shapes",
    "pscale predict weak --from RUN --tokens 300B --price 2  # time and cost",
    "pscale predict weak --on examples/machines/a100.yaml  # by data sheet",
)
class Predict(SuiteOptions):
    """Predict a suite on more ranks or another network: step times, efficiency, what limits it first.

    Writes SUITE.prediction.html, and SUITE.prediction.json, with which a later run is compared.
    """

    suite: Path = _SUITE
    profiled: Path | None = _option(*_PROFILED, autocompletion=runs)
    sheet: Path | None = _option(
        "FILE", "A machine by its data sheet instead of a run; then nothing is measured.", "--on"
    )
    probe: str | None = _option(
        "TIME",
        "Measure computing at these shapes: run a rank of each kind alone, for so long in all, such as "
        "30s; also without --from.",
    )
    bare: Path | None = _BARE
    network: Path | None = _option(
        "FILE", "Another network, in tiers; default: calls take the times measured."
    )
    engine: Literal["vector", "simgrid"] = _option(
        "ENGINE",
        "vector: calls take modelled times; simgrid: messages share links (needs --network, SimGrid).",
        default="vector",
    )
    ranks: str | None = _option("N,…", "Numbers of ranks to predict: 4096,1048576.")
    draws: int = _option("N", "Random draws of each step.", default=200, min=2, max=100000)
    tokens: str | None = _option("N", "Also the time to train on this many tokens: 300B, 1.4T.")
    price: float | None = _option("X", "Also the cost of that, at X per rank-hour.", min=0)
    any_machine: bool = _ANY_MACHINE
    reports: Path = _REPORTS
    as_json: bool = _JSON


@_command(
    "advise",
    BEFORE,
    "advise:advise",
    "pscale advise strong --from RUN --ranks 8  # the 5 best, measured",
    "pscale advise strong --from RUN --ranks 64 --measure 0  # only predicted",
)
class Advise(SuiteOptions):
    """Find the fastest plan for a suite's model: predict every plan that fits, measure the best.

    Ends with the plan to paste. Only the suite's model and batch count; its own ranks and plans are ignored.
    """

    suite: Path = _SUITE
    profiled: Path = _option(*_PROFILED, default=..., autocompletion=runs)
    ranks: int = _option("N", "Ranks to plan for.", default=..., min=1, max=100000)
    bare: Path | None = _BARE
    probe: str | None = _option(
        "TIME", "Predict the best five again, a rank of each kind run alone for so long in all, such as 60s."
    )
    memory: str | None = _option(
        "SIZE", "Memory of a node, such as 4GiB; default: the suite's limit, else this machine's."
    )
    measure: int = _option("K", "Measure the K best predictions; 0: only predict.", default=5, min=0, max=100)
    any_machine: bool = _ANY_MACHINE
    reports: Path = _REPORTS


@_command(
    "report",
    READ,
    "app:report",
    "pscale report  # the newest run in brief",
    "pscale report --full  # with all tables",
    "pscale report --what-if 'all: {latency: 5us}'  # on another network",
    "pscale report --format csv reports/weak/RUN  # for other programs",
)
class Report(Options):
    """Report a run: efficiency with intervals, where the time goes, warnings, figures.

    The default writes report.html, report.md and figures/ into the run's folder.
    `-f html` writes the page alone, `-f csv` a folder csv/; md, json, latex print.
    """

    paths: list[Path] | None = _argument(
        "RUN", "Runs or suites, reported together; default: the newest run.", autocompletion=runs
    )
    as_format: Format = _option("FORMAT", _one_of(Format), "--format -f", default="terminal")
    figures: bool = _flag(
        "--figures/--no-figures", "Draw figures into the run's folder and the page.", default=True
    )
    figure_format: list[FigureFormat] | None = _option(
        "FORMAT", "svg, png or pdf; may be repeated. Default: svg; in publication styles pdf."
    )
    style: Literal["screen", "publication", "publication-serif"] = _option(
        "STYLE", "screen, publication, publication-serif: one column wide, no title.", default="screen"
    )
    full: bool = _flag("--full", "Print all tables, warnings and notes on the terminal.")
    plot: bool = _flag("--plot", "Also draw efficiency and time shares as text.")
    what_if: list[str] | None = _option(
        "NETWORK",
        "Simulate traced cases on another network: 'dp: {latency: 5us, bandwidth: 10GB/s}', or a FILE.",
    )
    predict: list[int] | None = _option(
        "N", "Predict the step time on this many ranks; may be repeated.", min=1
    )
    bare: Path | None = _option(
        "RUN", "Compare calls with the bare collectives measured by this run.", autocompletion=runs
    )
    evidence: bool = _flag("--evidence", "Evidence for a proposal: how far it scales, what its work costs.")
    target: float | None = _option("SHARE", "Its least efficiency; default: 0.7.", min=0.01, max=1)
    units: float | None = _option("N", "Its core-hours for N units of work: 1e9.", min=0)
    reports: Path = _REPORTS

    @property
    def formats(self) -> list[str] | None:
        """Formats of figures, none for those that suit the style; None: no figures."""
        return [*map(str, self.figure_format or ())] if self.figures else None

    @property
    def hint(self) -> str:
        """The command that prints all tables; empty where they are printed."""
        from pscale.report.brief import FULL  # its libraries take their time

        return "" if self.full else " ".join((FULL, *map(str, self.paths or ())))

    @property
    def proposes(self) -> bool:
        """Whether it is evidence for a proposal."""
        return self.evidence or self.target is not None or self.units is not None

    @property
    def usual(self) -> bool:
        """Whether its files, if it writes any, are those that other calls may have left."""
        others = self.what_if or self.predict or self.bare or (self.target, self.units) != (None, None)
        formats = ("html", "md", "latex") if self.proposes else ("html",)
        return not others and (self.leaves_files or self.as_format in formats)

    @property
    def file(self) -> str:
        """The file in a run's folder that has what is asked for; `.`: what any report has left."""
        if self.proposes:
            return "evidence." + {"md": "md", "latex": "tex"}.get(self.as_format, "html")
        return "report.html" if self.as_format == "html" else "."

    @property
    def leaves_files(self) -> bool:
        """Whether it leaves page, Markdown and figures in the run's folder."""
        return self.as_format == "terminal" and self.style == "screen"


@_command(
    "compare",
    COMPARE,
    "check:compare",
    "pscale compare A B --fail-if slower:3%  # two runs; exit code 1 if B is slower",
    "pscale compare A  # the variants of one run",
)
class Compare(Options):
    """Compare two runs, or the variants of one: slower, faster, no difference, or undecided."""

    a: Path = _argument("A", "The baseline: a run, or a suite.", default=..., autocompletion=runs)
    b: Path | None = _argument(
        "B", "The run or suite to compare with A; default: the other variants in A.", autocompletion=runs
    )
    as_format: TableFormat = _option("FORMAT", _one_of(TableFormat), "--format -f", default="terminal")
    fail_if: list[str] | None = _option(
        "CONDITION", "Exit with 1 if one is: slower:3%, faster, undecided, missing."
    )
    relevant: str | None = _RELEVANT
    reports: Path = _REPORTS


@_command(
    "check",
    COMPARE,
    "check:check",
    "pscale check --junit results.xml  # do its expectations hold?",
    "pscale check --update --reference nightly.yaml  # keep references",
)
class Check(Options):
    """Check a run against its suite's expectations and reference values.

    Exit code 1: one fails, or a case did. Exit code 6: none fails, but the intervals leave some undecided.
    """

    path: Path | None = _RUN
    reference: list[Path] | None = _option("FILE", "Also check the values in this file; may be repeated.")
    update: bool = _flag("--update", "Write the run's values as references; checks nothing.")
    junit: Path | None = _option("FILE", "Write the results as JUnit XML, for CI.")
    reports: Path = _REPORTS
    as_format: CheckFormat = _option("FORMAT", _one_of(CheckFormat), "--format -f", default="terminal")
    as_json: bool = _JSON


@_command(
    "history",
    COMPARE,
    "history:history",
    "pscale history add  # add the newest run",
    "pscale history weak  # what became slower, and when",
    "pscale history weak --check  # exit code 1 if the newest is worse",
    "pscale history weak --accept 'new MPI'  # the new speed is normal from now on",
)
class History(Options):
    """Show when a suite's cases became faster or slower, run after run, and what changed with them.

    `pscale history add RUN` and `pscale run --record` keep runs in history/<suite>.jsonl.
    """

    environ: ClassVar = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # Products are small: threads would cost more than they do.
    words: list[str] | None = _argument(
        "SUITE | add RUN",
        "A suite (default: all with a history), or 'add' and runs (default: the newest).",
        show_default=False,
    )
    check: bool = _flag("--check", "Exit with 1 if the newest level is worse, with 6 if undecided.")
    accept: str | None = _option("REASON", "Accept what became worse as the new normal, for this reason.")
    cases: list[str] | None = _option("LABEL", "Accept this case; may be repeated.", "--case")
    relevant: str | None = _RELEVANT
    as_format: Format = _option("FORMAT", _one_of(Format), "--format -f", default="terminal")
    folder: Path = _option("FOLDER", "Folder of the histories.", "--history", default=HISTORY)
    reports: Path = _REPORTS


@_command("trace", READ, "trace:trace", "pscale trace --steps 3-5 -o trace.json.gz  # for ui.perfetto.dev")
class Trace(Options):
    """Write the timeline of a traced case: every phase, call and message, for ui.perfetto.dev."""

    path: Path | None = _RUN
    case: str | None = _CASE
    launch: int = _option("N", "Number of the launch.", default=1, min=1)
    steps: str | None = _STEPS
    output: Path | None = _option("FILE", "File, also .json.gz; - for standard output.", "--output -o")
    figure: Path | None = _option(
        "FILE", "Draw a step of every traced case, or of --case, instead: svg, png or pdf."
    )
    reports: Path = _REPORTS


@_command(
    "export",
    READ,
    "trace:export",
    "pscale export --format goal  # the newest run for LogGOPSim",
    "pscale export RUN --format chakra --steps 0-3  # some steps for ASTRA-sim",
    "pscale export RUN --format extrap  # all launches for Extra-P",
)
class Export(Options):
    """Export a run to other tools: simulators, trace viewers, model fitting."""

    as_format: Literal["chakra", "goal", "otf2", "extrap"] = _option(
        "FORMAT",
        "chakra: ASTRA-sim; goal: LogGOPSim, ATLAHS; otf2: Vampir, Scalasca; extrap: Extra-P.",
        "--format -f",
        default=...,
    )
    path: Path | None = _RUN
    case: str | None = _CASE
    launch: int | None = _option("N", "Number of the launch; default: 1.", min=1)
    steps: str | None = _STEPS
    output: Path | None = _option("FOLDER", "Default: export/FORMAT in the run's folder.", "--output -o")
    reports: Path = _REPORTS


@_command(
    "watch",
    MEASURE,
    "watch:watch",
    "pscale watch -n 4 -- ./a.out --size 100  # any MPI program",
    "pscale watch -n 2 -- python train.py  # or a Python program",
    ends_at_program=True,
)
class Watch(Options):
    """Run any MPI program, record every call, and report it: who waits for whom, where, and why.

    C, C++, Fortran, mpi4py; MPICH, Open MPI, Intel MPI; no recompiling.
    """

    program: list[str] | None = _PROGRAM
    ranks: int = _option("N", "Ranks to start.", "-n --ranks", default=2, min=1)
    threads: int = _THREADS
    bind: Bind = _BIND
    launcher: str = _option(
        "COMMAND", "mpiexec to start it with; auto: that of the program's MPI library.", default="auto"
    )
    hosts: str | None = _HOSTS
    time_limit: str | None = _option(
        "TIME", "Kill the program after this long, such as 90s or 10m; default: never."
    )
    hang_after: str = _option("TIME", "Kill it if all ranks have been inside MPI this long.", default="60s")
    notes: Path | None = _option(
        "FOLDER",
        "Report the record of a program started without `pscale watch`, or of the launch of a run.",
        "--read",
        autocompletion=runs,
    )
    reports: Path = _REPORTS
    report: bool = _WRITE_REPORT


@_command(
    "verify",
    BEFORE,
    "verify:verify",
    "pscale verify strategies  # every plan equals the serial program",
)
class Verify(SuiteOptions):
    """Prove every plan of a suite equal to the serial program: losses, gradients, weights, calls, bytes."""

    suite: Path = _SUITE
    site: str | None = _SITE
    reports: Path = _REPORTS
    every_tensor: bool = _flag("--all", "Also print every tensor and call.")
    as_json: bool = _JSON


@_command(
    "sample",
    READ,
    "show:sample",
    "pscale sample states --tokens 300  # what a saved model writes",
    "pscale sample states --prompt 'def '  # after some words",
)
class Sample(Options):
    """Print text that a saved model writes: train.save in a suite saves one."""

    folder: Path = _argument(
        "FOLDER",
        "A saved state, or the `train.save` folder of one training.",
        default=...,
        show_default=False,
    )
    tokens: int = _option("N", "Bytes to write.", default=300, min=1)
    prompt: str = _option("TEXT", "Text to go on from.", default="")
    temperature: float = _option("T", "Below 1: likelier text; 0: the likeliest.", default=0.8, min=0)
    seed: int = _option("N", "Seed of what is drawn.", default=1, min=0)


@_command(
    "schema",
    BEFORE,
    "show:schema",
    "pscale schema > suite.schema.json  # completion and checks in an editor",
)
class Schema(Options):
    """Print the JSON Schema of a suite, for editors."""

    events: bool = _flag("--events", "Of the lines that `pscale run --events` writes.")
