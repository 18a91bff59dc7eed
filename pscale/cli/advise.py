"""`pscale advise`: predict every plan of a suite's work, measure the best, and say which to take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pscale.analysis import messages, text
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.cli.console import new_console, say
from pscale.cli.costs import EMPTY_PROCESS_BYTES, MemoryFit
from pscale.cli.options import Advise, RunOptions, SuiteOptions
from pscale.cli.predict import probed, profile_of, recorded_in
from pscale.cli.prepare import load as load_suite
from pscale.cli.run import measure
from pscale.config import Case, Plan
from pscale.config.metrics import size_bytes
from pscale.errors import LaunchError, PlanError, UsageError, writing
from pscale.launch.machine import Machine, place
from pscale.launch.target import Target
from pscale.predict.advice import advised, agreement
from pscale.predict.engine import Prediction, predict
from pscale.predict.outlook import joined
from pscale.predict.plans import least_bytes, plans
from pscale.predict.probe import check_probe
from pscale.predict.profile import Profile
from pscale.predict.search import DRAWS, PREDICTED, Memory, Search, search
from pscale.report.table import Column, listed, print_list, print_table
from pscale.runs import atomic_files
from pscale.runs.run_folders import run_folder
from pscale.suite.derive import derived, plan_lines, work_of
from pscale.suite.expand import expand
from pscale.suite.load import Suite
from pscale.suite.load import load_suite as read_suite
from pscale.training.prediction import predict as predict_rank

SHOWN = 10
_PROBED = 5  # plans
_LEANEST = 5  # plans, of which the one is named that needs least
_MOST_NOTES = 6
_FAR = 2  # times as many ranks: further away no number is proposed
_interval = partial(text.duration_interval, count=3)
_MEASURED = (
    Column("place", str, get="place"),
    Column("plan", fold=True, get=lambda row: row.prediction.case.label),
    Column("step", text.duration_3, get="step_s"),
    Column("relative to the fastest", fold=True, get="answer"),
    Column("predicted", text.duration_3, get=lambda row: row.prediction.step_s.value),
    Column("as no.", str, get="predicted_place"),
    Column("95% interval", _interval, wide=True, interval=True, get="step_s"),
    Column("error", text.percent, wide=True, get="error"),
)


def advise(options: Advise) -> None:
    """Print the fastest plans as predicted and, unless none is to be measured, as measured."""
    options = options.but(bare=options.bare and run_folder(options.bare, options.reports))
    run = load(run_folder(options.profiled, options.reports))
    suite, _, target = load_suite(options.suite, options)
    machine, name = target.machine, f"{suite.name}-advice"
    suite, work = work_of(suite, options.ranks, machine.names(), options.only)
    work = replace(work, suite=name, scaling="throughput", ranks=options.ranks, base=False)
    limit_bytes = _limit(options, work, machine)
    if options.any_machine and options.measure:
        raise UsageError("--any-machine predicts for another machine; give it with --measure 0")
    if options.measure:
        place(work, machine)  # refuses more ranks than there are cores, unless they may share them
    profile = profile_of(run, options.bare, machine, anywhere=options.any_machine)
    console = new_console(highlight=False)
    memory = _memory(work, machine, limit_bytes)
    most = max(options.measure, SHOWN)
    errors, columns = new_console(stderr=True), (BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(f"plans of {options.ranks} ranks …", total=None)

        def tell(predicted: int, left: int) -> None:
            what = f"{predicted} plans predicted, {left} may still be faster"
            progress.update(
                task,
                description=f"{what}; Ctrl-C ends with the best so far",
                completed=predicted,
                total=PREDICTED * most,
            )

        result = search(work, profile, memory, most, tell)
    if result.ended and not result.found:
        raise KeyboardInterrupt
    _refuse_none(result, work, memory, machine)
    if options.probe is not None:
        result = _probe_best(result, profile, target, options)
    file, predictions = _write(suite, result.found, options, name)
    _print_predicted(result, predictions, console)
    recorded_in(options.reports / name, predictions, profile)
    best = predictions[0].case
    if options.measure:
        best = _measure(file, predictions, options, console)
    else:
        say(console, f"\npredicted, not measured; to measure them: pscale run {file}")
    say(console, f"\n{plan_lines(best)}")


def _probe_best(result: Search, profile: Profile, target: Target, options: Advise) -> Search:
    """Predict the best plans once more, their computing measured on ranks alone, and order all by that."""
    best, others = result.found[:_PROBED], result.found[_PROBED:]
    cases = [each.case for each in best]
    check_probe(cases, priced=True, anywhere=options.any_machine)
    probes = probed(cases, profile, target, options.probe)
    again = [
        replace(predict(case, probes.profile_for(case), draws=DRAWS), checked_ranks=each.checked_ranks)
        for case, each in zip(cases, best, strict=True)
    ]
    return replace(result, found=tuple(sorted([*again, *others], key=lambda each: each.step_s.value)))


def _limit(options: Advise, work: Case, machine: Machine) -> int:
    """Return the memory of a node in bytes; 0 where it is not known."""
    if options.memory is None:
        return work.launch.memory_limit_bytes or machine.memory_bytes
    try:
        limit_bytes = size_bytes(options.memory)
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None
    if options.measure and machine.memory_bytes and limit_bytes > machine.memory_bytes:
        raise UsageError(
            f"--memory {options.memory}: more than the {text.size_of(machine.memory_bytes)} of "
            f"{machine.host}, where plans are to be measured; --measure 0 only predicts"
        )
    return limit_bytes


def _fit(case: Case, machine: Machine, limit_bytes: int) -> MemoryFit:
    """Return what a case needs of the memory of a node, on as many cores as it may need."""
    launch = replace(case.launch, memory_limit_bytes=limit_bytes, oversubscribe=True)
    limited = replace(case, launch=launch)
    return MemoryFit(limited, machine, place(limited, machine))


def _memory(work: Case, machine: Machine, limit_bytes: int) -> Memory:
    """Return which plans of a work fit in the memory of a node."""
    alone = predict_rank(replace(work, ranks=1, plan=Plan())).memory_bytes
    ranks = _fit(work, machine, limit_bytes).ranks
    return Memory(
        fits=lambda case: not _fit(case, machine, limit_bytes).refusal,
        least_bytes=lambda case: ranks * (least_bytes(case, alone) + EMPTY_PROCESS_BYTES),
        limit_bytes=limit_bytes or math.inf,
    )


def _refuse_none(result: Search, work: Case, memory: Memory, machine: Machine) -> None:
    """Raise PlanError where no plan can run, or none fits."""
    if result.found:
        return
    if result.too_large:
        leanest = sorted(result.too_large, key=memory.least_bytes)[:_LEANEST]
        fits = [_fit(case, machine, int(memory.limit_bytes)) for case in leanest]
        least = min(fits, key=lambda fit: fit.needed_bytes)
        others = "; others were not tried" if result.stopped else ""
        raise PlanError(
            f"none of {result.plans} plans fits in {text.size_of(least.limit_bytes)}: the leanest, "
            f"{least.case.plan.product}, needs {text.size_of(least.needed_bytes)} on "
            f"{text.plural(least.ranks, 'rank')} of a node{others}; raise --memory, or use more ranks"
        )
    near = [
        next((n for n in sizes if any(plans(replace(work, ranks=n)))), None)
        for sizes in (range(work.ranks - 1, 0, -1), range(work.ranks + 1, _FAR * work.ranks + 1))
    ]
    works = " or ".join(str(n) for n in near if n)
    raise PlanError(
        f"--ranks {work.ranks}: no plan divides batch {work.train.batch}, {work.model.layers} layers and "
        f"{work.model.heads} heads by it" + (f"; --ranks {works} works" if works else "")
    )


def _write(
    suite: Suite, best: Sequence[Prediction], options: Advise, name: str
) -> tuple[Path, list[Prediction]]:
    """Write the suite that measures the best plans; return it, and all plans by the labels of a suite."""
    folder = options.reports / name
    file, title = folder / "suite.yaml", f"The best plans for {suite.title or suite.name}"
    cases = [each.case for each in best]
    machine = {"cores": math.inf, "memory_gib": 0.0, "nodes": 1.0, "cores_per_node": math.inf}
    with writing(f"in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write(file, derived(suite, name, title, cases))
        labels = [case.label for case in expand(read_suite(file), machine).cases]
        atomic_files.write(file, derived(suite, name, title, cases[: options.measure or None]))
    return file, [
        replace(each, case=replace(each.case, label=label)) for each, label in zip(best, labels, strict=True)
    ]


def _print_predicted(result: Search, predictions: Sequence[Prediction], console: Console) -> None:
    """Print the fastest plans in the order of predictions, with what each loses."""
    columns = (
        Column("place", str, get="place"),
        Column("plan", fold=True, get=lambda row: row.prediction.case.label),
        Column("step", text.duration_3, get=lambda row: row.prediction.step_s.value),
        Column("90% of launches", _interval, interval=True, get=lambda row: row.prediction.stated_s),
        Column("overhead", fold=True, get="losses"),
    )
    rows = advised(predictions)
    for table in listed("Fastest as predicted", rows, columns, filled=True):
        print_table(table, console)
    too_large = f"; {text.plural(len(result.too_large), 'plan')} of these do not fit in memory"
    lines = [
        f"{result.plans} plans can run; {result.predicted} were predicted, the others are "
        f"{'left' if result.ended else 'slower by estimates'}{too_large if result.too_large else ''}",
        *["The search was interrupted: plans that are not listed may be faster"] * result.ended,
        "Plans that share a place cannot be distinguished by prediction",
        *{messages.unchecked(each.checked_ranks) for each in predictions if each.stated_s.low is None},
        *joined(dict.fromkeys(note for each in predictions for note in each.notes)),
    ]
    print_list("Notes", lines[: 2 + result.ended + _MOST_NOTES], console)


def _measure(file: Path, predictions: Sequence[Prediction], options: Advise, console: Console) -> Case:
    """Measure the suite of the best plans, print what came of it, and return the fastest."""
    console.file.flush()  # what is said of launches comes after it
    progress = new_console(stderr=True)
    run_options = RunOptions(reports=options.reports, report=False)
    folder = measure(file, SuiteOptions(folder=file.parent), run_options, progress)
    findings = Findings(load(folder))
    points = {point.case: point for point in findings.rows("cases") if point.step_s}
    measured = [each for each in predictions if each.case.id in points]
    if not measured:
        raise LaunchError(f"no plan succeeded; see pscale report {folder}")
    comparison = agreement(measured, points, findings.ranked("plan"))
    for table in listed("Fastest as measured", comparison.rows, _MEASURED):
        print_table(table, console)
    print_list("Agreement", [*comparison.sentences, f"all of this run: pscale report {folder}"], console)
    return comparison.rows[0].case
