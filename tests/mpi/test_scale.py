"""A scaling study from one command line: timed, and watched apart from the timing."""

import json
import re
import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from whole_runs import Cli

PROGRAMS = Path(__file__).parent.parent / "watch" / "programs"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    shutil.copy(PROGRAMS / "work.py", folder)
    return Cli(folder)


def study(here, *words, options=(), code=0):
    """Run a study of two sizes and return what it left."""
    usual = ("--oversubscribe", "--no-report", "--reports", here.reports)
    here.call("scale", *usual, *options, "--", *words, code=code)
    return here.newest()


SIZES = {  # ranks and sizes of the program, by an option of the line
    "--weak": [(1, 800), (2, 1600)],
    "--step-time": [(1, 400), (1, 800), (2, 400), (2, 800)],
    "--metric": [(1, 100), (2, 100)],
}


def example_lines():
    """Return the command lines with which the manual begins, as words."""
    page = (Path(__file__).parents[2] / "docs" / "any-program.md").read_text()
    return [
        shlex.split(line, comments=True)[2:] for line in page.splitlines() if line.startswith("pscale scale")
    ]


@pytest.mark.parametrize("words", example_lines(), ids=" ".join)
def test_every_line_of_the_manual_measures_each_of_its_sizes_and_watches_it_once(here, words):
    shutil.copy(PROGRAMS / "mine.py", here.folder)
    program = here.folder / "mine"  # no line of an interpreter, whose path may have a space
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$0.py" "$@"\n')
    program.chmod(0o755)
    at = words.index("--")
    options, program = [word for word in words[:at] if word != "--quick"], words[at + 1 :]
    if program[0] == "python":
        program[0] = sys.executable
    options += ["--ranks", "1,2", "--set", "repeat=1"]
    if "--save" in options:
        here.call("scale", *options, "--oversubscribe", "--", *program)
        left = here.run("mine.yaml")
    else:
        left = study(here, *program, options=options)
    sizes = next((SIZES[word] for word in options if word in SIZES), [(1, 800), (2, 800)])
    logs = [path.read_text() for path in left.folder.glob("cases/*/stdout.log")]
    said = [tuple(map(int, re.match(r"size (\d+) on (\d+)", log).groups()[::-1])) for log in logs]
    assert sorted(said) == sorted(2 * sizes), "one launch that counts, and one that is watched"
    assert Counter(row["status"] for row in left.rows("cases")) == {"ok": len(sizes), "watched": len(sizes)}
    steps_s = {row["step_s"] for row in left.rows("cases") if row["status"] == "ok"}
    if "--step-time" in options:
        assert steps_s == {size / ranks for ranks, size in sizes}
    if "--metric" in options:
        figures = {(row["figure"], row["value"]) for row in left.rows("figures")}
        assert figures == {("gflops", 2.5), ("gflops", 5.0), ("error", 0.125)}


@pytest.fixture(scope="module")
def measured(here):
    """The study of a program that says how long its work took."""
    figures = ("--step-time", r"Total time: (\S+) ms", "--metric", "mflops=@out.json:rates.0.mflops")
    options = ("--ranks", "1,2", "--set", "ms=40", "--set", "repeat=2", *figures)
    return study(here, sys.executable, "work.py", "{ms}", options=options)


def test_one_launch_of_each_size_is_watched_and_the_others_are_timed(measured):
    rows = sorted(measured.rows("cases"), key=lambda row: (row["ranks"], row["repeat"]))
    assert [(row["ranks"], row["status"], row["step_s"]) for row in rows] == [
        *((1, "watched", None), (1, "ok", 0.04), (1, "ok", 0.04)),
        *((2, "watched", None), (2, "ok", 0.02), (2, "ok", 0.02)),
    ]
    assert {row["repeat"] for row in measured.rows("calls")} == {0}
    assert {row["repeat"] for row in measured.rows("figures")} == {1, 2}
    notes = {path.parent.name[-2:] for path in measured.folder.glob("cases/*/notes")}
    assert notes == {"-0"}, "the timed launches are those of the program alone"


def test_the_report_says_how_efficient_a_program_is_and_what_is_lost(measured, here):
    summary = json.loads(here.call("report", measured.folder, "--format", "json").stdout)
    assert [case["launches"] for case in summary["cases"]] == [2, 2]
    assert all(abs(case["efficiency"] - 1) < 1e-12 for case in summary["cases"])
    assert len(summary["lost_time"]) == 2
    assert summary["failures"] == []


def test_a_program_that_cannot_be_recorded_is_timed_and_the_report_says_so(here):
    left = study(here, "/bin/echo", "Total time: 3 s", options=("--ranks", "1", "--set", "repeat=1"))
    assert [row["status"] for row in left.rows("cases")] == ["watched", "ok"]
    notes = json.loads(here.call("report", left.folder, "--format", "json").stdout)["notes"]
    assert any("Its calls were not recorded" in note for note in notes)


def test_a_program_that_fails_ends_the_study_with_its_reason(here):
    left = study(here, "/bin/sh", "-c", "exit 7", options=("--ranks", "1", "--set", "repeat=1"), code=1)
    assert {row["status"] for row in left.rows("cases")} == {"failed"}
    assert all("exit code 7" in row["reason"] for row in left.rows("cases"))


BUILT = """
name: built
scaling: strong
workload:
  command: "./made-{n} Total time"
  build: "/bin/sh {here}/build.sh {n}"
  params: {n: 1}
  success: {regex: Total time}
sweep: {n: [1, 2, 3], ranks: [1, 2]}
repeat: 1
launch: {oversubscribe: true, check_ranks: false}
"""
BUILD = """
[ $1 = 3 ] && { echo no rule for 3 >&2; exit 4; }
ln -s /bin/echo made-$1
echo $1 >> builds
"""


def test_a_program_is_built_once_for_each_of_its_parameters_and_a_failure_is_that_of_its_cases(here):
    (here.folder / "build.sh").write_text(BUILD)
    suite = here.suite(BUILT)
    left = here.run(suite, code=1)
    assert sorted((here.folder / "builds").read_text().split()) == ["1", "2"]
    reasons = {row["label"]: (row["status"], row["reason"]) for row in left.rows("cases")}
    failed = {label for label, (status, _) in reasons.items() if status != "ok"}
    assert failed == {"1 rank · n 3", "2 ranks · n 3"}
    assert {reasons[label][1] for label in failed} == {"the build failed, exit code 4: no rule for 3"}


def test_the_launches_before_the_first_that_counts_warm_up(here):
    options = ("--ranks", "1", "--set", "repeat=1", "--warmup", "2", "--no-watch")
    left = study(here, "/bin/echo", "warm", options=options)
    assert [row["status"] for row in left.rows("cases")] == ["warm-up", "warm-up", "ok"]


RATE = """
import os, sys
ranks = int(os.environ.get("PMI_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or 1)
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
    print("GFLOP/s:", 10.0 * ranks * 0.9 ** (ranks - 1))
"""


def test_efficiency_follows_from_a_rate_of_each_core(here):
    (here.folder / "rate.py").write_text(RATE)
    options = ("--ranks", "1,2", "--set", "repeat=1", "--no-watch", "--set", "launch.check_ranks=false")
    options = (*options, "--rate", r"GFLOP/s: (\S+)")
    left = study(here, sys.executable, "rate.py", options=options)
    cases = json.loads(here.call("report", left.folder, "--format", "json").stdout)["cases"]
    assert [round(case["efficiency"], 6) for case in cases] == [1.0, 0.9]
    assert [case["step_s"] for case in cases] == pytest.approx([0.1, 1 / 18])


def test_weak_scaling_of_rounded_sizes_is_compared_by_the_work_of_each(here):
    text = "Total time: {ceil(4 * ranks ** (1/3))**3 / ranks} s"
    options = ("--ranks", "1,3", "--weak", "--set", "repeat=1", "--no-watch")
    options = (*options, "--work", "ceil(4 * ranks ** (1/3))**3", "--step-time", r"Total time: (\S+) s")
    left = study(here, "/bin/echo", text, options=(*options, "--set", "launch.check_ranks=false"))
    cases = json.loads(here.call("report", left.folder, "--format", "json").stdout)["cases"]
    assert [case["efficiency"] for case in cases] == pytest.approx([1.0, 1.0])
