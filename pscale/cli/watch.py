"""`pscale watch`: start any MPI program, record its calls, and report it like a run of a suite."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pscale.cli import fail
from pscale.cli.console import new_console, say
from pscale.cli.options import Watch as WatchOptions
from pscale.cli.options import host_list, seconds
from pscale.cli.progress import showing_share
from pscale.cli.run import report_alone
from pscale.cli.workload_tables import NOTES, library_of_command, observer_of, read_of, sibling_launcher
from pscale.config import Case, Launch, Plan, to_dict
from pscale.config.workload_command import why_nested
from pscale.errors import FAILED, INTERRUPTED, LaunchError, PscaleError, ResultsError, UsageError
from pscale.launch import local
from pscale.launch.command import command
from pscale.launch.launcher import Launcher
from pscale.launch.outcome import Outcome, Verdict, cause, signal_name
from pscale.launch.provenance import provenance
from pscale.launch.runner import CaseLaunch, measure, skipped
from pscale.launch.selection import check_hosts, select
from pscale.launch.target import Target, find_target
from pscale.runs import atomic_files
from pscale.runs.journal import Journal, writing_in
from pscale.runs.launch_folder import LaunchFolder
from pscale.runs.run_events import Ended, Launched
from pscale.runs.run_folders import run_folder
from pscale.runs.store import OF_CASE, program_row, write_columns, write_part
from pscale.watch.notes import FACTS, Recorded, read
from pscale.watch.preload import FOLDER, preload_words, sibling_library
from pscale.watch.tables import record_tables

_ENDING = {signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV}
_NEVER_S = 10.0 * 365 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A program to record, on so many ranks, in a run of its own."""

    journal: Journal
    case: Case
    key: str  # hash of the program and what it is given: the id of its case

    @property
    def folder(self) -> Path:
        """Where its logs and notes are."""
        return self.journal.case_folder((self.key, 0))


def watch(options: WatchOptions) -> int:
    """Run a program under the recorder and report it; return its exit code, or FAILED where it was ended."""
    if options.notes is not None:
        return _read_notes(options.notes, options.reports, reported=options.report)
    if not options.program:
        raise UsageError("name a program: pscale watch -n 4 -- ./a.out")
    return _watch(options.program, options)


def _watch(words: Sequence[str], options: WatchOptions) -> int:
    limit_s = _NEVER_S if options.time_limit is None else seconds("--time-limit", options.time_limit)
    hang_after_s = seconds("--hang-after", options.hang_after)
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"{words[0]}: no such program")
    argv = (program, *words[1:])
    if why := why_nested(argv):
        raise UsageError(why)
    asked = Launch(bind=options.bind, launcher=options.launcher, hosts=host_list(options.hosts))
    library = library_of_command(argv, asked)
    asked = replace(asked, launcher=sibling_launcher(options.launcher, library))
    target = find_target(asked, os.environ, submits=False)
    launcher = select(asked, target.site.allocation, target.machine)
    library = library or sibling_library(Path(launcher.path))
    cores = target.machine.all_cores
    launch = replace(asked, oversubscribe=options.ranks * options.threads > cores)
    case = case_of(_name(words), options.ranks, threads=options.threads, launch=launch)
    job = prepared(case, words, options.reports, target)
    notes, outcomes = job.folder / NOTES, list[Outcome]()

    def start(_: CaseLaunch) -> Outcome:
        notes.mkdir(parents=True)
        if target.machine.hosts:
            check_hosts(launcher, target.machine, asked, notes)
        recorder = (*preload_words(library, os.environ), f"{FOLDER}={notes}")
        root = os.geteuid() == 0
        started = command(case, launcher, (*recorder, *argv), target.machine, environ=os.environ, root=root)
        job.journal.note(Launched(case=job.key, repeat=0, order=0))
        observer, judged = observer_of(notes, hang_after_s), partial(_verdict, launcher)
        ended = local.launch(started, job.folder, limit_s, observer=observer, judged=judged, shows=True)
        outcomes.append(ended)
        return ended

    try:
        warnings = _measure(job, start, lambda: read_of(notes, options.ranks))
    except (PscaleError, KeyboardInterrupt) as error:
        outcome = outcomes[0] if outcomes else None
        job.journal.check_place()
        with suppress(LaunchError):  # of the error it is told
            _write_failure(job, outcome, str(error) or "interrupted")
        if outcome is None or isinstance(error, KeyboardInterrupt):
            raise
        fail(". ".join(filter(None, (_ending(outcome), "" if _lacks_ranks(outcome) else str(error)))))
        return _exit_code(outcome, 0 if isinstance(error, ResultsError) else error.exit_code)
    try:
        code = _report(job, warnings, reported=options.report)
    except PscaleError as error:  # of the report: the program has done what it does
        fail(str(error))
        code = 0
    return _exit_code(outcomes[0], code if code == INTERRUPTED else 0)


def _measure(
    job: Watch, start: Callable[[CaseLaunch], Outcome], recorded: Callable[[], Recorded]
) -> list[str]:
    """Measure the one launch of a run; return what its document warns of."""
    warnings: list[str] = []

    def settle(_: CaseLaunch, outcome: Outcome) -> Ended:
        with showing_share("analysing the record", new_console(stderr=True)) as progressed:
            warnings.extend(write(job, recorded(), outcome, progressed))
        return Ended(case=job.key, repeat=0, status="ok", reason="", wall_s=outcome.wall_s)

    measure(job.journal, [CaseLaunch(case=job.case, repeat=0, index=0)], start, settle=settle)
    return warnings


def _read_notes(named: Path, reports: Path, *, reported: bool) -> int:
    """Report the record of a program: that in a folder, or of the one launch of a run that has one."""
    recorded = read(_record(named, reports))
    case = case_of(named.absolute().name, len(recorded.facts))
    target = find_target(Launch(), os.environ, submits=False)
    job = prepared(case, [str(named)], reports, target)
    outcome = replace(skipped(""), status="ok")
    return _report(job, _measure(job, lambda _: outcome, lambda: recorded), reported=reported)


def _record(named: Path, reports: Path) -> Path:
    """Return the folder of a record. Raises ResultsError where a run has none, or several."""
    if any(named.glob(FACTS)):
        return named.resolve()
    try:
        run = run_folder(named, reports).resolve()
    except ResultsError:
        if named.is_dir():  # what it lacks is said where it is read
            return named.resolve()
        raise
    records = sorted({file.parent for file in run.glob(f"cases/*/{NOTES}/{FACTS}")})
    records = [folder for folder in records if folder == folder.resolve()]  # not what links lead to
    if not records:
        raise ResultsError(f"{run}: has no record of calls; runs of a suite with `workload.watch: true` do")
    if len(records) > 1:
        raise ResultsError(
            f"{run}: has records of {len(records)} launches; read that of one: "
            f"pscale watch --read {records[0]}"
        )
    return records[0]


def _name(words: Sequence[str]) -> str:
    """Return what a program is called: of an interpreter, its script."""
    return next((Path(word).name for word in words[1:] if word.endswith(".py")), Path(words[0]).name)


def case_of(name: str, ranks: int, *, threads: int = 1, launch: Launch = Launch()) -> Case:
    """Return the case of a program: what it runs on, and nothing of a training."""
    label = f"{name}, {ranks} rank{'s' if ranks > 1 else ''}"
    return Case(
        suite="watch",
        label=label,
        series=name,
        scaling="throughput",
        ranks=ranks,
        threads=threads,
        plan=Plan(dp=ranks),
        launch=launch,
    )


def prepared(case: Case, words: Sequence[str], reports: Path, target: Target) -> Watch:
    """Make the folder of the run. Its case trains nothing, so most of what a suite's says is left out."""
    program = _identity(words)
    content = json.dumps([program, case.ranks, case.threads], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:10]
    planned = {name: value for name, value in to_dict(case).items() if name in (*OF_CASE, "launch")}
    document = {
        "suite": {"name": "watch", "title": case.series, "scaling": case.scaling, "given": " ".join(words)},
        "cases": [{**planned, "id": key, "model": {"kind": "program"}, "plan": {"dp": case.ranks}}],
        "repeats": 1,
        "auto": None,
        "expect": [],
        "seed": 1,
        "provenance": {**provenance(), "machine": target.machine.summary(), "program": program},
    }
    return Watch(journal=Journal.create(reports, "watch", document), case=case, key=key)


def _identity(words: Sequence[str]) -> dict[str, str]:
    """Return what was run: the command, and the content of every file that it names."""
    found = {"command": " ".join(words)}
    for word in words:
        path = Path(shutil.which(word) or word)
        if os.path.isfile(path):  # noqa: PTH113 - False for what can be no path, such as a program's text
            found[f"sha256 of {path.name}"] = atomic_files.sha256(path)
    return found


def _report(job: Watch, warnings: Sequence[str], *, reported: bool) -> int:
    """Report a run and what its document warns of."""
    code = report_alone(job.journal, reported=reported)
    for text in warnings:
        say(new_console(stderr=True), f"pscale: {text}")
    return code


def _exit_code(outcome: Outcome, otherwise: int) -> int:
    """Return the exit code of a program as a shell would; `otherwise` where it is 0."""
    if outcome.cut_short:
        return FAILED
    return (outcome.exit_code if outcome.exit_code >= 0 else 128 - outcome.exit_code) or otherwise


def _lacks_ranks(outcome: Outcome) -> bool:
    return outcome.cut_short and outcome.status == "failed"


def _verdict(launcher: Launcher, folder: LaunchFolder, number: int) -> Verdict:
    """Return how a program ended by its exit code: that of Hydra may be the signal that has ended a rank."""
    if number == 0:
        return Verdict(status="ok")
    if launcher.flavour in ("mpich", "intel") and number in _ENDING:
        reason = f"exit code {number}, or {signal_name(number)}, for which it stands too"
        return Verdict(status="failed", reason=reason)
    return Verdict(status="failed", reason=cause(folder, number))


def _write_failure(job: Watch, outcome: Outcome | None, reason: str) -> None:
    """Write the row of a launch of which nothing was recorded, so that its run is not pending for ever."""
    ended = outcome or skipped("")
    status = ended.status if ended.status not in ("ok", "skipped") else "failed"
    with writing_in(job.journal.folder):
        _write_row(job, ended, status=status, reason=f"{ended.reason}; {reason}".removeprefix("; "))
    job.journal.note(Ended(case=job.key, repeat=0, status=status, reason=reason, wall_s=ended.wall_s))


def write(
    job: Watch,
    recorded: Recorded,
    outcome: Outcome,
    progressed: Callable[[float], None] = lambda _: None,
) -> list[str]:
    """Write the tables of a run, and return what its document warns of."""
    found = record_tables(recorded, progressed=progressed)
    ending = _ending(outcome)
    warnings = [f"{ending}. Measurements end with its last calls."] if ending else []
    warnings += found.warnings
    document = {**job.journal.document, "warnings": warnings, "notes": list(found.notes)}
    with writing_in(job.journal.folder):
        atomic_files.write(job.journal.folder / "run.json", json.dumps(document, indent=1))
        for name, columns in found.tables.items():
            write_columns(job.journal.data, name, job.key, 0, columns)
        library = json.dumps({"mpi": {"library": found.library}})
        _write_row(job, outcome, **found.columns, status="ok", reason="", provenance=library)
    return warnings


def _write_row(job: Watch, outcome: Outcome, **columns: Any) -> None:
    """Write the row of `cases`: nothing of what only a training has."""
    known = {"launch_index": 0, "wall_s": outcome.wall_s, "started_unix_s": outcome.started_unix_s}
    write_part(job.journal.data, "cases", job.key, 0, [{**program_row(job.case), **known, **columns}])


def _ending(outcome: Outcome) -> str:
    """Say how a program ended that did not end well."""
    match outcome.status:
        case "hung":
            said = "The program made no progress and was ended"
        case "timeout":
            said = "The program was ended at its time limit"
        case _ if _lacks_ranks(outcome):
            said = f"The program was ended: {outcome.reason}"
        case _ if outcome.exit_code:
            said = f"The program failed: {outcome.reason}"
        case _:
            return ""
    return said
