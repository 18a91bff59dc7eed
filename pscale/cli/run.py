"""`pscale run`: measure the cases of suites, with progress, and report each suite when it is done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pscale.cli import tell
from pscale.cli.console import new_console, say
from pscale.cli.durations import expected_s
from pscale.cli.launches import outcome_of, write_row
from pscale.cli.prepare import PreparedSuite, SuiteOptions, prepare
from pscale.cli.progress import STATUS_STYLES, Known, LaunchProgress
from pscale.cli.rounds import Rounds
from pscale.cli.submit import detached, dry_run, manager_of, wait
from pscale.cli.workload_tables import watching
from pscale.errors import FAILED, INTERRUPTED, LaunchError, ResultsError, UsageError
from pscale.launch import isolated_process, runner
from pscale.launch.build import build
from pscale.launch.job_manager import JobManager
from pscale.launch.journal import Journal, fingerprint, newest_unfinished
from pscale.launch.launcher import Launcher
from pscale.launch.other_work import other_work, wait_until_idle
from pscale.launch.outcome import Outcome, signal_name
from pscale.launch.runner import CaseLaunch
from pscale.report.answer import FULL, Answer, print_answers
from pscale.runs.step_counter import counting
from pscale.runs.store import compact, read_part
from pscale.suite.document import Document

REPORTER = "pscale.cli.publish_process"  # in a process of its own
_SMALL = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # releases more of the memory that it has freed
_FINE = frozenset(STATUS_STYLES)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where runs are kept, which one to continue, and how far to go."""

    reports: Path
    new: bool = False
    folder: Path | None = None
    wait: bool = True
    report: bool = True
    dry_run: bool = False
    wait_idle: bool = False
    record: Path | None = None  # the folder of histories that the run is added to


def run(sources: Sequence[Path | Document], suite_options: SuiteOptions, options: RunOptions) -> int:
    """Run suites one after another, all checked before the first process starts; return the exit code."""
    suites = [prepare(source, suite_options) for source in sources]
    if options.folder and len(suites) > 1:
        raise UsageError("--run names the folder of one run; give one suite with it")
    if options.dry_run:
        for text in (text for suite in suites for text in dry_run(suite, options.reports)):
            tell(f"{text}\n")
        return 0
    for suite in suites:
        suite.check_blas()
    console = new_console(stderr=True)
    submitted = [suite for suite in suites if suite.target.site.scheduler]
    answers: list[Answer] = []
    code = _run_submitted(submitted, options, console, answers) if submitted else 0
    for suite in suites:
        if suite not in submitted:
            code = max(code, _run_here(suite, options, console, answers))
            if code == INTERRUPTED:
                break
    tell_briefly(answers)
    return code


def tell_briefly(answers: Sequence[Answer]) -> None:
    """Print what runs say in brief, if any was reported."""
    if answers:
        full = FULL if len(answers) == 1 else f"{FULL} RUN"
        print_answers(answers, new_console(highlight=False), full=full)


def measure(path: Path, suite_options: SuiteOptions, options: RunOptions, console: Console) -> Path:
    """Measure a suite here or by jobs and report nothing; return the run's folder."""
    suite = prepare(path, suite_options)
    suite.check_blas()
    if suite.target.site.scheduler:
        manager = _manager(suite, options, console)
        journal = manager.journal
        manager.launch(wait=False)
        if not wait(manager, console):
            raise LaunchError(f"launches of {journal.folder} were cancelled; the same call runs them")
    else:
        journal, launcher = _start(suite, options, console)
        _launch(journal, suite, launcher, console)
    journal.note("closed")
    with journal.locked():
        compact(journal.data)
    return journal.folder


def _run_here(suite: PreparedSuite, options: RunOptions, console: Console, answers: list[Answer]) -> int:
    """Measure a suite and report it into `answers`; return the exit code."""
    journal, launcher = _start(suite, options, console)
    try:
        _look(options, console)
        _launch(journal, suite, launcher, console)
        return published(journal, options, console, answers)
    except KeyboardInterrupt:
        done, least = len(journal.finished()), len(suite.cases) * suite.repeats
        total = f"at least {least}" if suite.auto else least
        say(
            console,
            f"\npscale: interrupted; {done} of {total} launches are kept in {journal.folder}\n"
            f"continue with the same command; report these with: pscale report '{journal.folder}'",
        )
        return INTERRUPTED


def _start(suite: PreparedSuite, options: RunOptions, console: Console) -> tuple[Journal, Launcher]:
    """Return the run of a suite and its launcher: that of the MPI library of its programs, now built."""
    if not any(case.workload.build for case in suite.cases):
        launcher = suite.launcher()
        return _journal(suite, options, console), launcher
    journal = _journal(suite, options, console)
    build(journal, suite.cases, lambda text: say(console, text))
    return journal, suite.launcher()


def _manager(suite: PreparedSuite, options: RunOptions, console: Console) -> JobManager:
    """Return what submits the jobs of a suite, whose programs are built here, once all jobs can be."""
    journal = _journal(suite, options, console)
    build(journal, suite.cases, lambda text: say(console, text))
    return manager_of(suite, journal, console)


def _look(options: RunOptions, console: Console) -> None:
    """Say what other work there is on this machine before anything is measured, or wait for it to end."""
    if options.wait_idle:
        wait_until_idle(lambda text: say(console, text))
    elif (found := other_work()).disturbs:
        say(console, f"{found.sentence}, which will disturb the measurement; --wait-idle waits for them")


def _run_submitted(
    suites: Sequence[PreparedSuite], options: RunOptions, console: Console, answers: list[Answer]
) -> int:
    """Submit the jobs of all suites, then wait for those of each and report it into `answers`."""
    managers = [_manager(suite, options, console) for suite in suites]
    code = 0
    try:
        for manager in managers:
            manager.launch(wait=False)
        for manager in managers if options.wait else ():
            complete = wait(manager, console)
            if not complete:
                say(console, "some launches were cancelled: the same command runs them")
            code = max(code, published(manager.journal, options, console, answers), 0 if complete else FAILED)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED or not options.wait:
        for manager in managers:
            say(console, detached(manager.journal))
            if options.record is not None:
                say(console, f"when it has ended: pscale history add '{manager.journal.folder}'")
    return code


def _journal(suite: PreparedSuite, options: RunOptions, console: Console) -> Journal:
    """Return the run to continue, or a new one."""
    document = suite.document()
    wanted = fingerprint(document)
    if options.folder:
        journal = Journal.open(options.folder)
        if fingerprint(journal.document) != wanted:
            raise UsageError(
                f"{options.folder} is a run of another suite, or of this one with other settings"
            )
        return journal
    name = suite.suite.name
    found = None if options.new else newest_unfinished(options.reports, name, wanted)
    if found is None:
        return Journal.create(options.reports, name, document)
    done = len(found.finished())
    ended = f"{done} {'launch has' if done == 1 else 'launches have'} ended"
    say(console, f"continuing {found.folder}, where {ended} (--new starts a new run)")
    return found


def published(journal: Journal, options: RunOptions, console: Console, answers: list[Answer]) -> int:
    """Report a run and add it to a history, as wanted; return the exit code: whether every case ran well.

    What it says in brief goes into `answers`.
    """
    code = _reported(journal, options, console, answers)
    if options.record is not None and code != INTERRUPTED:
        from pscale.cli.history import added

        try:
            say(console, added(journal.folder, options.record))
        except ResultsError as error:
            say(console, f"pscale: {error}")
            return FAILED
    return code


def _reported(journal: Journal, options: RunOptions, console: Console, answers: list[Answer]) -> int:
    if not options.report:
        say(console, f"report it with: pscale report '{journal.folder}'")
        journal.note("closed")
        return 0 if journal.statuses() <= _FINE else FAILED
    answer = isolated_process.run(REPORTER, journal.folder, _SMALL)
    if answer.out:
        answers.append(Answer.read(json.loads(answer.out)))
    if (code := answer.code) >= 0:
        return code
    say(
        console,
        f"pscale: the report was killed by {signal_name(-code)}; all launches are kept\n"
        f"report them with: pscale report '{journal.folder}'",
    )
    return FAILED


def _launch(journal: Journal, suite: PreparedSuite, launcher: Launcher, console: Console) -> None:
    """Run what is left of the suite, with a bar that knows how long the cases should take."""
    here = suite.target.machine
    most = suite.auto.most if suite.auto else suite.repeats
    rounds = Rounds(journal) if suite.auto else None
    finished = journal.finished()
    planned = runner.plan_launches(suite.cases, most, journal.document["seed"])
    todo = [launch for launch in planned if launch.key not in finished]
    with counting() if console.is_interactive else nullcontext() as counter:
        known = _known(suite, journal, [launch for launch in planned if launch.key in finished])
        progress = LaunchProgress(
            suite.suite.name, known, todo, console, counter, rounds, ended=len(finished)
        )

        def on_end(launch: CaseLaunch, outcome: Outcome) -> Outcome:
            columns = suite.fits[launch.case.id].columns
            row = write_row(journal, launch, outcome, columns, progress.analysed)
            progress.ended(launch, row, rounds.known(launch.case.id) if rounds else "")
            return outcome_of(outcome, row)

        with progress.bar:
            runner.run(
                journal,
                todo,
                launcher,
                here,
                on_start=progress.started,
                on_end=on_end,
                refused=suite.refused(),
                wanted=rounds.wanted if rounds else runner.always,
                attempts=runner.ATTEMPTS_IN_JOBS if suite.target.site.allocation else 1,
                tell=lambda text: say(console, text),
                counter=counter,
                watching=watching(launcher),
            )
    if rounds:
        rounds.close()


def _known(suite: PreparedSuite, journal: Journal, ended: Sequence[CaseLaunch]) -> Known:
    """Return what the launches that have ended before tell."""
    flops = {case: fit.model_flops for case, fit in suite.fits.items()}
    known = Known(
        flops=flops, costs=expected_s(suite.fits.values(), suite.target.machine, journal.folder.parent)
    )
    for launch in ended:
        with suppress(ResultsError):
            known.add(launch, read_part(journal.data, "cases", *launch.key).to_pylist()[0])
    return known
