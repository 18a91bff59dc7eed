"""A run whose jobs go to a scheduler that does what a test says: nothing is lost, nothing done twice."""

import json
from dataclasses import replace

import fake_scheduler
import pytest
from noop_runs import make_journal, note_end, note_start, settling

from pscale.config import Case, Launch, Plan
from pscale.errors import LaunchError
from pscale.launch import jobs as jobs_module
from pscale.launch.job_manager import JobManager, Patience
from pscale.launch.jobs import jobs_of, plan_jobs
from pscale.launch.machine import Machine
from pscale.launch.runner import plan_launches
from pscale.launch.scheduler import SCHEDULERS
from pscale.launch.scheduler.base import JobStatus
from pscale.launch.scheduler.slurm import Slurm
from pscale.runs.journal import Journal
from pscale.runs.run_events import Enough, Submitted, Submitting, Withdrawn

NODES = Machine(host="n", cpu_model="c", core_cpus=((0,), (1,)), memory_bytes=1, nodes=4)
MAX_TIME_S = 86400.0
LOST = {  # how jobs end by no fault of the launch under way, and what becomes of that after two of them
    **{ending: ending for ending in ("preempted", "node_failed", "failed", "vanished")},
    "completed": "failed",
}
NONE = Patience(look_s=0.01, missing_s=0.0, dying_s=0.0)


def case(ranks=1, number=0, threads=1, **launch):
    return Case(
        suite="s",
        label=f"{ranks} ranks {number}",
        ranks=ranks,
        threads=threads,
        plan=Plan(dp=ranks, bucket_bytes=1000 + number),
        launch=Launch(**launch),
    )


class Cluster:
    """A run, its jobs, and the hands of the scheduler and of the nodes."""

    def __init__(self, folder, jobs, cases, repeats=1, scheduler="slurm"):
        self.jobs, self.rows, self.said, self.now_s = jobs, {}, [], 0.0
        self.scheduler = next(each for each in SCHEDULERS if each.name == scheduler)
        self.journal = make_journal(folder / "reports", cases, repeats)
        self.todo = plan_launches(cases, repeats, 1)
        self.manager = self.back()

    def back(self, patience=NONE):
        """Return what a new pscale makes of the run, on a clock of its own."""
        self.manager = JobManager(
            journal=self.journal,
            todo=self.todo,
            scheduler=self.scheduler,
            machine=NODES,
            poll_s=1e-9,
            settle=settling(lambda job, outcome: self.rows.update({job.key: outcome})),
            tell=self.said.append,
            patience=patience,
            clock=self.clock,
        )
        return self.manager

    def clock(self):
        self.now_s += 1e-6
        return self.now_s

    def step(self):
        self.manager.step()

    def ids(self):
        return [job["id"] for job in self.jobs.all()]

    def branch(self, number):
        return self.journal.branch(jobs_module.branch(number))

    def does(self, number, *keys, begins=()):
        """Let job `number` end some launches well, and begin others."""
        branch = self.branch(number)
        for key in (*keys, *begins):
            note_start(branch, key, 0)
            if key in keys:
                note_end(branch, key, "ok", "", 1.0)

    def exits(self, number, code, state=None):
        folder = self.journal.job_folder(jobs_module.branch(number))
        (folder / "exit").write_text(f"{code}\n")
        self.jobs.set(self.ids()[number - 1], state or ("completed" if code == 0 else "failed"))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    def make(*cases, repeats=1, scheduler="slurm"):
        programs = fake_scheduler.install(tmp_path / scheduler, scheduler)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        return Cluster(tmp_path, fake_scheduler.Jobs(tmp_path / scheduler), cases, repeats, scheduler)

    return make


def test_one_job_for_each_number_of_nodes_runs_all_its_launches_in_their_random_order(cluster):
    run = cluster(case(1), case(2, 1), case(4), case(8), repeats=2)
    planned = plan_jobs(run.todo, NODES, 2)
    assert [(each.nodes, each.ranks_per_node, len(each.launches)) for each in planned] == [
        (1, 2, 4),
        (2, 2, 2),
        (4, 2, 2),
    ]
    orders = [job.index for job in planned[0].launches]
    assert orders == sorted(orders)
    assert planned[0].time_limit_s == 4 * 600 + 120


def test_packing_limits_and_what_jobs_are_asked_for_keep_launches_separate():
    cases = [case(1, 0, packing="case"), case(1, 1, packing="case"), case(1, 2, packing="case", qos="q")]
    assert len(plan_jobs(plan_launches(cases, 3, 1), NODES, 3)) == 3
    together = [case(1, 0, packing="all"), case(8, 1, packing="all", job_time_limit_s=None)]
    (found,) = plan_jobs(plan_launches(together, 1, 1), NODES, 1)
    assert (found.nodes, found.ranks_per_node, found.cores_per_rank) == (4, 2, 1)
    (wide,) = plan_jobs(plan_launches([case(1, threads=2)], 1, 1), NODES, 1)
    assert (wide.ranks_per_node, wide.cores_per_rank) == (1, 2)
    long = plan_jobs(plan_launches([case(1, time_limit_s=1e6)], 3, 1), NODES, 3, MAX_TIME_S)
    assert long[0].time_limit_s == MAX_TIME_S


def test_with_repeat_auto_a_job_asks_for_the_time_of_those_launches_that_are_certain():
    todo = plan_launches([case(1), case(1, 1, time_limit_s=60)], 30, 1)
    (found,) = plan_jobs(todo, NODES, 5)
    assert (len(found.launches), found.time_limit_s) == (60, 5 * 660 + 120)
    (rest,) = plan_jobs(todo[-3:], NODES, 5)
    assert rest.time_limit_s == sum(job.case.launch.time_limit_s for job in todo[-3:]) + 120


def test_what_a_job_had_no_time_for_goes_into_the_next_and_is_charged_to_no_job(cluster):
    run = cluster(case(1), repeats=4)
    run.step()
    for number, job in enumerate(run.todo, start=1):
        run.does(number, job.key)
        run.exits(number, 0)
        run.step()
    assert [len(job.keys) for job in jobs_of(run.journal)] == [4, 3, 2, 1]
    assert [job.failed for job in jobs_of(run.journal)] == [()] * 4
    assert run.journal.is_finished()


def test_what_a_job_left_in_files_may_be_seen_later_than_that_it_has_ended(cluster):
    run = cluster(case(1))
    run.step()
    run.jobs.set(run.ids()[0], "completed")
    run.step()
    assert [job.ending for job in jobs_of(run.journal)] == [""]
    run.does(1, run.todo[0].key)
    run.exits(1, 0)
    run.step()
    assert [job.ending for job in jobs_of(run.journal)] == ["completed"]
    assert run.rows == {}


@pytest.mark.parametrize("name", ["slurm", "flux"])
def test_a_run_comes_through_every_state_of_the_jobs_of_each_scheduler(cluster, name):
    fates = fake_scheduler.STATES[2:]
    run = cluster(*(case(1, number, packing="case") for number in range(len(fates))), scheduler=name)
    run.step()
    keys = dict(zip(fates, (job.key for job in run.todo), strict=True))
    for state in fake_scheduler.STATES[:2]:
        for number in run.ids():
            run.jobs.set(number, state)
        run.step()
        assert {status.phase for status in run.manager.statuses.values()} == {state}
    for number, (fate, key) in enumerate(keys.items(), start=1):
        run.does(number, *([key] if fate == "completed" else []), begins=[key] if fate != "completed" else [])
        run.jobs.set(run.ids()[number - 1], fate)
    for _ in range(3):
        run.step()
    told = {fate: run.rows[key].status for fate, key in keys.items() if key in run.rows}
    again = {"failed", "preempted", "node_failed", "forgotten"}
    if name == "flux":  # which does not tell what went out of memory
        again |= {"out_of_memory"}
    over = {"cancelled": "cancelled", "timeout": "timeout", "out_of_memory": "failed"}
    assert told == {fate: status for fate, status in over.items() if fate not in again}
    assert {job.keys[0] for job in jobs_of(run.journal)[len(fates) :]} == {keys[fate] for fate in again}
    for job in jobs_of(run.journal)[len(fates) :]:
        run.does(job.number, *job.keys)
        run.exits(job.number, 0)
    run.manager.launch(wait=True)
    assert set(keys.values()) - run.journal.finished() == {keys["cancelled"]}
    assert len(run.ids()) == len(fates) + len(again)


def test_jobs_that_do_all_their_launches_end_the_run_without_another_question(cluster, monkeypatch):
    run = cluster(case(1), case(4))
    run.step()
    assert len(run.ids()) == 2
    for number, job in enumerate(jobs_of(run.journal), start=1):
        run.does(number, *job.keys)
        (run.journal.job_folder(job.branch) / "exit").write_text("0\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # where there is no squeue to ask
    run.manager.poll_s = 1e9
    run.manager.launch(wait=True)
    assert run.journal.is_finished()
    assert [job.ending for job in jobs_of(run.journal)] == ["completed", "completed"]
    assert run.rows == {}, "the jobs have written them"


@pytest.mark.parametrize(
    ("ending", "attempts", "under_way", "waiting"),
    [
        *((ending, 0, "again", "again") for ending in LOST),
        *((ending, 1, status, "again") for ending, status in LOST.items()),
        ("timeout", 0, "timeout", "again"),
        ("out_of_memory", 0, "failed", "again"),
        ("cancelled", 0, "cancelled until asked again", "cancelled until asked again"),
        *((ending, 0, None, "again") for ending in (*LOST, "timeout")),
        *((ending, 1, None, LOST.get(ending, ending)) for ending in (*LOST, "timeout")),
    ],
)
def test_how_a_job_ended_decides_what_becomes_of_the_launches_that_it_left(
    cluster, ending, attempts, under_way, waiting
):
    run = cluster(case(1, 0), case(1, 1), case(1, 2))
    done, begun, left = (job.key for job in run.todo)
    run.step()
    run.does(1, *[done] * (under_way is not None), begins=[begun] * (under_way is not None))
    folder = run.journal.job_folder("001")
    (folder / "log.txt").write_text("Lmod has detected the following error: no module gcc/99\n")
    (job,) = jobs_of(run.journal)
    found = jobs_module.decide(run.journal, job, ending, "why", dict.fromkeys(job.keys, attempts))
    fates = {key: outcome.status for key, outcome in found.final.items()}
    fates |= {key: f"{outcome.status} until asked again" for key, outcome in found.deferred.items()}
    expected = {begun: under_way, left: waiting} if under_way else dict.fromkeys(job.keys, waiting)
    assert fates == {key: fate for key, fate in expected.items() if fate != "again"}
    charged = () if ending == "cancelled" else (begun,) if under_way else job.keys
    assert found.failed == charged
    for outcome in (*found.final.values(), *found.deferred.values()):
        assert outcome.reason.startswith(f"job {job.id} ")
        assert "(why): Lmod has detected the following error: no module gcc/99 [" in outcome.reason


@pytest.mark.parametrize(
    ("state", "code", "log", "ending"),
    [
        (None, None, "", None),
        (None, 0, "", "completed"),
        (None, 1, "", "failed"),
        (None, 143, "*** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "timeout"),
        (None, 143, "=>> PBS: job killed: walltime 152 exceeded limit 120", "timeout"),
        (None, 1, "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.", "out_of_memory"),
        ("running", 0, "", None),
        ("completed", 0, "", "completed"),
        ("completed", 3, "", "failed"),
        ("cancelled", None, "TERM_RUNLIMIT: job killed", "timeout"),
        ("cancelled", None, "", "cancelled"),
        ("preempted", 143, "TERM_RUNLIMIT: job killed", "preempted"),
    ],
)
def test_a_job_ended_as_its_state_its_exit_code_and_its_log_say(tmp_path, state, code, log, ending):
    if code is not None:
        (tmp_path / "exit").write_text(f"{code}\n")
    (tmp_path / "log.txt").write_text(f"{log}\npscale: terminated by a signal\n")
    phase = "ended" if state != "running" else state
    status = JobStatus(id="7", phase=phase, ending=state if phase == "ended" else None) if state else None
    assert jobs_module.ending_of(tmp_path, status) == ending


def test_a_cancelled_job_is_reported_and_left_until_somebody_asks_again(cluster):
    run = cluster(case(1, 0), case(1, 1))
    run.step()
    run.does(1, run.todo[0].key)
    run.jobs.set(run.ids()[0], "cancelled")
    run.manager.launch(wait=True)
    assert run.rows[run.todo[1].key].status == "cancelled"
    assert not run.journal.is_finished()
    assert len(run.ids()) == 1
    run.back().step()
    assert jobs_of(run.journal)[1].keys == (run.todo[1].key,)
    run.jobs.set(run.ids()[1], "cancelled")  # while nobody waits
    run.rows.clear()
    run.back().step()
    assert run.rows == {}
    assert [job.ending for job in jobs_of(run.journal)] == ["cancelled", "cancelled", ""]


def test_a_case_that_is_known_well_enough_needs_no_job_for_its_other_launches(cluster):
    run = cluster(case(1), repeats=3)
    run.step()
    run.does(1, run.todo[0].key)
    run.branch(1).note(Enough(case=run.todo[0].case.id, launches=1, half_width=0.01))
    run.exits(1, 0)
    run.step()
    assert [job.ending for job in jobs_of(run.journal)] == ["completed"]
    assert run.rows == {}


def test_a_case_that_is_not_to_be_started_is_a_row_and_no_job(cluster):
    run = cluster(case(1), case(4))
    run.manager.refused = {run.todo[0].case.id: "too large"}
    run.manager.launch(wait=False)
    assert (run.rows[run.todo[0].key].status, run.rows[run.todo[0].key].reason) == ("skipped", "too large")
    assert [job.keys for job in jobs_of(run.journal)] == [(run.todo[1].key,)]


def test_a_limit_on_jobs_is_waited_out(cluster):
    run = cluster(case(1), case(4), case(8))
    limit = run.jobs.folder / "limit"
    limit.write_text("1")
    run.step()
    assert [job.ending for job in jobs_of(run.journal)] == ["", "withdrawn"]
    assert any("waiting until some jobs have ended" in text for text in run.said)
    run.does(1, *jobs_of(run.journal)[0].keys)
    run.exits(1, 0)
    limit.write_text("9")
    run.step()
    assert [job.ending for job in jobs_of(run.journal)] == ["completed", "withdrawn", "", ""]
    assert len(run.ids()) == 3


@pytest.mark.parametrize("was_submitted", [True, False])
def test_killed_between_submitting_and_noting_the_id_the_job_is_found_by_its_name(
    cluster, monkeypatch, was_submitted
):
    run = cluster(case(1))
    note = Journal.note

    def killed(journal, event):
        if isinstance(event, Submitted):
            raise KeyboardInterrupt
        note(journal, event)

    def killed_earlier(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note", killed)
        if not was_submitted:
            patch.setattr(Slurm, "submit", killed_earlier)
        with pytest.raises(KeyboardInterrupt):
            run.step()
    run.back()
    for _ in range(3):
        run.step()
    (job,) = [job for job in jobs_of(run.journal) if not job.ending]
    assert len(run.ids()) == 1
    assert job.id == run.ids()[0]


def test_a_refusal_ends_with_the_schedulers_words_and_the_next_try_submits_again(cluster):
    run = cluster(case(1))
    program = run.jobs.folder / "bin" / "sbatch"
    good = program.read_text()
    program.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: nope' >&2; exit 1\n")
    with pytest.raises(LaunchError, match="invalid partition"):
        run.step()
    program.write_text(good)
    run.back().step()
    assert [job.ending for job in jobs_of(run.journal)] == ["withdrawn", ""]


def test_a_scheduler_that_does_not_answer_is_asked_again_and_no_job_is_given_up(cluster):
    run = cluster(case(1))
    run.step()
    program = run.jobs.folder / "bin" / "squeue"
    good = program.read_text()
    program.write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n"
    )
    for _ in range(5):
        run.step()
    program.write_text(good)
    run.step()
    assert [job.ending for job in jobs_of(run.journal)] == [""]


def test_a_job_that_the_queue_does_not_show_for_a_minute_is_never_submitted_beside(cluster):
    run = cluster(case(1))
    run.back(Patience()).step()
    for _ in range(3):
        for state in ("missing", "running"):
            run.jobs.set(run.ids()[0], state)
            for _ in range(4):
                run.step()
                run.now_s += 20.0
    assert [text for text in run.said if "missing" in text] == [
        f"job {run.ids()[0]} is missing in the queue; waiting {Patience().missing_s:.0f} s for it"
    ] * 3
    run.does(1, run.todo[0].key)
    run.exits(1, 0)
    run.step()
    assert [job.ending for job in jobs_of(run.journal)] == ["completed"]


def test_a_job_that_stays_missing_is_cancelled_before_another_one_does_its_work(cluster, monkeypatch):
    run = cluster(case(1))
    run.step()
    (lost,) = run.ids()
    run.does(1, begins=[run.todo[0].key])
    run.jobs.set(lost, "missing")
    cancel, alive = run.scheduler.cancel, ["it is at work"]

    def refuses(_ids):
        raise LaunchError("the scheduler is busy")

    monkeypatch.setattr(run.scheduler, "cancel", refuses)
    for _ in range(3):
        run.step()
    assert run.ids() == [lost]
    assert sum("cannot be cancelled (the scheduler is busy)" in text for text in run.said) == 1
    monkeypatch.setattr(run.scheduler, "cancel", lambda ids: (alive.clear(), cancel(ids)))
    submit = run.scheduler.submit
    monkeypatch.setattr(run.scheduler, "submit", lambda *job: pytest.fail("two") if alive else submit(*job))
    for _ in range(3):
        run.step()
    assert [job.ending for job in jobs_of(run.journal)] == ["vanished", ""]
    assert run.rows == {}, "nobody but pscale has cancelled it"
    assert f"job {lost}: vanished" in run.said[-2]


def test_a_job_whose_id_is_unknown_is_cancelled_by_what_it_says_itself(cluster):
    run = cluster(case(1))
    run.step()
    (lost,) = run.ids()
    records = run.journal.folder / "journal.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(line for line in lines if '"submitted"' not in line))
    (run.journal.job_folder("001") / "started").write_text(f"{lost}\n")
    run.jobs.set(lost, "missing")
    run.back(replace(NONE, dying_s=3600.0)).step()
    assert [job["state"] for job in run.jobs.all()] == ["cancelled"]


def test_the_scheduler_is_asked_once_for_all_jobs_and_no_oftener_than_the_site_allows(cluster, monkeypatch):
    run = cluster(case(1), case(4), case(8))
    asked = []
    poll_many = Slurm.poll_many
    monkeypatch.setattr(
        Slurm, "poll_many", lambda self, handles: asked.append(len(handles)) or poll_many(self, handles)
    )
    run.manager.poll_s = 30.0
    for _ in range(20):
        run.step()
    assert asked == []  # just submitted
    run.now_s += 30
    for _ in range(20):
        run.step()
    assert asked == [3]


def test_a_launch_that_a_later_job_was_given_is_not_the_earlier_ones_any_more(cluster):
    run = cluster(case(1))
    (key,) = (job.key for job in run.todo)
    run.step()
    run.journal.note(Submitting(job=2, name="x", launches=[key]))
    assert jobs_module.owners(jobs_of(run.journal)) == {key: 2}
    run.journal.note(Withdrawn(job=2, note=""))
    assert jobs_module.owners(jobs_of(run.journal)) == {key: 1}


def test_the_order_of_a_job_says_which_launches_of_which_run(cluster):
    run = cluster(case(1), case(1, 1))
    run.step()
    order = json.loads((run.journal.job_folder("001") / "job.json").read_text())
    assert (order["run"], order["job"]) == (str(run.journal.folder), 1)
    assert [tuple(key) for key in order["launches"]] == [job.key for job in run.todo]
