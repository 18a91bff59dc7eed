"""A scaling study from one command line: timed, and watched apart from the timing."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from whole_runs import Cli, Results

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
    done = here.call("scale", *usual, *options, "--", *words, code=code)
    newest = max(here.reports.glob("*/*/run.json"), key=lambda path: path.stat().st_mtime)
    return Results(newest.parent, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def measured(here):
    """The study of a program that says how long its work took."""
    figures = ("--step-time", r"Total time: (\S+) ms", "--metric", "mflops=@out.json:rates.0.mflops")
    options = ("--ranks", "1,2", "--set", "ms=40", "--set", "repeat=2", *figures)
    return study(here, sys.executable, "work.py", "{ms}", "well", options=options)


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


def test_the_saved_suite_has_the_same_cases(measured, here):
    figures = ("--step-time", r"Total time: (\S+) ms", "--metric", "mflops=@out.json:rates.0.mflops")
    sizes = ("--oversubscribe", "--ranks", "1,2", "--set", "ms=40", "--set", "repeat=2")
    program = (sys.executable, "work.py", "{ms}", "well")
    here.call("scale", *sizes, *figures, "--save", "kept.yaml", "--", *program)
    shown = json.loads(here.call("show", "kept.yaml", "--json").stdout)
    assert [case["id"] for case in shown["cases"]] == [case["id"] for case in measured.document["cases"]]


def test_a_program_that_cannot_be_recorded_is_timed_and_the_report_says_so(here):
    left = study(here, "/bin/echo", "Total time: 3 s", options=("--ranks", "1", "--set", "repeat=1"))
    assert [row["status"] for row in left.rows("cases")] == ["watched", "ok"]
    notes = json.loads(here.call("report", left.folder, "--format", "json").stdout)["notes"]
    assert any("Its calls were not recorded" in note for note in notes)


def test_a_program_that_fails_ends_the_study_with_its_reason(here):
    left = study(here, "/bin/sh", "-c", "exit 7", options=("--ranks", "1", "--set", "repeat=1"), code=1)
    assert {row["status"] for row in left.rows("cases")} == {"failed"}
    assert all("exit code 7" in row["reason"] for row in left.rows("cases"))
