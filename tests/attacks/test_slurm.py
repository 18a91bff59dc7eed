"""A virtual Slurm cluster that fails in every way: never two jobs for the same work, and the reason named."""

import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from login_node import LoginNode, virtual_cluster
from noop_runs import make_launcher
from patience import lives, run_program, wait_for

from pscale.runs.journal import Journal

# Ranks that stay until they are let go. Two at once are noted: each has a lock for as long as it lives.
LAUNCH = """for folder; do :; done
exec 9>> "$0.lock"
flock -n 9 || echo "$folder" >> "$0.overlaps"
echo "$folder" >> "$0.begun"
while [ -e "$0.held" ]; do sleep 0.05; done
echo '{"status": "ok", "reason": "", "columns": {"step_s": 21.95}}' > "$folder/result.json"
"""
SUITE = """
name: nodes
scaling: throughput
data: {{kind: synthetic}}
train: {{steps: 1, warmup: 0}}
repeat: 1
timing: {{gemm_peak: false, overhead_steps: 0}}
launch: {{launcher: {launcher}, time_limit: 10m}}
"""
PATIENCE = """
from functools import partial
from pscale.cli import main, run
from pscale.launch.job_manager import JobManager, Patience
run.JobManager = partial(JobManager, patience=Patience(look_s=0.1, missing_s=1e6, dying_s=1.0))
main()
"""


def slurm(*words):
    done = run_program(words, code=None)
    return done.returncode, done.stdout.strip() + done.stderr.strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with virtual_cluster(tmp_path_factory, KILL_WAIT_S="60") as folder:  # a busy host needs time to end ranks
        yield folder


class Attacked(LoginNode):
    """A login node with a run of one launch that stays at work, and of what became of it."""

    def __init__(self, folder):
        super().__init__(folder)
        program = make_launcher(folder / "mpiexec", LAUNCH)
        self.weak = self.suite(SUITE.format(launcher=program))
        self.held = folder / "mpiexec.held"
        self.held.touch()
        self.started = []

    def command(self, *arguments):
        return [sys.executable, "-c", PATIENCE, *map(str, arguments)]

    def begin(self, *options):
        """Start pscale; return it when the ranks of its first job are at work."""
        command = self.command("run", self.weak, "--reports", self.reports, "--no-report", *options)
        with (self.folder / "output").open("w") as output:
            running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self.started.append(running)
        self.sees(lambda: self.begun() or running.poll() is not None)
        return running

    def sees(self, condition):
        """Wait until something happens; what was said is part of a failure."""
        try:
            wait_for(condition)
        except AssertionError as error:
            error.add_note(self.said())
            raise

    def begun(self):
        file = self.folder / "mpiexec.begun"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def said(self):
        return " ".join((self.folder / "output").read_text().split())

    def job(self):
        return self.events("submitted")[-1]["id"]

    def ends(self, running, code=0, jobs=1, statuses=("ok",)):
        """Let ranks go; the run ends with a code, after so many jobs, and no two were at work at once."""
        self.held.unlink(missing_ok=True)
        assert running.wait() == code, self.said()
        assert "Traceback" not in self.said()
        assert len(self.events("submitted")) == jobs, self.said()
        assert not (self.folder / "mpiexec.overlaps").exists()
        results = self.newest()
        assert tuple(row["status"] for row in results.rows("cases")) == statuses
        with Journal.open(results.folder).locked() as works:
            assert works


@pytest.fixture
def login(cluster, tmp_path):  # noqa: ARG001
    login = Attacked(tmp_path)
    yield login
    login.held.unlink(missing_ok=True)
    for event in login.events("submitted"):
        slurm("scancel", "--quiet", event["id"])
    for running in login.started:  # only where a test has failed
        running.kill()
        running.wait()


def test_a_controller_that_is_restarted_in_the_middle_loses_no_job(cluster, login):
    running = login.begin()
    controller = psutil.Process(int((cluster / "slurmctld.pid").read_text()))
    controller.terminate()
    try:
        wait_for(lambda: not lives(controller))  # where no init reaps it, it stays as a zombie
        login.sees(lambda: "asking again" in login.said())
        login.held.unlink()
    finally:
        places = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        subprocess.run([shutil.which("slurmctld", path=places)], check=True)
    wait_for(lambda: slurm("scontrol", "ping")[1].endswith("UP"))
    login.ends(running)
    assert login.begun() == 1


def test_a_job_whose_node_goes_down_is_done_again_by_one_other(login):
    running = login.begin("--set", "launch.directives=[--exclusive]")
    node = slurm("squeue", "-h", "-j", login.job(), "-o", "%N")[1]
    slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        login.sees(lambda: login.begun() == 2)
        login.ends(running, jobs=2)
    finally:
        slurm("scontrol", "update", f"nodename={node}", "state=resume")
    assert "node_failed" in login.said()


def test_a_job_that_is_cancelled_behind_the_back_is_left_until_somebody_asks_again(login):
    running = login.begin()
    slurm("scancel", login.job())
    login.sees(lambda: running.poll() is not None)
    login.ends(running, code=1, statuses=("cancelled",))
    assert "was cancelled" in login.said()
    login.ends(login.begin(), jobs=2)


def test_a_job_at_its_limit_is_a_timeout_and_not_tried_again(login):
    running = login.begin()
    slurm("scontrol", "update", f"jobid={login.job()}", "EndTime=now+1")
    login.sees(lambda: running.poll() is not None)
    login.ends(running, code=1, statuses=("timeout",))
    assert "reached its time limit" in login.said()


def test_a_job_that_is_requeued_and_suspended_remains_the_only_one(login):
    running = login.begin()
    assert slurm("scontrol", "requeue", login.job())[0], "jobs ask never to be"
    slurm("scontrol", "suspend", login.job())
    wait_for(lambda: slurm("squeue", "-h", "-j", login.job(), "-o", "%T")[1] == "SUSPENDED")
    login.held.unlink()
    asked = time.monotonic()
    login.sees(lambda: time.monotonic() > asked + 2)  # some polls
    assert running.poll() is None, login.said()
    slurm("scontrol", "resume", login.job())
    login.ends(running)
    assert login.begun() == 1
