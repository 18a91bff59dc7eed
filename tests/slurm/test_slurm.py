"""Whole runs through a real Slurm: four virtual nodes on this host."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
import yaml
from patience import LIMIT_S, run_program, wait_for
from whole_runs import NEVER_JOINS

from pscale.launch import launcher

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENDLESS = ("--set", "train.steps=1000000", "--set", "launch.time_limit=10m")
ONE_NODE = ("--only", "ranks == 1")
# Launches of four ranks stay at work until there is a certain file.
HELD = """
import os
if "PMI_RANK" in os.environ:
    import time
    import pscale.worker.job as job
    run = job.run
    def held(order, *arguments):
        while order.case.ranks == 4 and not os.path.exists(__file__ + ".free"):
            time.sleep(0.01)
        return run(order, *arguments)
    job.run = held
"""
# Slurm's controller hears nothing of the first submission; pscale is impatient while there is a certain file.
DEAF = """
import os, signal
if "PMI_RANK" not in os.environ:
    import pscale.launch.scheduler.base as base
    if os.path.exists(__file__ + ".deaf"):
        base._LIMIT_S = 3
    submit, limit_s = base.Scheduler.submit, base._LIMIT_S
    def unheard(self, *arguments):
        base.Scheduler.submit, base._LIMIT_S = submit, 3
        os.kill({controller}, signal.SIGSTOP)
        try:
            return submit(self, *arguments)
        finally:
            os.kill({controller}, signal.SIGCONT)
            base._LIMIT_S = limit_s
    base.Scheduler.submit = unheard
"""


def slurm(*words):
    return run_program(words).stdout.strip()


@pytest.fixture
def sabotage(login, monkeypatch):
    """Let every Python of the jobs begin with a program; return a path of a file beside it."""

    def begin(program, beside=""):
        path = login.folder / "sitecustomize.py"
        path.write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(login.folder), prepend=os.pathsep)
        return path.with_name(path.name + beside)

    return begin


def test_a_weak_suite_over_1_2_and_4_nodes_survives_the_death_of_pscale(login, sabotage):
    free = sabotage(HELD, ".free")
    first = login.start()
    wait_for(lambda: login.events("ended"))
    first.kill()
    first.communicate()
    free.touch()
    results = login.run(login.weak)
    assert "continuing" in results.output
    ended = Counter((record["case"], record["repeat"]) for record in login.events("ended"))
    assert len(ended) == 3
    assert set(ended.values()) == {1}
    assert len(login.events("launched")) == 3
    rows = results.rows("cases")
    assert {(row["ranks"], row["status"]) for row in rows} == {(1, "ok"), (2, "ok"), (4, "ok")}
    assert len(login.events("submitted")) == 3, "one job for each number of nodes"
    assert login.status()["finished"]
    scripts = [path.read_text() for path in sorted(results.folder.glob("jobs/*/script.sh"))]
    assert [f"--nodes={count}" in script for count, script in zip((1, 2, 4), scripts, strict=True)] == [
        True
    ] * 3


def test_ctrl_c_leaves_jobs_at_work_and_cancel_ends_them_for_another_day(login):
    waiting = login.start(*ONE_NODE, *ENDLESS)
    job = login.job_at_work()
    waiting.send_signal(2)
    output, _ = waiting.communicate()
    assert waiting.returncode == 130
    assert "jobs run without pscale" in output
    (state,) = login.status()["jobs"]
    assert (state["job"], state["state"]) == (job, "running")
    assert f"cancelled {job}" in login.say("cancel")
    wait_for(lambda: login.status()["jobs"][0]["state"] == "cancelled")
    again = login.run(login.weak, *ONE_NODE, *ENDLESS, "--detach")
    assert "continuing" in again.output
    assert login.status()["jobs"][0]["state"] == "cancelled"
    assert len(login.events("submitted")) == 2
    login.say("cancel")


def test_ranks_of_mpiexec_on_two_nodes_that_hang_are_listed_with_their_calls(login, sabotage):
    sabotage(NEVER_JOINS)
    options = ("--set", "plan.reduction=all-reduce", "--set", "launch.hang_after=2s")
    options += ("--set", f"launch.launcher={launcher.find().path}")
    results = login.run(login.weak, "--only", "ranks == 2", *options, code=1)
    (row,) = results.rows("cases")
    assert row["status"] == "hung"
    assert "rank 0 in all_reduce over dp" in row["reason"]
    assert "late: time.sleep(1000)" in row["reason"]
    assert len(login.events("submitted")) == 1, "what hangs is not tried again"


def test_a_study_of_one_line_is_submitted_and_one_launch_of_each_size_is_watched(login):
    shutil.copy(ROOT / "tests" / "watch" / "programs" / "mine.py", login.folder)
    fields = ("repeat=1", "launch.ranks_per_node=1", "launch.time_limit=10m", "n=400,800")
    settings = [word for field in fields for word in ("--set", field)]
    figures = ("--step-time", r"Total time: (\S+) s", "--metric", r"gflops=GFLOP/s: (\S+)")
    figures += ("--metric", "error=@result.json:norm.l2")
    options = ("--ranks", "1,2", "--weak", *settings, *figures, "--reports", login.reports, "--no-report")
    done = login.call("scale", *options, "--", sys.executable, "mine.py", "{n * ranks}")
    left = login.newest(done.stdout + done.stderr)
    assert sorted((row["status"], row["ranks"], row["step_s"]) for row in left.rows("cases")) == [
        *[("ok", ranks, time_s) for ranks in (1, 2) for time_s in (400.0, 800.0)],
        *[("watched", ranks, None) for ranks in (1, 2) for _ in (400, 800)],
    ]
    figures = {(row["figure"], row["value"]) for row in left.rows("figures")}
    assert figures >= {("gflops", 2.5), ("gflops", 5.0), ("error", 0.125)}
    assert {row["ranks"] for row in left.rows("cases") if row["status"] == "ok"} == {1, 2}
    counted = {(row["repeat"], row["rank"]) for row in left.rows("calls") if row["count"]}
    assert counted == {(0, 0), (0, 1)}, "one launch of each size is watched"


JOB = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2")


def test_sizes_of_a_study_are_those_of_the_partition_or_of_the_job(login):
    ranks = []
    for name, before in (("partition.yaml", ()), ("job.yaml", JOB)):
        study = login.command("scale", "--save", name, "/bin/true")
        subprocess.run((*before, *study), cwd=login.folder, check=True, timeout=LIMIT_S)
        ranks.append(yaml.safe_load((login.folder / name).read_text())["sweep"]["ranks"])
    assert ranks == [[1, 2, 4, 8], [1, 2, 4]]
    refused = login.call("scale", "--ranks", "4,16", "/bin/true", code=3)
    assert "16 ranks do not fit: " in refused.stderr
    assert "--ranks 4 leaves them out" in refused.stderr


BUILT = """
name: built
scaling: strong
workload:
  command: "./made-{n} {n}"
  build: "/bin/sh {here}/build.sh {n}"
sweep: {n: [1, 2], ranks: [1, 2]}
repeat: 1
launch: {check_ranks: false, ranks_per_node: 1, time_limit: 10m}
"""


@pytest.mark.parametrize("before", [(), JOB], ids=["submitted", "in a job"])
def test_a_program_is_built_once_before_its_launches_in_jobs(login, before):
    (login.folder / "build.sh").write_text("ln -s /bin/echo made-$1; echo $1 >> builds; exit $(($1 - 1))")
    run = login.command("run", login.suite(BUILT), "--reports", login.reports, "--no-report")
    run_program((*before, *run), code=1)
    assert (login.folder / "builds").read_text().split() == ["1", "2"]
    rows = {(row["label"], row["status"], row["reason"]) for row in login.newest().rows("cases")}
    assert rows == {
        *((f"{size} · n 1", "ok", "") for size in ("1 rank", "2 ranks")),
        *((f"{size} · n 2", "failed", "the build failed, exit code 1") for size in ("1 rank", "2 ranks")),
    }


def test_a_launch_in_a_step_that_holds_the_cores_of_its_job_is_refused_with_what_helps(login):
    step = ("srun", "--ntasks=1", "--cpus-per-task=2", *login.command("run", login.weak, *ONE_NODE))
    for launch in (launcher.find().path, "srun"):
        options = ("--set", f"launch.launcher={launch}", "--new", "--reports", login.reports, "--no-report")
        done = run_program((*step, *options), code=4)
        assert re.search(r"step \d+\.0, in which pscale runs, .* `export SLURM_OVERLAP=1` first", done.stderr)
        run_program((*step, *options), env={**os.environ, "SLURM_OVERLAP": "1"})
    assert [record["status"] for record in login.events("ended")] == ["ok"] * 2


DEMANDS = """
function slurm_job_submit(job, partitions, user)
  if job.account == nil then slurm.log_user("name an account") return slurm.ERROR end
  if job.qos == nil then return 2066 end  -- Slurm's own words
  if job.features == nil then slurm.log_user("choose the nodes by a constraint") return slurm.ERROR end
  if job.min_mem_per_node == nil then return 2044 end
  return slurm.SUCCESS
end
function slurm_job_modify(job, new, partitions, user) return slurm.SUCCESS end
"""


def test_what_a_site_demands_is_told_with_the_field_that_says_it(login, cluster):
    script = cluster / "job_submit.lua"
    lenient, options = script.read_text(), [*ONE_NODE]
    script.write_text(DEMANDS)
    try:
        for field in ("account: a", "qos: q", "constraint: fast", 'directives: ["--mem=100"]'):
            name, _, value = field.partition(": ")
            refused = login.call("run", login.weak, "--reports", login.reports, *options, code=4)
            assert f"sets `launch.{name}" in refused.stderr
            options += ["--set", f"launch.{name}={value}"]
        results = login.run(login.weak, *options)
    finally:
        script.write_text(lenient)
    assert [row["status"] for row in results.rows("cases")] == ["ok"]


def test_a_job_that_gives_way_to_another_is_done_again_and_counts_once(login, sabotage):
    free = sabotage(HELD.replace("order.case.ranks == 4 and ", ""), ".free")
    waiting = login.start(*ONE_NODE)
    job = login.job_at_work()
    urgent = ("sbatch", "--partition=urgent", "--nodes=4", "--exclusive", "--wait", "--output=/dev/null")
    slurm(*urgent, "--wrap=true")
    wait_for(lambda: len(login.events("launched")) == 2)
    assert login.events("settled")[0]["ending"] == "preempted"
    again = login.events("submitted")[-1]["id"]
    assert again != job
    slurm("scontrol", "update", f"jobid={again}", "requeue=1")
    slurm("scontrol", "requeue", again)  # as an administrator may

    def is_back():  # without the two minutes that a job waits once it is pending again
        run_program(("scontrol", "update", f"jobid={again}", "StartTime=now"), code=None)
        return len(login.events("launched")) == 3

    wait_for(is_back, every_s=1)
    free.touch()
    output, _ = waiting.communicate()
    assert waiting.returncode == 0, output
    assert len(login.events("submitted")) == 2
    assert [record["status"] for record in login.events("ended")] == ["ok"]
    assert [row["status"] for row in login.newest().rows("cases")] == ["ok"]


def test_a_controller_that_does_not_answer_costs_a_bounded_wait_and_no_job(login, cluster, sabotage):
    controller = psutil.Process(int((cluster / "slurmctld.pid").read_text()))
    held = HELD.replace("order.case.ranks == 4 and ", "")
    free = sabotage(DEAF.format(controller=controller.pid) + held, ".free")
    waiting = login.start(*ONE_NODE)
    wait_for(lambda: login.events("launched"))  # the job that was submitted to deaf ears
    wait_for(lambda: login.events("submitted"))
    free.with_suffix(".deaf").touch()
    controller.suspend()
    try:
        assert "squeue did not answer in 3 s; what the jobs do is not known: ask again" in login.say("status")
        assert [job["state"] for job in login.status()["jobs"]] == ["unknown"]
        failed = login.call("cancel", "--reports", login.reports, code=4)
        assert "not known which jobs were cancelled: `pscale cancel` again" in failed.stderr
        failed = login.call("run", login.weak, "--reports", login.reports, "--new", code=4)
        assert "did not answer in 3 s; try again when it answers" in failed.stderr
    finally:
        controller.resume()
    free.touch()
    output, _ = waiting.communicate()
    assert waiting.returncode == 0, output
    assert "did not answer in 3 s; the next query shows whether the job was submitted" in output
    assert [record["status"] for record in login.events("ended")] == ["ok"]
    assert len(login.events("launched")) == 1


def word(path):
    """Write a path as one word for make, and for the shell behind it."""
    return shlex.quote(str(path)).replace("$", "$$")


@pytest.mark.skipif(not (ROOT / ".venv" / "installed").exists(), reason="`make scaling` would install first")
def test_make_scaling_submits_and_reports(login):
    suites, options = word(login.weak), f"--only 'ranks == 2' --reports {word(login.reports)}"
    subprocess.run(
        ["make", "-C", ROOT, "scaling", f"SUITES={suites}", f"RUN={options}"], timeout=LIMIT_S, check=True
    )
    assert len(login.events("submitted")) == 1
    assert [row["status"] for row in login.newest().rows("cases")] == ["ok"]
    assert (login.newest().folder / "report.md").exists()
