"""The launches of a run, in random order, one after another: none is lost and none is repeated."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Literal

from pscale.config import Case, to_dict, workload_command
from pscale.errors import LaunchError
from pscale.launch import local, selection, workload
from pscale.launch.command import Command, command
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine
from pscale.launch.outcome import STDERR, Outcome, Verdict
from pscale.launch.workload import Watching
from pscale.runs.journal import UNLOCKED, Journal, writing_in
from pscale.runs.launch_folder import LaunchFolder
from pscale.runs.run_events import Checked, Ended, Key, Launched
from pscale.runs.step_counter import StepCounter

ATTEMPTS_IN_JOBS = 2  # of a launch whose ranks never met, where networks and other nodes take part
_AT_ONCE_S = 1.0  # between signals that are one

Task = Literal["measure", "verify"]
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class CaseLaunch:
    """One launch of a case. `index` is its place in the run's random order, from 0."""

    case: Case
    repeat: int
    index: int

    @property
    def key(self) -> Key:
        """What identifies this launch in the journal."""
        return self.case.id, self.repeat


Settle = Callable[[CaseLaunch, Outcome], Ended]  # writes the row of a launch; what the journal says of it


def ended(key: Key, outcome: Outcome) -> Ended:
    """Return what the journal says of a launch that ended so, without a step time."""
    case, repeat = key
    return Ended(
        case=case, repeat=repeat, status=outcome.status, reason=outcome.reason, wall_s=outcome.wall_s
    )


def plan_launches(cases: Sequence[Case], repeats: int, seed: int) -> list[CaseLaunch]:
    """Return every case `repeats` times, each round shuffled again, so that drift affects all cases alike."""
    source = random.Random(seed)
    rounds = [(case, repeat) for repeat in range(repeats) for case in source.sample(cases, len(cases))]
    return [CaseLaunch(case=case, repeat=repeat, index=index) for index, (case, repeat) in enumerate(rounds)]


def measure(
    journal: Journal,
    todo: Sequence[CaseLaunch],
    start: Callable[[CaseLaunch], Outcome],
    *,
    settle: Settle,
    refused: Mapping[str, str] = NOTHING,
    wanted: Callable[[CaseLaunch], bool] = lambda _: True,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Start the launches of `todo` that have not ended yet, and are `wanted` when their turn comes.

    Cases in `refused` are skipped, for the reason given there. Only once `settle` has written the row the end
    is noted, so that a launch killed between the two is repeated rather than lost. Raises LaunchError when
    the disk is full, and KeyboardInterrupt, also for SIGTERM and a lost terminal, once the current launch is
    ended; those that have ended are kept.
    """
    with journal.locked() as alone, signals_as_interrupts():
        if not alone:
            tell(UNLOCKED)
        for key in journal.interrupted():  # pscale was killed and its processes live on
            local.end(local.tag(journal.case_folder(key)))
        finished = journal.finished()
        for launch in todo:
            if launch.key not in finished and wanted(launch):
                reason = refused.get(launch.case.id)
                outcome = skipped(reason) if reason else start(launch)
                with writing_in(journal.folder):  # it may be gone
                    journal.check_place()
                journal.note(settle(launch, outcome))


def run(
    journal: Journal,
    todo: Sequence[CaseLaunch],
    launcher: Launcher,
    machine: Machine,
    *,
    settle: Settle,
    task: Task = "measure",
    refused: Mapping[str, str] = NOTHING,
    wanted: Callable[[CaseLaunch], bool] = lambda _: True,
    attempts: int = 1,
    tell: Callable[[str], None] = lambda _: None,
    counter: StepCounter | None = None,
    watching: Watching | None = None,
) -> None:
    """Measure launches of the trainer and of workloads, started by `launcher`; for the rest see `measure`.

    Workloads that ask for it are watched by `watching`; the first rank counts its steps in `counter`, each
    launch from 0. A launch whose ranks never met is tried again, `attempts` times in all: networks and nodes
    fail for a moment. One that fails later is not: it would fail again, or hide that it can. Raises PlanError
    or LaunchError before anything starts if some launch cannot be started.
    """
    starters = {}
    for case in {launch.case.id: launch.case for launch in todo}.values():
        base = command(case, launcher, (), machine, environ=os.environ, root=os.geteuid() == 0)
        if case.workload.command and case.workload.watch is True:
            workload.started(case, Path(), machine, watching)  # can it be?
        starters[case.id] = _Starter(
            base=base, machine=machine, task=task, attempts=attempts, counter=counter, watching=watching
        )
    builds = workload.builds_of(journal)
    check = _RankCheck(journal, [launch.case for launch in todo], starters, tell)

    @cache
    def check_hosts() -> None:
        if machine.hosts:
            selection.check_hosts(launcher, machine, todo[0].case.launch, journal.folder)

    def start(launch: CaseLaunch) -> Outcome:
        check_hosts()
        if reason := workload.why_not_built(launch.case, builds.get(launch.case.id)) or check(launch.case):
            return replace(skipped(reason), status="failed")
        return starters[launch.case.id](journal, launch)

    measure(journal, todo, start, settle=settle, refused=refused, wanted=wanted, tell=tell)


def skipped(reason: str) -> Outcome:
    """Return the end of a launch that is not started."""
    return Outcome(status="skipped", reason=reason, wall_s=0.0, exit_code=0, started_unix_s=time.time())


class _RankCheck:
    """Whether the ranks of each program are one world: one launch of each under the recorder tells."""

    def __init__(
        self,
        journal: Journal,
        cases: Sequence[Case],
        starters: Mapping[str, _Starter],
        tell: Callable[[str], None],
    ):
        self._journal, self._starters, self._tell = journal, starters, tell
        self._cases = [case for case in cases if workload.is_checked(case)]
        events = journal.events() if self._cases else []
        self._reasons = {each.program: each.reason for each in events if isinstance(each, Checked)}

    def __call__(self, case: Case) -> str:
        """Say why the ranks of a case are no world; empty where they are one, or nothing is known."""
        starter = self._starters[case.id]
        if not workload.is_checked(case) or not starter.watching or workload.changed(case):
            return ""
        program = workload.program_of(case)
        if program not in self._reasons:
            same = [each for each in self._cases if workload.program_of(each) == program]
            least = min(same, key=lambda each: each.ranks)
            self._tell(f"one launch on {least.ranks} ranks shows first that they are one world (check_ranks)")
            reason = self._starters[least.id].why_apart(self._journal, least)
            self._reasons[program] = reason
            self._journal.note(Checked(program=program, reason=reason))
        return self._reasons[program]


@dataclass(frozen=True, kw_only=True)
class _Starter:
    """Starts the launches of a case; `base` is their command without the program of the ranks."""

    base: Command
    machine: Machine
    task: Task
    attempts: int
    counter: StepCounter | None
    watching: Watching | None

    def __call__(self, journal: Journal, launch: CaseLaunch) -> Outcome:
        """Run a launch to its end."""
        folder = journal.case_folder(launch.key)
        if launch.case.workload.command:
            return self._run_program(folder, journal, launch)
        started = self._with(worker(folder))
        for _ in range(self.attempts):
            if self.counter:
                self.counter.reset()
            self._prepare(folder, journal, launch)
            outcome = local.launch(started, folder, launch.case.launch.time_limit_s)
            if not outcome.failed_at_startup:
                break
        return outcome

    def why_apart(self, journal: Journal, case: Case) -> str:
        """Run a workload under the recorder until its ranks have met; say why they have not, if known."""
        folder = journal.case_folder((f"check-{case.id}", 0))
        if folder.exists():
            local.end(local.tag(folder))  # pscale was killed meanwhile
        try:
            words = workload.started(case, folder, self.machine, self.watching)
        except LaunchError:  # there is no recorder
            return ""
        assert self.watching
        with writing_in(folder):
            _remove(folder)
            folder.mkdir(parents=True)
            work = workload.prepare(case, folder)
            (notes := folder / self.watching.notes).mkdir()
        why = partial(self.watching.why_apart, notes, case.ranks)
        outcome = local.launch(
            self._with(words),
            folder,
            case.launch.time_limit_s,
            observer=replace(self.watching.observer(case, folder), is_stuck=lambda: why() == ""),
            judged=lambda *_: Verdict(status="ok"),
            inside=work.folder.path,
            stdin=workload_command.standard_input(case),
        )
        ended = outcome.reason.removesuffix(f" [{folder / STDERR}]") if outcome.status == "failed" else ""
        reason = why() or ended
        with writing_in(folder):
            _remove(folder)
        return reason

    def _with(self, words: Sequence[str]) -> Command:
        return replace(self.base, argv=(*self.base.argv, *words))

    def _run_program(self, folder: Path, journal: Journal, launch: CaseLaunch) -> Outcome:
        """Run a workload in a folder of its own; one of which a file has changed is not started."""
        case = launch.case
        self._prepare(folder, journal, launch)
        if reason := workload.changed(case):
            return replace(skipped(reason), status="failed")
        with writing_in(folder):
            work = workload.prepare(case, folder)
        observer, watching = local.Observer(), self.watching if case.is_watched(launch.repeat) else None
        if watching:
            (folder / watching.notes).mkdir()
            observer = watching.observer(case, folder)
        try:
            words = workload.started(case, folder, self.machine, watching)
        except LaunchError:
            if case.workload.watch is True:
                raise
            words = workload.started(case, folder, self.machine)  # its row says that nothing was recorded
        return local.launch(
            self._with(words),
            folder,
            case.launch.time_limit_s,
            observer=observer,
            judged=(judge := workload.Judge(case, work)),
            read_on=judge.read_on,
            inside=work.folder.path,
            stdin=workload_command.standard_input(case),
        )

    def _prepare(self, folder: Path, journal: Journal, launch: CaseLaunch) -> None:
        """Write what the worker reads, and note that the launch is about to start."""
        document = {
            "format": 1,
            "task": self.task,
            "case": to_dict(launch.case),
            "repeat": launch.repeat,
            "data": str(journal.data),
            "launched_unix_s": time.time(),
            "counter": str(self.counter.path) if self.counter else "",
        }
        with writing_in(folder):
            _remove(folder)
            folder.mkdir(parents=True)
            journal.note(Launched(case=launch.case.id, repeat=launch.repeat, order=launch.index))
            (folder / "case.json").write_text(json.dumps(document), encoding="utf-8")


def _remove(folder: Path) -> None:
    """Remove what a launch that was interrupted has left, or somebody's link."""
    if folder.is_dir() and not folder.is_symlink():
        LaunchFolder(folder).clear()
        folder.rmdir()
    else:
        folder.unlink(missing_ok=True)


def of_rank(case: Case, folder: Path, machine: Machine, watching: Watching | None = None) -> tuple[str, ...]:
    """Return the command of a rank of the launch in `folder`: the program of a workload, else the worker."""
    if not case.workload.command:
        return worker(folder)
    return workload.started(case, folder, machine, watching if case.workload.watch is True else None)


def worker(folder: Path) -> tuple[str, ...]:
    """Return the command of a rank of the launch in `folder`."""
    # -P: a numpy.py in the current folder must not be imported
    return sys.executable, "-P", "-m", "pscale.worker", str(folder)


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """End launches also when pscale is terminated or its terminal is lost; leave `nohup` alone.

    Schedulers send a process the same signal several times at once, which is one interrupt: another would cut
    short the end of the launch that the first one has begun.
    """
    last_s = -math.inf

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last_s
        before_s, last_s = last_s, time.monotonic()
        if last_s - before_s > _AT_ONCE_S:
            raise KeyboardInterrupt

    numbers = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
