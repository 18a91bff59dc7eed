"""From a login node to a report, with commands of schedulers that run their jobs on this host."""

import json
import re
import signal

import fake_scheduler
import pytest
from login_node import SITE, LoginNode
from patience import LIMIT_S, wait_for

from pscale.errors import LaunchError
from pscale.launch import launcher

pytestmark = pytest.mark.slow

ONE_JOB = ("--set", "sweep.ranks=[1, 2]", "--set", "launch.packing=all", "--set", "launch.ranks_per_node=2")


@pytest.fixture
def login(tmp_path, monkeypatch):
    """Make this the login node of a scheduler whose jobs run."""

    def make(name, execute=True):
        programs = fake_scheduler.install(tmp_path / name, name)
        if execute:
            (tmp_path / name / "execute").touch()
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        folder = tmp_path / "a folder with $(touch pwned) 'quotes' 100%"
        folder.mkdir()
        return LoginNode(folder, f"{SITE}  nodes: 4\n  cores_per_node: 2\n")

    return make


@pytest.mark.parametrize("name", ["pbs", "lsf", "flux", "cobalt"])
def test_a_job_of_each_scheduler_runs_its_launches(login, name):
    try:
        launcher.find()
    except LaunchError as error:
        pytest.skip(str(error))
    node = login(name)
    node.run(node.weak, *ONE_JOB, "--detach")
    wait_for(lambda: len(node.events("ended")) == 2)  # and all is done before anybody comes back
    results = node.run(node.weak, *ONE_JOB)
    assert "continuing" in results.output
    assert {(row["ranks"], row["status"]) for row in results.rows("cases")} == {(1, "ok"), (2, "ok")}
    assert len(node.events("submitted")) == 1
    assert f"launches run inside this job, {name} 1000" in (results.folder / "jobs/001/log.txt").read_text()


def test_a_dry_run_prints_every_script_and_command_and_writes_nothing(login):
    node = login("slurm", execute=False)
    before = sorted(node.folder.rglob("*"))
    said = node.say("run", node.weak, "--dry-run", "--set", "launch.account=p7")
    assert said.count("sbatch --parsable") == 3
    assert said.count("#SBATCH --account=p7") == 3
    assert [f"#SBATCH --nodes={nodes}\n" in said for nodes in (1, 2, 4)] == [True] * 3
    assert "OMP_NUM_THREADS=1" in said
    assert sorted(node.folder.rglob("*")) == before
    assert not list(node.folder.parent.glob("slurm/*.json"))


def test_a_case_that_does_not_fit_is_not_submitted(login):
    node = login("slurm", execute=False)
    node.run(node.weak, "--set", "launch.memory_limit=1KiB", "--detach", code=None)
    ends = node.events("ended")
    assert [end["status"] for end in ends] == ["skipped"] * 3
    assert all("launch.memory_limit" in end["reason"] for end in ends)
    assert not node.events("submitting")


def test_what_the_login_node_alone_lacks_refuses_no_case(login):
    node = login("slurm", execute=False)
    (node.folder / "sites.yaml").write_text(f"{SITE}  nodes: 1\n  cores_per_node: 2\n")
    full = "sweep={plan.offload: [none, optimizer], launch.blas: [auto, /no/such/libblas.so]}"
    node.run(node.weak, "--set", full, "--set", "plan.offload_folder=/proc", "--detach")
    assert not node.events("ended")
    assert sum(len(event["launches"]) for event in node.events("submitting")) == 4


def test_detached_jobs_survive_a_lost_shell_are_shown_and_cancelled_and_two_pscale_do_not_meet(login):
    node = login("slurm", execute=False)
    node.run(node.weak, "--detach")
    state = node.status()
    assert (state["launches"], state["ended"], state["finished"]) == (3, {}, False)
    assert [(job["state"], job["launches"], job["note"]) for job in state["jobs"]] == [
        ("queued", 1, "Resources")
    ] * 3
    assert "0 of 3 launches have ended" in node.say("status")
    lock = next(iter(node.reports.glob("nodes/*/lock")))
    for end in (signal.SIGHUP, None):  # the shell is lost, and somebody comes back
        waiting = node.start()
        wait_for(lambda: waiting.pid in map(int, re.findall(r"process (\d+)", lock.read_text())))  # noqa: B023
        if end:
            waiting.send_signal(end)
            waiting.communicate()
    assert len(node.events("submitted")) == 3
    second = node.call("run", node.weak, "--reports", node.reports, code=4)
    assert "is in use by another pscale" in second.stderr
    assert "cancelled 1000, 1001, 1002" in node.say("cancel")
    output, _ = waiting.communicate(timeout=LIMIT_S)
    assert waiting.returncode == 1, output
    assert "the same command runs them" in output
    assert "no running or queued jobs" in node.say("cancel")


def test_doctor_says_where_launches_happen_and_why(login):
    node = login("slurm", execute=False)
    said = node.call("doctor", "--json", code=None).stdout
    found = {finding["topic"]: finding["text"] for finding in json.loads(said)}
    assert found["launches"] == "jobs are submitted: slurm answers here; partition main: 4 nodes with 2 cores"
