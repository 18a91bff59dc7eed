"""What runs inside a job: the launches that the job was given, as long as there is time for them."""

import signal
from dataclasses import replace

import pytest
from noop_runs import make_journal, make_launcher

from pscale.cli.job import main as job_main
from pscale.config import Case, Launch, Plan
from pscale.errors import INTERRUPTED
from pscale.launch import jobs, launcher
from pscale.launch.runner import plan_launches
from pscale.launch.scheduler.base import JobRequest
from pscale.runs.run_events import Submitting

LEAST, MOST = 3, 5
FAILS = "exit 3\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Make a run with `repeat: auto` whose cases fail, so that the fewest are enough, and this host a job."""
    program = make_launcher(tmp_path / "mpiexec", FAILS)
    launcher.identify.cache_clear()
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    launch = Launch(launcher=str(program), oversubscribe=True)
    cases = [Case(suite="s", label=f"case {n}", plan=Plan(bucket_bytes=n), launch=launch) for n in (1, 2)]
    auto = {"precision": 0.02, "most": MOST, "least": LEAST, "budget_s": None}
    return make_journal(tmp_path / "reports", cases, LEAST, auto=auto), plan_launches(cases, MOST, 1)


def main(folder, sleep=lambda _: None):
    return job_main(folder, sleep)


def give(journal, number, keys, time_limit_s):
    """Give launches to a job as `pscale run` does on a login node, and return its folder."""
    folder = journal.job_folder(jobs.branch(number))
    request = JobRequest(
        name=f"job-{number}",
        folder=folder,
        command=(),
        nodes=1,
        ranks_per_node=1,
        cores_per_rank=1,
        time_limit_s=time_limit_s,
        launch=Launch(),
    )
    journal.note(Submitting(job=number, name=request.name, launches=keys))
    jobs.write(folder / jobs.WORK_ORDER, jobs.work_order(journal, number, keys, request))
    return folder


def test_a_job_begins_nothing_that_its_time_would_cut_off_and_the_next_one_continues(run):
    journal, todo = run
    keys = [job.key for job in todo]
    assert main(give(journal, 1, keys, time_limit_s=60)) == 0
    assert journal.finished() == {keys[0]}, "one is tried, or a job of too short a time does nothing for ever"
    assert main(give(journal, 2, journal.left(keys), time_limit_s=3600)) == 0
    assert journal.is_finished()
    assert len(journal.finished()) == LEAST * 2
    assert len(journal.enough()) == 2


def test_a_job_skips_a_case_whose_blas_is_not_where_its_ranks_start(run, tmp_path):
    case, other = {launch.case.id: launch.case for launch in run[1]}.values()
    absent = replace(other, launch=replace(other.launch, blas="/no/such/libblas.so"))
    journal = make_journal(tmp_path / "others", [case, absent])
    assert main(give(journal, 1, [(each.id, 0) for each in (case, absent)], time_limit_s=3600)) == 0
    ends = {case: end for (case, _), end in journal.ends().items()}
    assert ends[absent.id].status == "skipped"
    assert "/no/such/libblas.so" in ends[absent.id].reason


def test_a_job_leaves_alone_what_a_later_one_was_given(run):
    journal, todo = run
    first = give(journal, 1, [job.key for job in todo], time_limit_s=3600)
    give(journal, 2, [todo[0].key], time_limit_s=3600)
    assert main(first) == 0
    assert journal.finished() == {todo[1].key}, "the next round waits for the whole of this one"


def test_a_launch_that_went_down_with_its_job_has_not_ended_and_is_left_to_the_scheduler_to_explain(
    run, tmp_path
):
    journal, todo = run
    make_launcher(tmp_path / "mpiexec", "for folder; do :; done; echo > $folder/born; " + FAILS)
    folder = give(journal, 1, [todo[0].key], time_limit_s=3600)
    assert main(folder, sleep=lambda _: signal.raise_signal(signal.SIGTERM)) == INTERRUPTED
    assert journal.finished() == set()
    assert journal.branch(jobs.branch(1)).interrupted() == {todo[0].key}
