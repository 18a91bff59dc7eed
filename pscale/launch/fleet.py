"""All jobs of a run: submitted, watched, settled and submitted again, until every launch has ended.

Nothing is held in memory that is not in the journal: killed at any instant, the next pscale goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pscale.errors import LaunchError
from pscale.launch import jobs
from pscale.launch.campaign import Job, skipped
from pscale.launch.jobs import SubmittedJob
from pscale.launch.journal import Journal, Key
from pscale.launch.lock import UNLOCKED
from pscale.launch.outcome import Outcome
from pscale.launch.packing import Pack, pack
from pscale.launch.scheduler.protocol import Ending, LimitError, Scheduler, Shape, Sighting, UnsureError
from pscale.launch.settle import Settlement, ending_of, exit_code, settle

POLL_S = 30.0
_LOOK_S = 1.0  # between two looks at the files that jobs leave
_FULL_POLLS = 10  # between two tries to submit where the user has too many jobs, unless one of ours ends
_ABSENCES = 2  # polls without a word, or without the files that belong to it, before that is believed
_BY_ITSELF: tuple[Ending, ...] = ("completed", "failed")  # then a job has left its exit code in a file

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Yard:
    """Where jobs go: a scheduler, what its nodes are like, and how often it may be asked."""

    scheduler: Scheduler
    shape: Shape
    poll_s: float = POLL_S


@dataclass(kw_only=True)
class Fleet:
    """The jobs of one run. `on_end` writes the row of a launch that its job cannot write any more."""

    journal: Journal
    todo: Sequence[Job]
    refused: Mapping[str, str] = field(default_factory=dict)  # by case, why it is not started
    yard: Yard
    on_end: Callable[[Job, Outcome], None]
    tell: Tell
    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    _absences: dict[str, int] = field(default_factory=dict)
    _aside: set[Key] = field(default_factory=set)
    _witnessed: set[str] = field(default_factory=set)  # jobs that were alive under the eyes of this pscale
    _asked: float = float("-inf")
    _full_since: float | None = None
    _trouble: str = ""

    def launch(self, *, wait: bool, on_look: Callable[[Fleet], None] = lambda _: None) -> None:
        """Submit what is left to do; with `wait`, stay until all of it has ended, trying again what may be.

        Raises LaunchError where the scheduler refuses, KeyboardInterrupt whenever the user likes: jobs go on.
        """
        with self.journal.locked() as alone:
            if not alone:
                self.tell(UNLOCKED)
            self._skip()
            while True:
                self.step()
                on_look(self)
                if self._is_over() or (not wait and not self._left()):
                    return
                time.sleep(min(_LOOK_S, self.yard.poll_s))

    def step(self) -> None:
        """Look once at files, and at the scheduler if it is time; settle what ended, submit what is left."""
        open_jobs = [job for job in jobs.jobs_of(self.journal) if not job.ending]
        for job in open_jobs:
            if exit_code(self._folder(job)) == 0 and not self.journal.left(job.keys):
                self._settled(job, Settlement(ending="completed", note=""))
        open_jobs = [job for job in jobs.jobs_of(self.journal) if not job.ending]
        if open_jobs and time.monotonic() - self._asked >= self.yard.poll_s:
            self._poll(open_jobs)
        self._submit()

    def _skip(self) -> None:
        done = self.journal.finished()
        for job in self.todo:
            if (reason := self.refused.get(job.case.id)) and job.key not in done:
                outcome = skipped(reason)
                self.on_end(job, outcome)
                self.journal.ended(job.key, outcome.status, outcome.reason, outcome.wall_s)

    def _is_over(self) -> bool:
        nothing_open = all(job.ending for job in jobs.jobs_of(self.journal))
        return nothing_open and not self._left()

    def _left(self) -> list[Job]:
        """Return the launches that no job has done or is to do."""
        known = jobs.jobs_of(self.journal)
        busy = {key for job in known if not job.ending for key in job.keys}
        left = set(self.journal.left(job.key for job in self.todo)) - busy - self._aside
        return [job for job in self.todo if job.key in left]

    def _folder(self, job: SubmittedJob) -> Path:
        return self.journal.job_folder(job.branch)

    def _poll(self, open_jobs: Sequence[SubmittedJob]) -> None:
        try:
            self.sightings = self.yard.scheduler.poll_many([job.ticket for job in open_jobs])
        except LaunchError as error:  # no reason to give jobs up: they are at work whether it answers or not
            if str(error) != self._trouble:
                self.tell(f"{error}; asking again")
            self._trouble, self._asked = str(error), time.monotonic()
            return
        self._trouble, self._asked = "", time.monotonic()
        for job in open_jobs:
            self._judge(job, self.sightings.get(job.name))

    def _judge(self, job: SubmittedJob, sighting: Sighting | None) -> None:
        """Settle a job that has ended, after what both the scheduler and its files say."""
        if sighting and sighting.phase != "ended":
            self._witnessed.add(job.name)
        if sighting and not job.id:  # pscale was killed between submitting and noting the id
            self.journal.note("submitted", job=job.number, id=sighting.id)
            job = replace(job, id=sighting.id)
        ending: Ending | None = ending_of(self._folder(job), sighting)
        note = sighting.note if sighting else ""
        if self._is_too_early(job, sighting, ending):
            return
        if sighting is None and ending is None:
            if not job.id and not (self._folder(job) / "started").exists():
                self.journal.note("withdrawn", job=job.number, note="it was never submitted")
                return
            ending = "vanished"
        if ending is not None:
            before = jobs.attempts(jobs.jobs_of(self.journal))
            found = settle(self.journal, job, ending, note, before)
            if job.name not in self._witnessed:  # who has cancelled it before now asks for it again
                found = replace(found, aside={})
            self._settled(job, found)

    def _is_too_early(self, job: SubmittedJob, sighting: Sighting | None, ending: Ending | None) -> bool:
        """Tell whether to ask once more before a job counts as lost, or as ended without its exit code.

        What a job has written may be seen here later than what the scheduler says of it: nodes share file
        systems that keep what they know of a folder for some seconds.
        """
        is_lost = sighting is None and ending is None
        if not is_lost and not (ending in _BY_ITSELF and exit_code(self._folder(job)) is None):
            self._absences.pop(job.name, None)
            return False
        self._absences[job.name] = self._absences.get(job.name, 0) + 1
        return self._absences[job.name] < _ABSENCES

    def _settled(self, job: SubmittedJob, found: Settlement) -> None:
        """Write the rows first: killed in between, the job is settled once more."""
        by_key = {each.key: each for each in self.todo}
        for key, outcome in {**found.rows, **found.aside}.items():
            if key in by_key:
                self.on_end(by_key[key], outcome)
        for key, outcome in found.rows.items():
            self.journal.ended(key, outcome.status, outcome.reason, outcome.wall_s)
        self._aside |= set(found.aside)
        self._full_since = None
        self.journal.note(
            "settled", job=job.number, ending=found.ending, note=found.note, charged=list(found.charged)
        )
        if found.rows or found.aside or found.charged:
            outcomes = [*found.rows.values(), *found.aside.values()]
            why = (
                outcomes[0].reason
                if outcomes
                else f"job {job.id}: {found.ending}; its launches are tried again"
            )
            self.tell(why)

    def _submit(self) -> None:
        """Submit a job for each pack of what is left; where the user has too many, try again later."""
        now = time.monotonic()
        if self._full_since is not None and now - self._full_since < _FULL_POLLS * self.yard.poll_s:
            return
        for each in pack(self._left(), self.yard.shape, self.journal.document["repeats"]):
            number = len(jobs.jobs_of(self.journal)) + 1
            try:
                self._submit_one(number, each)
            except LimitError as error:
                self.journal.note("withdrawn", job=number, note=str(error))
                if self._full_since is None:
                    self.tell(f"{error}; waiting until some jobs have ended")
                self._full_since = now
                return
            except UnsureError as error:
                self.tell(f"{error}; whether the job was submitted will show")
            self._asked = now  # it has only just heard of these jobs
        self._full_since = None

    def _submit_one(self, number: int, each: Pack) -> None:
        name = f"pscale-{self.journal.name}-{number}"
        folder = self.journal.job_folder(jobs.branch(number))
        request = each.request(name, folder)
        script = folder / jobs.SCRIPT
        keys = [job.key for job in each.launches]
        jobs.write(script, self.yard.scheduler.render(request))
        jobs.write(folder / jobs.ORDER, jobs.order(self.journal, number, keys, request))
        self.journal.note("submitting", job=number, name=name, launches=keys)
        try:
            job_id = self.yard.scheduler.submit(request, script)
        except (LimitError, UnsureError):
            raise
        except LaunchError as error:
            self.journal.note("withdrawn", job=number, note=str(error))
            raise
        self.journal.note("submitted", job=number, id=job_id)
        self._witnessed.add(name)
        nodes = f"{each.nodes} node{'s' if each.nodes > 1 else ''}"
        self.tell(f"job {job_id}: {len(keys)} launches on {nodes}, at most {each.time_limit_s / 60:.0f} min")
