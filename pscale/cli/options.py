"""What a shell offers while a command is typed: suites, runs, cases, fields. Whatever goes wrong, nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

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
    folder = Path(written or ("/" if incomplete.startswith("/") else "."))
    found = _entries(folder, wanted)
    shown = [f"{path}/" if path.is_dir() and not wanted(path) else str(path) for path in found]
    return _starting(shown, incomplete)[:_MOST]


def _entries(folder: Path, wanted: Any) -> Iterator[Path]:
    try:
        for path in sorted(folder.iterdir()):
            if not path.name.startswith(".") and (path.is_dir() or wanted(path)):
                yield path
    except OSError:
        return


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
    from pscale.suite.document import duration_s

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


def _one_of(choices: Any) -> str:
    return f"One of {', '.join(get_args(choices))}."


Format = Literal["terminal", "html", "md", "json", "csv", "latex"]
TableFormat = Literal["terminal", "md", "markdown", "json", "csv", "latex"]
CheckFormat = Literal["terminal", "md", "markdown", "json"]
Engine = Literal["vector", "simgrid"]
Bind = Literal["core", "socket", "numa", "none"]
FigureFormat = StrEnum("FigureFormat", ["svg", "png", "pdf"])  # Typer takes no list of literals
FigureStyle = Literal["screen", "publication", "publication-serif"]
ExportFormat = Literal["chakra", "goal", "otf2", "extrap"]
SuitePath = Annotated[
    Path,
    typer.Argument(metavar="SUITE", help="Name of a shipped suite, or a YAML file.", autocompletion=suites),
]
SuitePaths = Annotated[
    list[Path],
    typer.Argument(metavar="SUITE", help="Names of shipped suites, or YAML files.", autocompletion=suites),
]
ShippedSuite = Annotated[
    str, typer.Argument(metavar="SUITE", help="Name of a shipped suite.", autocompletion=shipped)
]
NewSuite = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="The copy; default: SUITE.yaml in this folder.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field: model.width=256; may be repeated.",
        autocompletion=settings,
    ),
]
Only = Annotated[
    str | None,
    typer.Option(metavar="CONDITION", help='Keep cases such as "ranks == 2".', autocompletion=names),
]
StateFolder = Annotated[
    Path,
    typer.Argument(help="A saved state, or the `train.save` folder of one training.", show_default=False),
]
NewTokens = Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Bytes to write.")]
Prompt = Annotated[str, typer.Option("--prompt", metavar="TEXT", help="Text to go on from.")]
Temperature = Annotated[
    float, typer.Option("--temperature", metavar="T", min=0, help="Below 1: likelier text; 0: the likeliest.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of what is drawn.")]
Reports = Annotated[Path, typer.Option("--reports", metavar="FOLDER", help="Folder that holds the runs.")]
RunPath = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN",
        help="A run's folder, or a suite: its newest run, SUITE~1: the one before; default: the newest.",
        autocompletion=runs,
    ),
]
SiteName = Annotated[
    str | None,
    typer.Option("--site", metavar="NAME", help="Profile in sites.yaml; default: the one for this host."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
AsFormat = Annotated[Format, typer.Option("--format", "-f", metavar="FORMAT", help=_one_of(Format))]
AsTables = Annotated[
    TableFormat,
    typer.Option("--format", "-f", metavar="FORMAT", help=_one_of(TableFormat)),
]
AsCheck = Annotated[
    CheckFormat,
    typer.Option("--format", "-f", metavar="FORMAT", help=_one_of(CheckFormat)),
]
Blas = Annotated[bool, typer.Option("--blas", help="Rank the installed BLAS libraries by speed.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the Python traceback of an error.")]
Version = Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)]

# show
Memory = Annotated[bool, typer.Option("--memory", help="Show the memory per rank by kind.")]
Schedule = Annotated[bool, typer.Option("--schedule", help="Show pipeline schedules too.")]
ScheduleFigure = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw pipeline schedules into this file: svg, png or pdf.")
]

# run, status, list
New = Annotated[bool, typer.Option("--new", help="Start a new run even if one is unfinished.")]
RunFolder = Annotated[
    Path | None, typer.Option("--run", metavar="RUN", help="Continue the run in this folder.")
]
Wait = Annotated[bool, typer.Option("--wait/--detach", help="Wait for submitted jobs and report, or return.")]
WriteReport = Annotated[bool, typer.Option("--report/--no-report", help="Report the run when it has ended.")]
Budget = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Stop once intervals are narrow enough, or after this time: 3m."),
]
Quick = Annotated[bool, typer.Option("--quick", help="The same as --budget 30s.")]
Precise = Annotated[
    bool, typer.Option("--precise", help="Run until intervals are within ±1%, for at most an hour.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print job scripts and commands; start nothing.")]
WaitIdle = Annotated[
    bool,
    typer.Option("--wait-idle", help="Wait, for at most 10 minutes, until the machine is idle."),
]
Events = Annotated[
    Path | None,
    typer.Option(
        "--events", metavar="FILE", help="Add what happens to this file, a line of JSON each; - prints it."
    ),
]
OfEvents = Annotated[bool, typer.Option("--events", help="Of the lines that `pscale run --events` writes.")]
Watch = Annotated[bool, typer.Option("--watch", help="Update the output until the run has finished.")]
OfSuite = Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this suite.")]
Most = Annotated[int | None, typer.Option("--most", "-n", min=1, metavar="N", help="Show N runs.")]

# watch
Program = Annotated[
    list[str] | None, typer.Argument(metavar="-- PROGRAM", help="The program and its arguments.")
]
WatchRanks = Annotated[int, typer.Option("-n", "--ranks", min=1, metavar="N", help="Ranks to start.")]
WatchThreads = Annotated[
    int, typer.Option("--threads", min=1, metavar="N", help="Threads of a rank: OMP_NUM_THREADS.")
]
WatchBind = Annotated[
    Bind, typer.Option("--bind", metavar="TO", help="Bind ranks to: core, socket, numa, none.")
]
Launcher = Annotated[
    str,
    typer.Option(
        "--launcher",
        metavar="COMMAND",
        help="mpiexec to start it with; auto: that of the program's MPI library.",
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="HOST:CORES,…",
        help="Hosts without a scheduler, with the cores of each, or a file of them; default: this one.",
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        help="Kill the program after this long, such as 90s or 10m; default: never.",
    ),
]
HangAfter = Annotated[
    str,
    typer.Option(
        "--hang-after",
        metavar="TIME",
        help="Kill it if all ranks have been inside MPI this long.",
    ),
]
NotesFolder = Annotated[
    Path | None,
    typer.Option(
        "--read",
        metavar="FOLDER",
        help="Report the record of a program started without `pscale watch`, or of the launch of a run.",
        autocompletion=runs,
    ),
]

# scale
StudyRanks = Annotated[
    str | None,
    typer.Option(
        "--ranks", "-n", metavar="N,…", help="Sizes: 1,2,4,8; default: powers of two up to all cores."
    ),
]
Weak = Annotated[
    bool, typer.Option("--weak", help="The work grows with the ranks; default: the same work for all sizes.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE,…",
        help="Values of {NAME} in the command, each a series; or a field of a suite. May be repeated.",
    ),
]
StepTime = Annotated[
    str | None,
    typer.Option(
        "--step-time",
        metavar="REGEX",
        help="Time to compare, in the output: 'Total time: (\\S+) s'; default: that of the whole launch.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME=REGEX",
        help="Another number of the output; NAME=@FILE:PATH reads JSON or CSV. May be repeated.",
    ),
]
WorkOf = Annotated[
    str | None,
    typer.Option("--work", metavar="EXPR", help="Work of a case, as sizes may be rounded: 'n**3'."),
]
RateOf = Annotated[
    str | None,
    typer.Option(
        "--rate", metavar="REGEX", help="Instead of a time: a rate, 'GFLOP/s: (\\S+)'; compared by core."
    ),
]
Warmup = Annotated[
    int, typer.Option("--warmup", min=0, max=100, metavar="N", help="First launches that are not counted.")
]
WatchToo = Annotated[
    bool,
    typer.Option("--watch/--no-watch", help="Record the MPI calls of one untimed launch of each size."),
]
ScaleLauncher = Annotated[
    str, typer.Option("--launcher", metavar="COMMAND", help="Launcher, such as mpiexec; auto: the program's.")
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Allow more ranks than cores; they share them.")
]
SaveSuite = Annotated[
    Path | None, typer.Option("--save", metavar="FILE", help="Write the suite to this file, and run nothing.")
]

# import
TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="A CSV file, a line a launch.")]
RanksColumn = Annotated[str, typer.Option("--ranks", metavar="COLUMN", help="Column of the ranks.")]
TimeColumn = Annotated[str, typer.Option("--time", metavar="COLUMN", help="Column of the time of a launch.")]
ThreadsColumn = Annotated[
    str | None,
    typer.Option("--threads", metavar="COLUMN", help="Column of the threads of a rank; default: 1."),
]
ParamColumns = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=COLUMN", help="A parameter, a series each; may be repeated."),
]
MetricColumns = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME=COLUMN", help="Another figure; may be repeated."),
]
TimeUnit = Annotated[
    str | None,
    typer.Option("--unit", metavar="UNIT", help="Unit of the time; default: that in its name, else s."),
]
RunName = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the program; default: that of the file.")
]

# report, compare, check
RunPaths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN",
        help="Runs or suites, reported together; default: the newest run.",
        autocompletion=runs,
    ),
]
Figures = Annotated[bool, typer.Option(help="Draw figures into the run's folder and the page.")]
FigureFormats = Annotated[
    list[FigureFormat] | None,
    typer.Option(
        metavar="FORMAT",
        help="svg, png or pdf; may be repeated. Default: svg; in publication styles pdf.",
    ),
]
Style = Annotated[
    FigureStyle,
    typer.Option(
        metavar="STYLE",
        help="screen, publication, publication-serif: one column wide, no title.",
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Print all tables, warnings and notes on the terminal.")]
Plot = Annotated[bool, typer.Option("--plot", help="Also draw efficiency and time shares as text.")]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="NETWORK",
        help="Simulate traced cases on another network: 'dp: {latency: 5us, bandwidth: 10GB/s}', or a FILE.",
    ),
]
Predict = Annotated[
    list[int] | None,
    typer.Option(min=1, metavar="N", help="Predict the step time on this many ranks; may be repeated."),
]
Bare = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="Compare calls with the bare collectives measured by this run.",
        autocompletion=runs,
    ),
]
Evidence = Annotated[
    bool, typer.Option("--evidence", help="Evidence for a proposal: how far it scales, what its work costs.")
]
Target = Annotated[
    float | None,
    typer.Option(min=0.01, max=1, metavar="SHARE", help="Its least efficiency; default: 0.7."),
]
Units = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="Its core-hours for N units of work: 1e9.")
]
BaselineRun = Annotated[
    Path,
    typer.Argument(metavar="A", help="The baseline: a run, or a suite.", autocompletion=runs),
]
OtherRun = Annotated[
    Path | None,
    typer.Argument(
        metavar="B",
        help="The run or suite to compare with A; default: the other variants in A.",
        autocompletion=runs,
    ),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(metavar="CONDITION", help="Exit with 1 if one is: slower:3%, faster, undecided, missing."),
]
Relevant = Annotated[
    str | None, typer.Option(metavar="PERCENT", help="Smallest relevant difference; default: 5%.")
]
References = Annotated[
    list[Path] | None,
    typer.Option("--reference", metavar="FILE", help="Also check the values in this file; may be repeated."),
]
Update = Annotated[
    bool, typer.Option("--update", help="Write the run's values as references; checks nothing.")
]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results as JUnit XML, for CI.")]

# predict
_PROFILED = typer.Option(
    "--from",
    metavar="RUN",
    help="Traced run to take the times of the parts of a step from.",
    autocompletion=runs,
)
ProfiledRun = Annotated[Path, _PROFILED]
ProfiledIfAny = Annotated[Path | None, _PROFILED]
Probe = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Measure computing at these shapes: run a rank of each kind alone, for so long in all, such as "
        "30s; also without --from.",
    ),
]
ProbePlans = Annotated[
    str | None,
    typer.Option(
        "--probe",
        metavar="TIME",
        help="Predict the best five again, a rank of each kind run alone for so long in all, such as 60s.",
    ),
]
BareCalls = Annotated[
    Path | None,
    typer.Option(
        "--bare",
        metavar="RUN",
        help="Take calls that it did not make from this run of bare collectives.",
        autocompletion=runs,
    ),
]
NetworkFile = Annotated[
    Path | None,
    typer.Option(
        "--network", metavar="FILE", help="Another network, in tiers; default: calls take the times measured."
    ),
]
WithEngine = Annotated[
    Engine,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="vector: calls take modelled times; simgrid: messages share links (needs --network, SimGrid).",
    ),
]
OnRanks = Annotated[
    str | None, typer.Option("--ranks", metavar="N,…", help="Numbers of ranks to predict: 4096,1048576.")
]
Draws = Annotated[int, typer.Option(min=2, max=100_000, metavar="N", help="Random draws of each step.")]
Tokens = Annotated[
    str | None, typer.Option(metavar="N", help="Also the time to train on this many tokens: 300B, 1.4T.")
]
PricePerHour = Annotated[
    float | None,
    typer.Option("--price", min=0, metavar="X", help="Also the cost of that, at X per rank-hour."),
]
AnyMachine = Annotated[
    bool,
    typer.Option("--any-machine", help="Accept a run from another machine, and predict for that machine."),
]

# advise
PlanRanks = Annotated[
    int, typer.Option("--ranks", min=1, max=100_000, metavar="N", help="Ranks to plan for.")
]
NodeMemory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory of a node, such as 4GiB; default: the suite's limit, else this machine's.",
    ),
]
MeasurePlans = Annotated[
    int,
    typer.Option(
        "--measure", min=0, max=100, metavar="K", help="Measure the K best predictions; 0: only predict."
    ),
]

# history
HistoryWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUITE | add RUN",
        help="A suite (default: all with a history), or 'add' and runs (default: the newest).",
        show_default=False,
    ),
]
HistoryFolder = Annotated[Path, typer.Option("--history", metavar="FOLDER", help="Folder of the histories.")]
CheckNewest = Annotated[
    bool, typer.Option("--check", help="Exit with 1 if the newest level is worse, with 6 if undecided.")
]
Accept = Annotated[
    str | None,
    typer.Option(metavar="REASON", help="Accept what became worse as the new normal, for this reason."),
]
AcceptedCases = Annotated[
    list[str] | None, typer.Option("--case", metavar="LABEL", help="Accept this case; may be repeated.")
]
Record = Annotated[
    bool, typer.Option("--record", help="Add the run to its suite's history when it has ended.")
]

# trace, verify
CaseName = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Id or label of the case; default: one with the most ranks.",
        autocompletion=cases,
    ),
]
LaunchNumber = Annotated[int, typer.Option(min=1, metavar="N", help="Number of the launch.")]
StepRange = Annotated[
    str | None, typer.Option(metavar="FIRST[-LAST]", help="Only these measured steps, counted from 0.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="File, also .json.gz; - for standard output."),
]
StepFigure = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Draw a step of every traced case, or of --case, instead: svg, png or pdf."
    ),
]
AsExport = Annotated[
    ExportFormat,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="chakra: ASTRA-sim; goal: LogGOPSim, ATLAHS; otf2: Vampir, Scalasca; extrap: Extra-P.",
    ),
]
ExportLaunch = Annotated[
    int | None, typer.Option("--launch", min=1, metavar="N", help="Number of the launch; default: 1.")
]
ExportFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Default: export/FORMAT in the run's folder."),
]
EveryTensor = Annotated[bool, typer.Option("--all", help="Also print every tensor and call.")]
