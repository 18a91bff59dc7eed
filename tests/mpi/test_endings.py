"""Whatever ends a job, the suite goes on, the reason is told, and what is finished is kept."""

import json
import signal
import sys

import pytest
from patience import LIMIT_S, wait_for
from whole_runs import NEVER_JOINS, start

from pscale.runs.store import read_table

pytestmark = pytest.mark.slow

SABOTAGE = """
import os
rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
if rank == "1":
    import pscale.nn.loss
    def fail(*_):
        raise ValueError("a wrong turn")
    pscale.nn.loss.CrossEntropy.forward = fail
"""

LEAVES = """
import os
rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
if rank == "0":
    print("too early", file=os.sys.stderr, flush=True)
    {}
"""

# The first launch ends; those after it, until there is a certain file, do not.
ONE_ENDS = """
import os
if {"PMI_RANK", "OMPI_COMM_WORLD_RANK"} & os.environ.keys():
    import time
    import pscale.worker.job as job
    run = job.run
    def held(order, *arguments):
        while order.repeat and not os.path.exists(__file__ + ".free"):
            time.sleep(0.01)
        return run(order, *arguments)
    job.run = held
"""


def test_a_rank_that_dies_of_an_error_is_quoted_and_the_suite_continues(cli, tiny, sitecustomize):
    sitecustomize(SABOTAGE)
    results = cli.run(tiny, code=1)
    endings = {row["ranks"]: row["status"] for row in results.cases.values()}
    assert endings == {1: "ok", 2: "failed", 4: "failed"}
    reason = next(row["reason"] for row in results.cases.values() if row["ranks"] == 2)
    assert "rank 1" in reason
    assert "ValueError: a wrong turn" in reason
    assert "a wrong turn" in results.output
    assert f"report it with: pscale report '{results.folder}'" in results.output
    assert not (results.folder / "report.md").exists()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("os._exit(0)", "too early"),
        ("os._exit(3)", "too early"),
        ("os.kill(os.getpid(), 2)", "KeyboardInterrupt"),
        ("import signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)", "SIGINT"),
    ],
)
def test_a_rank_that_ends_before_it_has_met_the_others_ends_the_launch_with_its_reason(
    cli, tiny, sitecustomize, how, reason
):
    sitecustomize(LEAVES.format(how))
    (row,) = cli.run(tiny, "--only", "ranks == 2", code=1).cases.values()
    assert row["status"] == "failed"
    assert reason in row["reason"]


WORKLOAD = """
name: early
scaling: strong
workload: {{command: "'{python}' {{here}}/early.py", step_time: wall, watch: {watch}}}
sweep: {{ranks: [2]}}
repeat: 1
launch: {{oversubscribe: true}}
"""
RANK = """
import os, pathlib, sys, time
rank, file = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")), pathlib.Path({file!r})
"""
MEET = """
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""
# The others call MPI_Init when rank 1 is gone: if it ends later, Open MPI ends the others by itself.
EARLY = f"""{RANK}
if rank == "1":
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    {{how}}
while not file.exists() or os.path.exists("/proc/" + file.read_text()):
    time.sleep(0.01)
{MEET}"""
# Rank 1 ends while the others are in MPI_Init: MPICH lets them wait, Open MPI ends them.
LATE = f"""{RANK}
if rank == "1":
    while not file.exists():
        time.sleep(0.01)
    time.sleep(3)
    {{how}}
file.touch()
{MEET}"""
ALONE = """
import os, subprocess, sys, time
rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
if rank == "0":
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PM", "OMPI_COMM"))}
    starts_slowly = "import time; time.sleep(6); import mpi4py.MPI; print('ok')"
    subprocess.run([sys.executable, "-c", starts_slowly], env=alone, check=True)
"""


def test_a_rank_without_mpi_that_ends_early_ends_nothing(watch):
    assert "ok" in watch(2, sys.executable, "-c", ALONE).output


def test_a_watched_rank_that_ends_before_init_ends_the_program_and_is_named(watch, tmp_path):
    early = EARLY.format(how="os._exit(0)", file=str(tmp_path / "rank"))
    results = watch(2, sys.executable, "-c", early, code=1)
    said = " ".join(results.output.split())
    assert "The program was ended: rank 1 ended before MPI_Init, in which the others wait" in said
    assert [row["status"] for row in results.rows("cases")] == ["failed"]


@pytest.mark.parametrize("watched", ["true", "false"])
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (EARLY, "rank 1 ended with exit code 0 before MPI_Init, in which the others wait"),
        (LATE, "rank 1 ended"),
    ],
    ids=["before", "while others are in it"],
)
def test_a_rank_of_a_workload_that_never_initialises_fails_the_case_and_is_named(
    cli, watched, program, reason
):
    (cli.folder / "early.py").write_text(program.format(how="sys.exit(0)", file=str(cli.folder / "rank")))
    suite = cli.suite(WORKLOAD.format(python=sys.executable, watch=watched))
    (row,) = cli.run(suite, code=1).cases.values()
    assert row["status"] == "failed"
    assert row["reason"].startswith(reason)


def test_ranks_that_wait_for_one_that_never_joins_are_reported_as_hung_with_the_call_of_each(
    cli, tiny, sitecustomize
):
    sitecustomize(NEVER_JOINS)
    options = ("--set", "plan.reduction=all-reduce", "--set", "launch.hang_after=1s")
    results = cli.run(tiny, "--only", "ranks == 2", *options, code=1)
    row = next(iter(results.cases.values()))
    assert row["status"] == "hung"
    assert "rank 0 in all_reduce over dp (step 4, sync), rank 1 missing" in row["reason"]
    assert "late: time.sleep(1000)" in row["reason"]
    (evidence,) = results.folder.glob("cases/*/hang-*.jsonl")
    ranks = {report["rank"]: report for report in map(json.loads, evidence.read_text().splitlines())}
    assert ranks[0]["last_call"] == {"step": 3, "axis": "dp", "verb": "all_reduce"}
    assert any("all_reduce" in line for line in ranks[0]["stack"])


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_continues_with_the_rest(cli, tiny, sitecustomize):
    sitecustomize(ONE_ENDS)
    options = ("--set", "sweep.ranks=[2]", "--set", "repeat=3")
    process = start(cli, tiny, *options)
    wait_for(lambda: any('"ended"' in path.read_text() for path in cli.reports.glob("*/*/journal.jsonl")))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, output
    assert "continue with" in output
    folder = cli.newest().folder
    kept = {path: path.stat().st_mtime_ns for path in (folder / "data").glob("cases-*.parquet")}
    assert len(kept) == 1

    (cli.folder / "sitecustomize.py.free").touch()
    results = cli.run(tiny, *options)
    assert results.folder == folder
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    rows = read_table(folder / "data", "cases").to_pylist()
    assert sorted(row["repeat"] for row in rows) == [0, 1, 2]


def test_singletons_instead_of_one_world_are_invalid_and_say_what_is_wrong(cli, tiny):
    script, launcher = cli.folder / "launcher.py", cli.folder / "mpiexec"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$(dirname "$0")/launcher.py" "$@"\n')
    script.write_text(
        "import subprocess, sys\n"
        "if '--version' in sys.argv: print('HYDRA build details:\\n    Version: 4.0'); sys.exit()\n"
        f"command = sys.argv[sys.argv.index({sys.executable!r}):]\n"
        "ranks = [subprocess.Popen(command) for _ in range(2)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    )
    launcher.chmod(0o755)
    results = cli.run(tiny, "--only", "ranks == 2", "--set", f"launch.launcher={launcher}", code=1)
    row = next(iter(results.cases.values()))
    assert row["status"] == "invalid"
    assert "asked for one world of 2 ranks" in row["reason"]
    assert row["step_s"] is None
