"""`pscale run`: measure the cases of suites, with progress, and report each suite when it is done."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from pscale.cli import tell
from pscale.cli.console import new_console, say
from pscale.cli.costs import expected_s
from pscale.cli.launches import Rounds, needed, planned, settle, with_step_time
from pscale.cli.options import HISTORY, Run, RunOptions, SuiteOptions
from pscale.cli.prepare import PreparedSuite, prepare
from pscale.cli.progress import STATUS_STYLES, Known, LaunchProgress, end_line
from pscale.cli.workload_tables import watching
from pscale.config import Case
from pscale.errors import FAILED, INTERRUPTED, LaunchError, ResultsError, UsageError, writing
from pscale.launch import isolated_process, jobs, runner
from pscale.launch.command import Command, command
from pscale.launch.doctor import other_work, wait_until_idle
from pscale.launch.job_manager import JobManager
from pscale.launch.jobs import PlannedJob, open_jobs, plan_jobs
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine
from pscale.launch.outcome import signal_name
from pscale.launch.scheduler import Scheduler
from pscale.launch.selection import candidates
from pscale.launch.workload import build
from pscale.report.brief import FULL, Answer, print_answers
from pscale.runs.atomic_files import to_json
from pscale.runs.journal import Journal, are_alike, newest_unfinished
from pscale.runs.run_events import Closed, Ended, Event, Opened, record_of
from pscale.runs.step_counter import counting
from pscale.runs.store import compact

_STDOUT = Path("-")
REPORTER = "pscale.cli.report"  # in a process of its own
_SMALL = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # releases more of the memory that it has freed
_FINE = frozenset(STATUS_STYLES)


def run(options: Run) -> int:
    """Run suites one after another, all checked before the first process starts; return the exit code."""
    chosen = options.but(overrides=[*options.settings, *(options.overrides or [])])
    return run_suites([prepare(source, chosen) for source in options.suites], options)


def run_suites(suites: Sequence[PreparedSuite], options: RunOptions) -> int:
    """Run suites that are prepared; return the exit code."""
    if options.run and len(suites) > 1:
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
    tell_briefly(answers, stderr=options.events == _STDOUT)
    return code


def report_alone(journal: Journal, *, reported: bool) -> int:
    """Report a run that is no suite's, and print what it says in brief; return the exit code."""
    answers: list[Answer] = []
    code = published(journal, RunOptions(report=reported), new_console(stderr=True), answers)
    tell_briefly(answers)
    return code


def tell_briefly(answers: Sequence[Answer], *, stderr: bool = False) -> None:
    """Print what runs say in brief, if any was reported."""
    if answers:
        full = FULL if len(answers) == 1 else f"{FULL} RUN"
        print_answers(answers, new_console(highlight=False, stderr=stderr), full=full)


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
    journal.note(Closed())
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
        journal.finish()
        kept = f"{len(journal.finished())} of {needed(journal)} launches are kept in {journal.folder}"
        again = f"continue with the same command; report these with: pscale report '{journal.folder}'"
        say(console, f"\npscale: interrupted; {kept}\n{again}")
        return INTERRUPTED


def _start(suite: PreparedSuite, options: RunOptions, console: Console) -> tuple[Journal, Launcher]:
    """Return the run of a suite and its launcher: that of the MPI library of its programs, now built."""
    launcher = None if any(case.workload.build for case in suite.cases) else suite.launcher()
    journal = _journal(suite, options, console)
    return journal, launcher or suite.launcher()


def _manager(suite: PreparedSuite, options: RunOptions, console: Console) -> JobManager:
    """Return what submits the jobs of a suite, once all jobs can be."""
    return manager_of(suite, _journal(suite, options, console), console)


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
            manager.journal.finish()
            say(console, detached(manager.journal))
            if options.record:
                say(console, f"when it has ended: pscale history add '{manager.journal.folder}'")
    return code


def _journal(suite: PreparedSuite, options: RunOptions, console: Console) -> Journal:
    """Return the run to continue, or a new one, whose events go where they are wanted; build its programs."""
    journal = _opened(suite, options, console)
    if options.events is not None:
        _write_events(journal, options.events, console)
    build(journal, suite.cases, lambda text: say(console, text))
    return journal


def _write_events(journal: Journal, path: Path, console: Console) -> None:
    """Add a line of JSON for each event of a run to a file; one that fails later ends no run."""

    def write(event: Event) -> None:
        with nullcontext(sys.stdout) if path == _STDOUT else path.open("a", encoding="utf-8") as file:
            print(to_json({"run": journal.name, **record_of(event)}, indent=None), file=file, flush=True)

    def observe(event: Event) -> None:
        try:
            write(event)
        except OSError as error:
            say(console, f"pscale: --events: cannot write {path}: {error.strerror}; the run goes on")
            journal.ignore(observe)

    document = journal.document
    names = ("id", "label", "series", "ranks", "threads")
    opened = Opened(
        folder=str(journal.folder),
        suite=document["suite"]["name"],
        cases=[{name: case[name] for name in names} for case in document["cases"]],
        launches=len(document["cases"]) * document["repeats"],
        until_precise=document["auto"] is not None,
        ended=len(journal.finished()),
    )
    with writing(path, UsageError):
        write(opened)
    journal.observe(observe)


def _opened(suite: PreparedSuite, options: RunOptions, console: Console) -> Journal:
    """Return the run to continue, or a new one."""
    document = suite.document()
    if options.run:
        journal = Journal.open(options.run)
        if not are_alike(journal.document, document):
            raise UsageError(f"{options.run} is a run of another suite, or of this one with other settings")
        return journal
    name = suite.suite.name
    found = None if options.new else newest_unfinished(options.reports, name, document)
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
    journal.finish()
    code = _reported(journal, options, console, answers)
    if options.record and code != INTERRUPTED:
        from pscale.cli.history import added

        try:
            say(console, added(journal.folder, HISTORY))
        except ResultsError as error:
            say(console, f"pscale: {error}")
            return FAILED
    return code


def _reported(journal: Journal, options: RunOptions, console: Console, answers: list[Answer]) -> int:
    if not options.report:
        say(console, f"report it with: pscale report '{journal.folder}'")
        journal.note(Closed())
        return 0 if {end.status for end in journal.ends().values()} <= _FINE else FAILED
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
    auto = suite.suite.auto
    rounds, finished = Rounds(journal) if auto else None, journal.ends()
    most = auto.most if auto else suite.suite.repeat
    planned = runner.plan_launches(suite.cases, most, journal.document["seed"])
    todo = [launch for launch in planned if launch.key not in finished]
    with counting() if console.is_interactive else nullcontext() as counter:
        known = _known(suite, journal)
        progress = LaunchProgress(
            suite.suite.name, known, todo, console, counter, rounds, ended=len(finished)
        )

        journal.observe(progress)
        with progress.bar:
            runner.run(
                journal,
                todo,
                launcher,
                suite.target.machine,
                settle=partial(settle, journal, suite.fits, analysed=progress.analysed),
                refused=suite.refused,
                wanted=rounds.wanted if rounds else lambda _: True,
                attempts=runner.ATTEMPTS_IN_JOBS if suite.target.site.allocation else 1,
                tell=partial(say, console),
                counter=counter,
                watching=watching(launcher),
            )
    if rounds:
        rounds.close()


def _known(suite: PreparedSuite, journal: Journal) -> Known:
    """Return what the launches that have ended before tell."""
    flops = {case: fit.model_flops for case, fit in suite.fits.items()}
    known = Known(
        flops=flops, costs=expected_s(suite.fits.values(), suite.target.machine, journal.folder.parent)
    )
    for end in journal.ends().values():
        known.add(with_step_time(journal, end))
    return known


_SEED = 0  # of a dry run


def manager_of(suite: PreparedSuite, journal: Journal, console: Console) -> JobManager:
    """Return what submits and watches the jobs of a run."""
    target, scheduler = suite.target, suite.target.site.scheduler
    assert scheduler is not None, "only called where jobs are submitted"
    return JobManager(
        journal=journal,
        todo=planned(journal),
        refused=suite.refused,
        scheduler=scheduler,
        machine=target.machine,
        max_time_s=target.max_time_s,
        poll_s=suite.site.profile.poll_s,
        settle=partial(settle, journal, suite.fits),
        tell=lambda text: say(console, text),
    )


def wait(manager: JobManager, console: Console) -> bool:
    """Stay until all jobs have ended; tell whether all launches have: those that were cancelled are left."""
    journal, launches = manager.journal, {launch.key: launch for launch in manager.todo}
    ended, total = len(journal.finished()), needed(journal)

    def print_end(event: Event) -> None:
        nonlocal ended
        if isinstance(event, Ended) and (launch := launches.get(event.key)):
            ended += 1
            console.print(end_line(f"{ended}/{total}", launch, event), highlight=False)

    journal.observe(print_end)
    with console.status("") as line:

        def look(manager: JobManager) -> None:
            journal.look()
            statuses = (manager.statuses.get(job.name) for job in open_jobs(journal))
            phases = Counter(status.phase if status else "submitted" for status in statuses)
            jobs = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none open"
            line.update(f"{ended} of {total} launches; jobs: {jobs}; Ctrl-C leaves them running")

        manager.launch(wait=True, on_look=look)
    return journal.is_finished()


def detached(journal: Journal) -> str:
    """Say how to continue a run whose jobs run without pscale."""
    folder = journal.folder
    ended = f"{len(journal.finished())} of {needed(journal)} launches have ended"
    return (
        f"{ended}, jobs run without pscale; run: {folder}\n"
        f"see its state:       pscale status '{folder}'\n"
        "wait and report:     the same command again\n"
        f"end its jobs:        pscale cancel '{folder}'"
    )


def dry_run(suite: PreparedSuite, reports: Path) -> Iterator[str]:
    """Yield every script and command of a run as blocks of text; start and write nothing.

    With the name of a run in place of RUN each command starts a launch of it again.
    """
    target, folder = suite.target, reports.absolute() / suite.suite.name / "RUN"
    yield f"# {target.site.reason}\n# RUN stands for the name of the run"
    if target.site.scheduler is None:
        launcher = suite.launcher(asks=False)
        for case in suite.cases:
            yield _line(case, folder, launcher, target.machine)
        return
    todo = runner.plan_launches(suite.cases, suite.suite.repeat, _SEED)
    planned = plan_jobs(todo, target.machine, suite.suite.repeat, target.max_time_s)
    for number, job in enumerate(planned, start=1):
        yield from _job(job, number, folder, target.site.scheduler, target.machine)


def _job(job: PlannedJob, number: int, run: Path, scheduler: Scheduler, machine: Machine) -> Iterator[str]:
    folder = run / "jobs" / jobs.branch(number)
    request = job.request(f"pscale-RUN-{number}", folder)
    script = folder / jobs.SCRIPT
    submission = shlex.join(scheduler.submission(request, script))
    yield f"# job {number}: {len(job.launches)} launches\n{submission}"
    yield f"# {script}\n{scheduler.render(request)}"
    launchers = list(candidates(job.launches[0].case.launch.launcher, scheduler.name, asks=False))
    found = " or ".join(" ".join(launcher.opening) for launcher in launchers)
    yield f"# the job uses the first of these launchers that works: {found or 'those on its nodes'}"
    if not launchers:
        return
    for case in {launch.case.id: launch.case for launch in job.launches}.values():
        yield _line(case, run, launchers[0], machine)


def command_of(case: Case, run: Path, launcher: Launcher, machine: Machine) -> Command:
    """Return the command of a case's first launch with the variables that pscale sets for it."""
    folder = Journal(run, {}).case_folder((case.id, 0))
    words = runner.of_rank(case, folder, machine, watching(launcher))
    return command(case, launcher, words, machine, environ={}, root=os.geteuid() == 0)


def _line(case: Case, run: Path, launcher: Launcher, machine: Machine) -> str:
    """Return the command line of a case's first launch and the variables that pscale sets for it."""
    started = command_of(case, run, launcher, machine)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(started.env.items()))
    return f"# {case.label}\n{variables} {shlex.join(started.argv)}"
