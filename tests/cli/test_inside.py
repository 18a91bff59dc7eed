"""What runs inside a job: the launches that the job was given, as long as there is time for them."""

import pytest

from pscale.cli import inside
from pscale.config import Case, Launch, Plan, to_dict
from pscale.errors import INTERRUPTED
from pscale.launch import jobs, mpi
from pscale.launch.campaign import launches
from pscale.launch.journal import Journal
from pscale.launch.scheduler.protocol import JobRequest

LEAST, MOST = 3, 8
LAUNCHER = """#!/bin/sh
[ "$1" = --version ] && echo "HYDRA build details: Version: 0" && exit
exit 3
"""
ENDED_FROM_OUTSIDE = """
for folder; do :; done
echo > "$folder/born"
env -u PSCALE_JOB sh -c "echo > '$folder/sure'; sleep 0.1; kill -TERM $PPID" &
while [ ! -e "$folder/sure" ]; do sleep 0.01; done
exit 3
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Make a run with `repeat: auto` whose cases fail, so that the fewest are enough, and this host a job."""
    program = tmp_path / "mpiexec"
    program.write_text(LAUNCHER)
    program.chmod(0o755)
    mpi.identify.cache_clear()
    monkeypatch.setattr(inside, "_HEARSAY_S", 0.0)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    launch = Launch(launcher=str(program), oversubscribe=True)
    cases = [Case(suite="s", label=f"case {n}", plan=Plan(bucket_bytes=n), launch=launch) for n in (1, 2)]
    document = {
        "suite": {"name": "s", "resolved": {}},
        "cases": [{**to_dict(case), "id": case.id} for case in cases],
        "repeats": LEAST,
        "auto": {"precision": 0.02, "most": MOST},
        "seed": 1,
        "provenance": {},
    }
    return Journal.create(tmp_path / "reports", "s", document), launches(cases, MOST, 1)


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
    journal.note("submitting", job=number, name=request.name, launches=keys)
    jobs.write(folder / jobs.ORDER, jobs.order(journal, number, keys, request))
    return folder


def test_a_job_begins_nothing_that_its_time_would_cut_off_and_the_next_one_goes_on(run):
    journal, todo = run
    keys = [job.key for job in todo]
    assert inside.main(give(journal, 1, keys, time_limit_s=60)) == 0
    assert journal.finished() == {keys[0]}, "one is tried, or a job of too short a time does nothing for ever"
    assert inside.main(give(journal, 2, journal.left(keys), time_limit_s=3600)) == 0
    assert journal.is_finished()
    assert len(journal.finished()) == LEAST * 2
    assert len(journal.enough()) == 2


def test_a_job_leaves_alone_what_a_later_one_was_given(run):
    journal, todo = run
    first = give(journal, 1, [job.key for job in todo], time_limit_s=3600)
    give(journal, 2, [todo[0].key], time_limit_s=3600)
    assert inside.main(first) == 0
    assert todo[0].key not in journal.finished()
    assert len(journal.finished()) == LEAST * 2 - 1


def test_a_launch_that_went_down_with_its_job_has_not_ended_and_is_left_to_the_scheduler_to_explain(
    run, tmp_path, monkeypatch
):
    journal, todo = run
    monkeypatch.setattr(inside, "_HEARSAY_S", 60.0)
    (tmp_path / "mpiexec").write_text(LAUNCHER.replace("exit 3", ENDED_FROM_OUTSIDE))
    assert inside.main(give(journal, 1, [todo[0].key], time_limit_s=3600)) == INTERRUPTED
    assert journal.finished() == set()
    assert journal.branch(jobs.branch(1)).interrupted() == {todo[0].key}
