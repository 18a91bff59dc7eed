"""All launches of a run: in an order that fools no one, one after another, none lost and none done twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn

from pscale.config import Case, to_dict
from pscale.errors import LaunchError
from pscale.launch import local, processes
from pscale.launch.command import Command, command
from pscale.launch.journal import Journal, Key
from pscale.launch.lock import UNLOCKED
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher
from pscale.launch.outcome import Outcome

ATTEMPTS_IN_JOBS = 2  # of a launch whose ranks never met, where networks and other nodes take part

Task = Literal["measure", "verify"]
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One launch of a case. `order` is its place in the run, from 0."""

    case: Case
    repeat: int
    order: int

    @property
    def key(self) -> Key:
        """What the journal knows this launch by."""
        return self.case.id, self.repeat


def launches(cases: Sequence[Case], repeats: int, seed: int) -> list[Job]:
    """Return every case `repeats` times, each round shuffled anew, so that drift meets all cases alike."""
    source = random.Random(seed)
    rounds = [(case, repeat) for repeat in range(repeats) for case in source.sample(cases, len(cases))]
    return [Job(case=case, repeat=repeat, order=order) for order, (case, repeat) in enumerate(rounds)]


def always(_job: Job) -> bool:
    """Want every launch."""
    return True


def ignore(_text: str) -> None:
    """Tell nobody."""


def run(
    journal: Journal,
    todo: Sequence[Job],
    launcher: Launcher,
    machine: Machine,
    *,
    on_start: Callable[[Job], None],
    on_end: Callable[[Job, Outcome], Outcome | None],
    task: Task = "measure",
    refused: Mapping[str, str] = NOTHING,
    wanted: Callable[[Job], bool] = always,
    attempts: int = 1,
    tell: Callable[[str], None] = ignore,
) -> None:
    """Launch what of `todo` has not ended yet, and is `wanted` when its turn comes.

    A launch in which no rank has come to life is tried again, `attempts` times in all: networks and nodes
    have their moments. One that has gone wrong later is not: it would go wrong again, or hide that it can.

    Jobs of cases in `refused` are skipped, for the reason given there. `on_end` writes the row, and returns
    the outcome where the row tells another one; only then is the end noted, so that what is killed between
    the two is done again rather than lost. A case that fails is a row like any other. Raises PlanError or
    LaunchError before anything starts if some job cannot be started, LaunchError when the disk is full, and
    KeyboardInterrupt, also for SIGTERM and a lost terminal, once the current job is ended; all finished ones
    are kept.
    """
    for one in {job.case.id: job for job in todo}.values():
        _command(journal, one, launcher, machine)  # raises where it cannot be started
    with journal.locked() as alone, _signals_as_interrupts():
        if not alone:
            tell(UNLOCKED)
        for key in journal.interrupted():  # pscale was killed and its job lives on
            processes.end(local.tag(journal.case_folder(key)))
        finished = journal.finished()
        for job in todo:
            if job.key not in finished and wanted(job):
                on_start(job)
                if reason := refused.get(job.case.id):
                    outcome = skipped(reason)
                else:
                    order = _command(journal, job, launcher, machine)
                    outcome = _tried(journal, job, order, task, attempts)
                kept = on_end(job, outcome) or outcome
                journal.ended(job.key, kept.status, kept.reason, kept.wall_s)


def _tried(journal: Journal, job: Job, order: Command, task: Task, attempts: int) -> Outcome:
    for _ in range(attempts):
        outcome = _launch(journal, job, order, task)
        if not outcome.unborn:
            break
    return outcome


def skipped(reason: str) -> Outcome:
    """Return the end of a launch that is not started."""
    return Outcome(status="skipped", reason=reason, wall_s=0.0, exit_code=0, started_unix_s=time.time())


def _command(journal: Journal, job: Job, launcher: Launcher, machine: Machine) -> Command:
    argv = worker(journal.case_folder(job.key))
    return command(job.case, launcher, argv, machine, environ=os.environ, root=os.geteuid() == 0)


def worker(folder: Path) -> tuple[str, ...]:
    """Return the command of a rank of the launch in `folder`."""
    # -P: a numpy.py in the current folder is not the one that is meant
    return sys.executable, "-P", "-m", "pscale.worker", str(folder)


def _launch(journal: Journal, job: Job, order: Command, task: Task) -> Outcome:
    folder = journal.case_folder(job.key)
    try:
        if folder.exists():  # of a launch that was interrupted
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        journal.launched(job.key, job.order)
        (folder / "case.json").write_text(json.dumps(_document(journal, job, task)), encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"cannot write in {folder}: {error.strerror or error}") from error
    return local.launch(order, folder, job.case.launch.time_limit_s)


def _document(journal: Journal, job: Job, task: Task) -> Mapping[str, object]:
    return {
        "format": 1,
        "task": task,
        "case": to_dict(job.case),
        "repeat": job.repeat,
        "data": str(journal.data),
        "launched_unix_s": time.time(),
    }


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """End jobs also when pscale is terminated or its terminal is lost; leave `nohup` alone."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
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
