"""`pscale show`, `suites` and `init`: the cases of a suite and what each will cost; the shipped suites."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pscale.analysis.text import clean, plural, rough, size_of
from pscale.cli.console import new_console, say
from pscale.cli.costs import MemoryFit, expected_s, memory_fits
from pscale.cli.options import Init, Sample, Schema, Show, SuiteOptions, Suites
from pscale.cli.prepare import load
from pscale.config import JOINT, Case, to_dict, to_document
from pscale.config.metrics import MEMORY_KINDS as KINDS
from pscale.config.workload_command import arguments
from pscale.errors import PlanError, UsageError
from pscale.launch.machine import place
from pscale.launch.target import Target
from pscale.parallel.pipeline import timetable
from pscale.parallel.schedule import Timetable
from pscale.parallel.schedule_timing import bubble, table, time_slots
from pscale.runs.atomic_files import to_json
from pscale.suite import shipped
from pscale.suite.expand import expand
from pscale.suite.load import Suite, load_suite
from pscale.training.dry_run import step_calls
from pscale.training.prediction import predict

_LEAST_LABEL = 20  # characters of a line
_DISPENSABLE = ("id", "plan", "parameters", "GFLOP", "calls", "sent", "memory")  # the first goes first
_MEMORY_DISPENSABLE = ("rank", "written", "read", "exchange", *KINDS[2::-1], "activations")
_TOO_LARGE = "▲"
_BEFORE_LABELS_BREAK = 2  # of these go before labels take several lines


def show(options: Show) -> None:
    """Print the cases of a suite; earlier runs tell how long they take."""
    suite, _, target = load(options.suite, options)
    here, reports, figure = target.machine, options.reports, options.figure
    cases = expand(suite, here.names(), options.only).cases
    if any(case.workload.command for case in cases):
        if options.memory or options.schedule or figure:
            raise UsageError("--memory, --schedule and --figure are of training; this suite has a workload")
        _show_programs(suite, cases, target, reports.absolute() / suite.name / "RUN", as_json=options.as_json)
        return
    if figure is not None:
        draw(cases, figure, suite.title or suite.name)
    found = memory_fits(cases, here)
    fits = [found[case.id] for case in cases]
    seconds = expected_s(fits, here, reports / suite.name)
    if options.as_json:
        rows = [{**_document(fit), "expected_launch_s": seconds[fit.case.id]} for fit in fits]
        print(to_json({"suite": suite.name, **_often(suite), "cases": rows}))
        return
    started_s = sum(seconds[fit.case.id] for fit in fits if not fit.refusal)
    console = new_console()
    console.print(_title(suite), highlight=False)
    console.print(f"{_heading(suite, cases)}: {_time(suite, started_s)}", highlight=False)
    _show_cases(fits, console)
    if options.memory:
        _show_memory(fits, console)
    if options.schedule:
        for text in texts(cases, console.width):
            console.print(f"\n{text}", markup=False, highlight=False)


def _show_cases(fits: Sequence[MemoryFit], console: Console) -> None:
    console.print(_fitted([_row(fit) for fit in fits], _DISPENSABLE, console))
    console.print(
        "Per step. Calls and bytes: rank 0; FLOPs: all ranks, causal attention; memory: the fullest rank.",
        style="dim",
    )
    if refused := [fit for fit in fits if fit.refusal]:
        console.print(
            f"{_TOO_LARGE} {plural(len(refused), 'case')} will not be started: {refused[0].case.label} "
            f"{refused[0].refusal}",
            style="yellow",
            markup=False,
            highlight=False,
        )


def _show_memory(fits: Sequence[MemoryFit], console: Console) -> None:
    offloads = any(fit.case.plan.offload != "none" for fit in fits)
    console.print(Text("\nMemory of the fullest rank", style="bold"))
    rows = [_memory(fit, offloads=offloads) for fit in fits]
    console.print(_fitted(rows, _MEMORY_DISPENSABLE, console))
    beside = "; in a file, read, written: per rank and step, not part of its memory" if offloads else ""
    console.print(f"all ranks: including 128 MiB per process{beside}", style="dim")


def _title(suite: Suite) -> str:
    return f"[bold]{escape(suite.title or suite.name)}[/bold]  {escape(str(suite.file))}"


def _often(suite: Suite) -> dict[str, Any]:
    return {"repeat": suite.repeat, "auto": asdict(suite.auto) if suite.auto else None}


def _show_programs(suite: Suite, cases: Sequence[Case], target: Target, run: Path, *, as_json: bool) -> None:
    """Print the cases of workloads, each with the command that starts it."""
    commands = {case.id: _command(case, target, run) for case in cases}
    if as_json:
        rows = [{**to_document(case), "command": commands[case.id]} for case in cases]
        print(to_json({"suite": suite.name, **_often(suite), "cases": rows}))
        return
    console = new_console()
    console.print(_title(suite), highlight=False)
    console.print(_heading(suite, cases), highlight=False)
    for case in cases:
        said = f"\n{case.id}  {case.label}{' (base)' * case.base}"
        console.print(said, markup=False, highlight=False, style="bold")
        console.print(shlex.join(commands[case.id]), markup=False, highlight=False, soft_wrap=True)


def _command(case: Case, target: Target, run: Path) -> list[str]:
    """Return the command of a case; where jobs are submitted, they choose what starts its ranks."""
    if target.site.scheduler:
        return list(arguments(case, place(case, target.machine).nodes))
    from pscale.cli.run import command_of
    from pscale.cli.workload_tables import launcher_of
    from pscale.launch.selection import likely

    launch = replace(case.launch, launcher=launcher_of(case))
    launcher = likely(launch, target.site.allocation)
    return list(command_of(case, run, launcher, target.machine).argv)


def _memory(fit: MemoryFit, *, offloads: bool) -> dict[str, str]:
    """Return what the fullest rank of a case is predicted to hold, by kind.

    And if any case offloads, what lies in a file in place of memory, and what of it moves in a step.
    """
    fullest, away = fit.fullest, fit.fullest.offloaded
    sizes = {"in a file": away.file_bytes, "read": away.read_bytes, "written": away.written_bytes}
    return {
        "case": fit.case.label,
        "rank": str(fullest.rank),
        **{kind: size_of(fullest.memory_bytes[kind]) for kind in KINDS},
        "per rank": size_of(fullest.total_bytes),
        **({name: size_of(size) if size else "-" for name, size in sizes.items()} if offloads else {}),
        "all ranks": size_of(fit.needed_bytes) + _mark(fit),
    }


def _mark(fit: MemoryFit) -> str:
    return f" {_TOO_LARGE}" if fit.refusal else ""


def _document(fit: MemoryFit) -> dict[str, Any]:
    """Return a case with what is predicted of its first and of its fullest rank."""
    case, fullest, first, calls = fit.case, fit.fullest, predict(fit.case, 0), step_calls(fit.case, 0)
    memory = {
        "rank": fullest.rank,
        "kept_bytes": fullest.kept_bytes,
        **{f"{kind}_bytes": size for kind, size in fullest.memory_bytes.items()},
        "total_bytes": fullest.total_bytes,
        "all_ranks_bytes": fit.needed_bytes,
        "limit_bytes": fit.limit_bytes,
        "refusal": fit.refusal,
    }
    sent = {"calls": [*map(to_dict, calls)], "sent_bytes": sum(call.step_bytes for call in calls)}
    return {"id": case.id, **to_dict(case), "predicted": {**to_dict(first), **sent, "fullest": memory}}


def _time(suite: Suite, round_s: float) -> str:
    """Say how long the suite takes, where a round of its launches takes `round_s`."""
    auto = suite.auto
    if auto is None:
        return f"about {rough(suite.repeat * round_s)}"
    least_s, most_s = auto.least * round_s, auto.most * round_s
    limit_s = most_s if auto.budget_s is None else max(round_s, min(most_s, auto.budget_s))
    words = f"about {rough(min(least_s, limit_s))}"
    return words if limit_s <= least_s else f"{words}, at most {rough(limit_s)}"


def _heading(suite: Suite, cases: Sequence[Case]) -> str:
    counted = suite.repeat - suite.uncounted
    launches = f"{counted} launch{'es' * (counted != 1)} each"
    if auto := suite.auto:
        figures = "step times" if suite.scaling == "throughput" else "efficiencies"
        launches = f"repeated until {figures} are known to ±{100 * auto.precision:.3g}%"
    first = f", after {suite.uncounted} that do{'es' * (suite.uncounted == 1)} not count" * bool(
        suite.uncounted
    )
    return f"{suite.scaling} scaling · {plural(len(cases), 'case')}, {launches}{first}"


def _fitted(rows: Sequence[Mapping[str, str]], dispensable: Sequence[str], console: Console) -> Table:
    """Return the table without the columns that the console has no room for."""
    longest = max(len(row["case"]) for row in rows)
    least = min(longest, _LEAST_LABEL)
    unbounded = console.options.update(width=10_000)
    for count in range(len(dispensable) + 1):
        table = _table(rows, [name for name in rows[0] if name not in dispensable[:count]], least)
        saved = longest - least if count >= _BEFORE_LABELS_BREAK else 0
        needed = Measurement.get(console, unbounded, table).maximum
        if needed - saved <= console.width:
            break
    else:
        count = len(dispensable)
    room = max(least, longest - max(needed - console.width, 0))
    folded = [{**row, "case": _folded(row["case"], room)} for row in rows]
    return _table(folded, [name for name in rows[0] if name not in dispensable[:count]], least)


def _folded(label: str, width: int) -> str:
    """Return a label in lines of whole parts, as far as these are no longer than `width`."""
    lines = [""]
    for part in label.split(JOINT):
        if lines[-1] and len(lines[-1]) + len(JOINT) + len(part) > width - len(JOINT.rstrip()):
            lines[-1] += JOINT.rstrip()
            lines.append(part)
        else:
            lines[-1] += JOINT * bool(lines[-1]) + part
    return "\n".join(lines) if len(label) > width else label


def _table(rows: Sequence[Mapping[str, str]], shown: Sequence[str], least_label: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in shown:
        if name == "case":
            table.add_column(name, overflow="fold", min_width=least_label)
        else:
            table.add_column(name, justify="left" if name in ("id", "plan") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*("\n".join(escape(clean(line)) for line in row[name].split("\n")) for name in shown))
    return table


def _row(fit: MemoryFit) -> dict[str, str]:
    case, first, calls = fit.case, predict(fit.case, 0), step_calls(fit.case, 0)
    return {
        "id": case.id,
        "case": case.label + (" (base)" if case.base else ""),
        "plan": _plan(case),
        "batch": str(case.train.batch),
        "parameters": f"{first.parameters:,}",
        "GFLOP": f"{first.model_flops * 1e-9:,.3g}",
        "calls": str(sum(call.count for call in calls)),
        "sent": size_of(sum(call.step_bytes for call in calls)),
        "memory": size_of(fit.fullest.total_bytes) + _mark(fit),
    }


def _plan(case: Case) -> str:
    return f"{case.plan.product} × {case.threads} threads" if case.threads > 1 else case.plan.product


NONE = "No case has more than one pipeline stage."
FORMATS = ("svg", "png", "pdf")


def different(cases: Sequence[Case]) -> list[tuple[str, Timetable]]:
    """Return every different pipeline with a title: the first case that has it, and how long stages idle."""
    tables = {timetable(case.plan, case.train.micro_batches): case for case in reversed(cases)}
    return [
        (_pipeline_title(case, drawn), drawn) for drawn, case in reversed(tables.items()) if drawn.stages > 1
    ]


def texts(cases: Sequence[Case], columns: int) -> list[str]:
    """Return a table of every different pipeline, no wider than `columns` characters."""
    return [f"{title}\n{table(drawn, columns)}" for title, drawn in different(cases)] or [NONE]


def _pipeline_title(case: Case, drawn: Timetable) -> str:
    named = case.label if drawn.schedule in case.label else f"{case.label}: {drawn.schedule}"
    return f"{named}, bubble {bubble(time_slots(drawn)):.1%} of the work if all parts cost the same"


def check_figure(path: Path) -> None:
    """Raise UsageError for the name of a figure that says no format."""
    if path.suffix.removeprefix(".") not in FORMATS:
        raise UsageError(f"--figure '{path}': expected a name that ends in .{', .'.join(FORMATS)}")


def draw(cases: Sequence[Case], path: Path, title: str) -> None:
    """Draw every different pipeline into one figure; its format is that of the file's name."""
    check_figure(path)
    found = different(cases)
    if not found:
        raise UsageError(f"--figure '{path}': there is nothing to draw. {NONE}")
    from pscale.analysis.columns import Row, row
    from pscale.report import drawing
    from pscale.report.drawing import draw_steps

    def spans(drawn: Timetable) -> list[Row]:  # a part's work is the same in however many chunks
        slots = time_slots(drawn)
        length = max(slot.stop for of_stage in slots for slot in of_stage) / drawn.chunks
        return [
            row(
                "timeline",
                stages=drawn.stages,
                length_s=length,
                rank=stage,
                kind="backward" if slot.action.kind == "input" else slot.action.kind,
                micro=slot.action.micro,
                part=slot.action.part,
                start_s=slot.start / drawn.chunks,
                stop_s=slot.stop / drawn.chunks,
            )
            for stage, of_stage in enumerate(slots)
            for slot in of_stage
        ]

    looks: Any = {"row": "stage", "across": "time, in forwards of a stage", "write": "{:g}".format}
    with drawing.styled():
        steps = [spans(drawn) for _, drawn in found]
        drawing.save(draw_steps(steps, [named for named, _ in found], title, **looks), path)


_SCHEMA = "suite.schema.json"


def list_suites(options: Suites) -> None:
    """Print what every shipped suite measures, and its cases and launches on this machine."""
    files = shipped.suites()
    _, _, target = load(files["quick"], SuiteOptions())
    machine = target.machine.names()
    rows = []
    for name, path in files.items():
        suite = load_suite(path)
        try:
            cases: Sequence[Case] = expand(suite, machine).cases
        except PlanError:  # too large for this machine
            cases = ()
        rows.append((name, suite, cases, shipped.question(path)))
    if options.as_json:
        documents = [
            {"suite": name, "question": question, "cases": len(cases), "launches": len(cases) * suite.repeat}
            for name, suite, cases, question in rows
        ]
        print(to_json(documents))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("suite", style="bold", no_wrap=True)
    table.add_column("cases", justify="right")
    table.add_column("launches", no_wrap=True)
    table.add_column("question")
    for name, suite, cases, question in rows:
        table.add_row(name, str(len(cases)), _launches(suite, cases), question)
    console = new_console(highlight=False)
    console.print(table)
    console.print(
        "Next: pscale show SUITE, run SUITE or init SUITE. Counts are for this machine.", style="dim"
    )


def _launches(suite: Suite, cases: Sequence[Case]) -> str:
    if suite.auto is None or not cases:
        return str(len(cases) * suite.repeat)
    budget = "" if suite.auto.budget_s is None else f", at most {rough(suite.auto.budget_s)}"
    return f"until ±{100 * suite.auto.precision:g}%{budget}"


def init(options: Init) -> None:
    """Copy a shipped suite to a file, by default NAME.yaml, with the schema that it names for editors.

    Raises UsageError for an unknown suite, and for a file that is there or cannot be written.
    """
    name = options.suite
    source = shipped.suites().get(name)
    if source is None:
        raise shipped.unknown(name)
    target = options.file or Path(source.name)
    text = source.read_text(encoding="utf-8")
    if target.stem != name:  # its runs are not those of the shipped one
        text = re.sub(r"^name: .*", f"name: {target.stem}", text, count=1, flags=re.MULTILINE)
    schema = target.with_name(_SCHEMA)
    try:
        with target.open("x", encoding="utf-8") as copy:
            copy.write(text)
        if not schema.exists():
            schema.write_bytes((shipped.FOLDER / _SCHEMA).read_bytes())
    except FileExistsError:
        raise UsageError(
            f"{target} already exists; choose another name: pscale init {name} FILE.yaml"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
    say(new_console(highlight=False), f"{target}: edit it, then: pscale run {target}")


def schema(options: Schema) -> None:
    """Print the JSON Schema of a suite, or of the events of a run."""
    from pscale.suite.schema import editor_schema, event_schema

    print(to_json(event_schema() if options.events else editor_schema(), indent=2))


def sample(options: Sample) -> None:
    """Print text that a saved model writes."""
    from pscale.training.sample import sample as text_of

    print(
        text_of(
            options.folder,
            options.tokens,
            prompt=options.prompt,
            temperature=options.temperature,
            seed=options.seed,
        )
    )
