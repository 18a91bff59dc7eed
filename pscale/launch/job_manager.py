"""Submit the jobs of a run, watch them, and submit again what is left, until every launch has ended.

All state is in the journal: killed at any instant, the next pscale continues there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pscale.errors import LaunchError
from pscale.launch import jobs
from pscale.launch.jobs import (
    Decision,
    PlannedJob,
    SubmittedJob,
    decide,
    ending_of,
    exit_code,
    open_jobs,
    plan_jobs,
)
from pscale.launch.machine import Machine
from pscale.launch.runner import CaseLaunch, Settle, ended, skipped
from pscale.launch.scheduler.base import STARTED, Ending, JobStatus, LimitError, Scheduler, UnsureError
from pscale.runs.journal import UNLOCKED, Journal
from pscale.runs.run_events import Key, Settled, Submitted, Submitting, Withdrawn

POLL_S = 30.0
_FULL_POLLS = 10  # between two tries to submit where the user has too many jobs, unless one of ours ends
_ABSENCES = 2  # polls without the files that belong to an answer before that is believed
_WITH_EXIT_CODE: tuple[Ending, ...] = ("completed", "failed")  # the script came to its end

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the manager of jobs waits."""

    look_s: float = 1.0  # between two looks at the files that jobs leave
    missing_s: float = 120.0  # by then a queue that is slow shows a job again; else it is cancelled
    dying_s: float = 60.0  # what was cancelled may have so long until it is killed


@dataclass(kw_only=True)
class JobManager:
    """The jobs of one run. `settle` writes the row of a launch whose job can no longer do so."""

    journal: Journal
    todo: Sequence[CaseLaunch]
    refused: Mapping[str, str] = field(default_factory=dict)  # by case, why it is not started
    scheduler: Scheduler
    machine: Machine  # what its nodes are like
    max_time_s: float | None = None  # of a job
    poll_s: float = POLL_S  # between two questions to the scheduler
    settle: Settle
    tell: Tell
    patience: Patience = Patience()
    clock: Callable[[], float] = time.monotonic
    statuses: Mapping[str, JobStatus] = field(default_factory=dict)
    _absences: dict[str, int] = field(default_factory=dict)
    _missing: dict[str, float] = field(default_factory=dict)  # since when it is in no answer
    _cancelled: dict[str, float] = field(default_factory=dict)  # when, for that
    _deferred: set[Key] = field(default_factory=set)
    _seen_alive: set[str] = field(default_factory=set)  # jobs that this pscale saw before they ended
    _asked: float = float("-inf")
    _full_since: float | None = None
    _trouble: str = ""  # of the last poll
    _refusal: str = ""  # of a job to be cancelled

    def launch(self, *, wait: bool, on_look: Callable[[JobManager], None] = lambda _: None) -> None:
        """Submit what is left to do; with `wait`, stay until all of it has ended, with retries.

        Raises LaunchError where the scheduler refuses, KeyboardInterrupt at any time: jobs continue.
        """
        with self.journal.locked() as alone:
            if not alone:
                self.tell(UNLOCKED)
            self._skip()
            while True:
                self.step()
                on_look(self)
                if not self._left() and not (wait and open_jobs(self.journal)):
                    return
                time.sleep(min(self.patience.look_s, self.poll_s))

    def step(self) -> None:
        """Look once at files, ask the scheduler if it is time; handle what ended, submit what is left."""
        for job in open_jobs(self.journal):
            if exit_code(self._folder(job)) == 0 and not self.journal.left(job.keys):
                self._handle_end(job, Decision(ending="completed", note=""))
        current = open_jobs(self.journal)
        if current and self.clock() - self._asked >= self.poll_s:
            self._poll(current)
        self._submit()

    def _skip(self) -> None:
        done = self.journal.finished()
        for job in self.todo:
            if (reason := self.refused.get(job.case.id)) and job.key not in done:
                outcome = skipped(reason)
                self.journal.note(self.settle(job, outcome))

    def _left(self) -> list[CaseLaunch]:
        """Return the launches that no job has done or is to do."""
        busy = {key for job in open_jobs(self.journal) for key in job.keys}
        left = set(self.journal.left(job.key for job in self.todo)) - busy - self._deferred
        return [job for job in self.todo if job.key in left]

    def _folder(self, job: SubmittedJob) -> Path:
        return self.journal.job_folder(job.branch)

    def _poll(self, current: Sequence[SubmittedJob]) -> None:
        try:
            self.statuses = self.scheduler.poll_many(current)
        except LaunchError as error:  # jobs run whether it answers or not
            if str(error) != self._trouble:
                self.tell(f"{error}; asking again")
            self._trouble, self._asked = str(error), self.clock()
            return
        self._trouble, self._asked = "", self.clock()
        for job in current:
            self._handle_status(job, self.statuses.get(job.name))

    def _handle_status(self, job: SubmittedJob, status: JobStatus | None) -> None:
        """Handle the end of a job, from its status and its files."""
        if status and status.phase != "ended":
            self._seen_alive.add(job.name)
        if status and not job.id:  # pscale was killed between submitting and noting the id
            self.journal.note(Submitted(job=job.number, id=status.id))
            job = replace(job, id=status.id)
        ending: Ending | None = ending_of(self._folder(job), status)
        note = status.note if status else ""
        if ending in _WITH_EXIT_CODE and self._lacks_exit_code(job):
            return
        if status is None and ending is None:
            if not self._is_gone(job):
                return
            if not self._id(job):
                self.journal.note(Withdrawn(job=job.number, note="it was never submitted"))
                return
            ending = "vanished"
        else:
            self._missing.pop(job.name, None)
        if ending is not None:
            if job.name in self._cancelled and ending in {"cancelled", "failed"}:  # by this pscale
                ending = "vanished"
            before = Counter(key for each in jobs.jobs_of(self.journal) for key in each.failed)
            found = decide(self.journal, job, ending, note, before)
            if job.name not in self._seen_alive:  # cancelled before: this run asks for it again
                found = replace(found, deferred={})
            self._handle_end(job, found)

    def _lacks_exit_code(self, job: SubmittedJob) -> bool:
        """Tell whether to ask once more before a job counts as ended without its exit code.

        Files of a job may be visible here later than its status: network file systems cache folders for some
        seconds.
        """
        if exit_code(self._folder(job)) is not None:
            return False
        self._absences[job.name] = self._absences.get(job.name, 0) + 1
        return self._absences[job.name] < _ABSENCES

    def _id(self, job: SubmittedJob) -> str:
        """Return the job's id; a job that runs knows its own."""
        started = self._folder(job) / STARTED
        return job.id or (started.read_text(encoding="utf-8").strip() if started.exists() else "")

    def _is_gone(self, job: SubmittedJob) -> bool:
        """Tell whether a job without an exit code that the scheduler does not know can be at work no more.

        A queue may be slow or wrong, and the job run on: it is waited for, then cancelled, then waited for.
        """
        now, missing_s = self.clock(), self.patience.missing_s
        if job.name not in self._missing:
            self._missing[job.name] = now
            self.tell(f"job {job.id or job.name} is missing in the queue; waiting {missing_s:.0f} s for it")
        if now - self._missing[job.name] < missing_s:
            return False
        number = self._id(job)
        if number and self._cancelled.get(job.name, float("-inf")) < self._missing[job.name]:
            try:
                self.scheduler.cancel({number: self._folder(job)})
            except LaunchError as error:
                if str(error) != self._refusal:
                    self.tell(f"job {number} is missing and cannot be cancelled ({error}); trying again")
                self._refusal = str(error)
                return False
            self._cancelled[job.name] = now
            self.tell(f"job {number} is missing for {now - self._missing[job.name]:.0f} s; cancelled")
        return now - self._cancelled.get(job.name, self._missing[job.name]) >= self.patience.dying_s

    def _handle_end(self, job: SubmittedJob, found: Decision) -> None:
        """Write the rows first: killed in between, the end is handled once more."""
        by_key = {each.key: each for each in self.todo}
        ends = {
            key: self.settle(by_key[key], outcome) if key in by_key else ended(key, outcome)
            for key, outcome in {**found.final, **found.deferred}.items()
        }
        for key in found.final:
            self.journal.note(ends[key])
        self._deferred |= set(found.deferred)
        self._full_since = None
        charged = list(found.failed)
        self.journal.note(Settled(job=job.number, ending=found.ending, note=found.note, charged=charged))
        if found.final or found.deferred or found.failed:
            why = f"{found.ending} ({found.note})" if found.note else found.ending
            again = f"job {job.id}: {why}; its launches are tried again"
            reasons = (outcome.reason for outcome in (*found.final.values(), *found.deferred.values()))
            self.tell(next(reasons, again))

    def _submit(self) -> None:
        """Submit jobs for what is left; where the user has too many, try again later."""
        now = self.clock()
        if self._full_since is not None and now - self._full_since < _FULL_POLLS * self.poll_s:
            return
        least = self.journal.document["repeats"]
        for each in plan_jobs(self._left(), self.machine, least, self.max_time_s):
            number = len(jobs.jobs_of(self.journal)) + 1
            try:
                self._submit_one(number, each)
            except LimitError as error:
                self.journal.note(Withdrawn(job=number, note=str(error)))
                if self._full_since is None:
                    self.tell(f"{error}; waiting until some jobs have ended")
                self._full_since = now
                return
            except UnsureError as error:
                self.tell(f"{error}; the next query shows whether the job was submitted")
            self._asked = now  # these jobs are new to it
        self._full_since = None

    def _submit_one(self, number: int, each: PlannedJob) -> None:
        name = f"pscale-{self.journal.name}-{number}"
        folder = self.journal.job_folder(jobs.branch(number))
        request = each.request(name, folder)
        script = folder / jobs.SCRIPT
        keys = [job.key for job in each.launches]
        jobs.write(script, self.scheduler.render(request))
        jobs.write(folder / jobs.WORK_ORDER, jobs.work_order(self.journal, number, keys, request))
        self.journal.note(Submitting(job=number, name=name, launches=keys))
        try:
            job_id = self.scheduler.submit(request, script)
        except (LimitError, UnsureError):
            raise
        except LaunchError as error:
            self.journal.note(Withdrawn(job=number, note=str(error)))
            raise
        self.journal.note(Submitted(job=number, id=job_id))
        self._seen_alive.add(name)
        nodes = f"{each.nodes} node{'s' if each.nodes > 1 else ''}"
        self.tell(f"job {job_id}: {len(keys)} launches on {nodes}, at most {each.time_limit_s / 60:.0f} min")
