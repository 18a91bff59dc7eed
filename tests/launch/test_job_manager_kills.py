"""A run of jobs that is killed before or after each thing that it does, one after another."""

import json
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from noop_runs import make_journal, note_end, note_start, settling

from pscale.config import Case, Plan
from pscale.launch import jobs
from pscale.launch.job_manager import JobManager, Patience
from pscale.launch.machine import Machine
from pscale.launch.runner import plan_launches
from pscale.launch.scheduler.base import JobStatus
from pscale.runs import atomic_files
from pscale.runs.run_events import Ended, Launched

pytestmark = pytest.mark.slow

NODES = Machine(host="n", cpu_model="c", core_cpus=((0,), (1,)), memory_bytes=1, nodes=2)
CASES = [
    Case(suite="s", label=str(number), ranks=ranks, plan=Plan(dp=ranks, bucket_bytes=1000 + number))
    for number, ranks in enumerate((1, 2, 4))
]
REPEATS = 2


class Killed(BaseException):
    """As by kill -9: nothing handles it."""


@dataclass
class SimulatedJob:
    id: str
    folder: Path
    ending: str = ""


class Scheduler:
    """Its jobs do all their launches between two questions; two of them are preempted in their first."""

    def __init__(self, journal):
        self.journal, self.jobs, self.at_work = journal, {}, False

    def render(self, _request):
        return ""

    def submit(self, request, _script):
        number = str(len(self.jobs) + 1)
        self.jobs[request.name] = SimulatedJob(number, request.folder)
        return number

    def poll_many(self, handles):
        found = {}
        for handle in handles:
            if job := self.jobs.get(handle.name):
                phase = "ended" if job.ending else "running"
                found[handle.name] = JobStatus(id=job.id, phase=phase, ending=job.ending or None)
        self.work()
        return found

    def work(self):
        self.at_work = True
        for job in self.jobs.values():
            if not job.ending:
                self._run(job)
        self.at_work = False

    def _run(self, job):
        order = json.loads((job.folder / "job.json").read_text())
        branch = self.journal.branch(jobs.branch(order["job"]))
        for case, repeat in order["launches"]:
            key = (case, repeat)
            if jobs.owners(jobs.jobs_of(self.journal))[key] == order["job"]:
                note_start(branch, key, 0)
                if job.id in {"2", "3"}:
                    job.ending = "preempted"
                    return
                note_end(branch, key, "ok", "", 1.0)
        (job.folder / "exit").write_text("0")
        job.ending = "completed"


class Life:
    """One run; the `fatal`-th thing that pscale does kills it, before or after it is done."""

    def __init__(self, folder, monkeypatch, fatal, after):
        self.journal = make_journal(folder, CASES, REPEATS)
        self.scheduler = Scheduler(self.journal)
        self.left, self.after, self.rows = fatal, after, {}
        deadly = (
            (atomic_files, "append"),
            (atomic_files, "write"),
            (self.scheduler, "submit"),
            (self, "row"),
        )
        for place, name in deadly:
            monkeypatch.setattr(place, name, self._deadly(getattr(place, name)))

    def _deadly(self, act):
        def done(*arguments):
            if self.scheduler.at_work:
                return act(*arguments)
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            result = act(*arguments)
            if self.left == 0:
                raise Killed
            return result

        return done

    def row(self, job, outcome):
        self.rows[job.key] = outcome.status

    def live(self):
        """Run to the end, or until killed; tell whether it was."""
        manager = JobManager(
            journal=self.journal,
            todo=plan_launches(CASES, REPEATS, 1),
            scheduler=self.scheduler,
            machine=NODES,
            poll_s=1e-9,
            settle=settling(self.row),
            tell=lambda _: None,
            patience=Patience(look_s=0, missing_s=0, dying_s=0),  # one never submitted is missing for good
        )
        try:
            manager.launch(wait=True)
        except Killed:
            return True
        return False


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_thing_it_does_a_run_of_jobs_loses_nothing_and_does_nothing_twice(
    tmp_path, monkeypatch, after
):
    for fatal in count(1):
        with monkeypatch.context() as patch:
            life = Life(tmp_path, patch, fatal, after)
            was_killed = life.live()
            life.scheduler.work()  # jobs go on without pscale
            assert not (was_killed and life.live())
        noted = life.journal.events()
        ended = [event.key for event in noted if isinstance(event, Ended)]
        begun = [event for event in noted if isinstance(event, Launched)]
        assert sorted(ended) == sorted(job.key for job in plan_launches(CASES, REPEATS, 1))
        assert list(life.rows.values()) == ["preempted"]
        assert len(begun) == len(ended) + 1, "only what was preempted is begun again"
        assert len(life.scheduler.jobs) == 4, "no job is submitted twice"
        assert life.journal.is_finished()
        assert all(job.ending for job in jobs.jobs_of(life.journal))
        if not was_killed:
            break
    assert fatal > 20
