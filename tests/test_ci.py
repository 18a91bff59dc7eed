"""The action for GitHub and the template for GitLab: their shape, and their scripts as a server runs them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from patience import run_program
from synthetic import Point, write_run

FOLDER = Path(__file__).parents[1] / "packaging" / "github-action"
QUIET = {"launch_noise": 0.003}
RUN = """#!/bin/sh
[ "$1" = run ] || exec "{python}" -m pscale "$@"
while [ "$1" != --reports ]; do shift; done
mkdir -p "$2" && cp -r "{stored}" "$2/synthetic"
"""


def git(folder, *words):
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def measure(folder, path=Path(sys.executable).parent, **variables):
    known = {"PATH": f"{path}:{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    given = {f"PSCALE_{name}": str(value) for name, value in variables.items()}
    server = {"GITHUB_STEP_SUMMARY": str(folder / "step.md"), "GITHUB_OUTPUT": str(folder / "outputs")}
    ended = run_program([FOLDER / "measure.sh"], code=None, cwd=folder, env=known | server | given)
    return ended.returncode, ended.stderr


def test_the_action_has_what_github_asks_of_a_composite_one():
    action = yaml.safe_load((FOLDER / "action.yml").read_text())
    assert {"name", "description", "inputs", "outputs", "runs"} <= action.keys()
    assert action["runs"].keys() == {"using", "steps"}
    assert action["runs"]["using"] == "composite"
    for named in (*action["inputs"].values(), *action["outputs"].values()):
        assert named["description"]
        assert named.keys() <= {"description", "default", "required", "value"}
    for step in action["runs"]["steps"]:
        assert step.keys() <= {"name", "id", "if", "shell", "run", "env", "uses", "with"}
        assert ("uses" in step) != ("run" in step and "shell" in step)
        assert "${{" not in step.get("run", ""), "a value inside a script would be run"
    used = re.findall(r"inputs\.([\w-]+)", (FOLDER / "action.yml").read_text())
    assert {*used} == {*action["inputs"]}


def test_the_variables_of_the_action_are_those_of_its_scripts():
    for name, script in (("install", "install.sh"), ("measure", "measure.sh")):
        steps = yaml.safe_load((FOLDER / "action.yml").read_text())["runs"]["steps"]
        (step,) = [step for step in steps if f"/{script}" in step.get("run", "")]
        content = (FOLDER / script).read_text()
        assert os.access(FOLDER / script, os.X_OK), name
        assert {*step["env"]} == {*re.findall(r"PSCALE_\w+", content)}
        assert subprocess.run(["sh", "-n", FOLDER / script], check=True)


def test_the_template_for_gitlab_has_keys_of_a_job_and_calls_the_same_scripts():
    (job,) = yaml.safe_load((FOLDER / "gitlab-ci.yml").read_text()).values()
    assert job.keys() <= {"image", "variables", "before_script", "script", "artifacts"}
    assert job["artifacts"].keys() <= {"when", "expose_as", "paths", "reports"}
    for line in (*job["before_script"], *job["script"]):
        for script in re.findall(r"packaging/github-action/(\S+)", line):
            assert (FOLDER / script).is_file()
    assert job["artifacts"]["reports"] == {"junit": f"{job['variables']['PSCALE_OUT']}/junit.xml"}


def test_the_action_installs_the_version_that_it_is_of_with_mpich(tmp_path):
    folder, programs = tmp_path / "a copy" / "packaging" / "github-action", tmp_path / "bin"
    shutil.copytree(FOLDER, folder)
    programs.mkdir()
    for name, script in (("python", 'printf "%s\\n" "$@"'), ("pscale", "exit 1")):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environ = {"PATH": str(programs)}
    done = run_program([folder / "install.sh"], env=environ)
    assert done.stdout.splitlines() == ["-m", "pip", "install", "--quiet", f"{tmp_path}/a copy[mpich]"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "got neither"),
        ({"SUITE": "weak", "COMMAND": "{tree}/mine"}, "got both"),
        ({"COMMAND": "./mine 800"}, "expected such as '{tree}/mine 800'"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, variables, said):
    code, error = measure(tmp_path, **variables)
    assert (code, said in error) == (2, True)


@pytest.mark.slow
def test_a_program_is_compared_with_another_commit_by_launches_in_pairs(tmp_path):
    program = tmp_path / "mine"
    git(tmp_path, "init", "-q")
    for seconds in ("0.02", "0.2"):
        program.write_text(f"#!/bin/sh\nsleep {seconds}\n")
        program.chmod(0o755)
        git(tmp_path, "add", "mine")
        git(tmp_path, "commit", "-qm", seconds)
    options = {"COMMAND": "{tree}/mine", "RANKS": "1", "BASELINE": "HEAD~1", "FAIL_IF": "slower:20%"}
    code, error = measure(tmp_path, **options, BUDGET="2s", BUILD="touch built")
    assert code == 1, error
    summary = (tmp_path / "step.md").read_text()
    assert summary.startswith("**FAILED: Step times of B against A, 1 case: 1 slower.**")
    assert "tree head: slower by" in summary
    assert "nothing to check" not in summary
    out = tmp_path / "pscale-ci"
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert ElementTree.parse(out / "junit.xml").getroot().get("failures") == "0"
    assert (tmp_path / "outputs").read_text().startswith(f"run={out}/runs/ci/")
    assert not (out / "base").exists(), "the other commit is left in its place only while it is measured"


@pytest.mark.slow
@pytest.mark.parametrize(("least", "code"), [(0.5, 0), (0.99, 1)])
def test_a_suite_is_compared_with_a_stored_run_and_held_against_what_it_expects(tmp_path, least, code):
    points = [Point(ranks=1, **QUIET), Point(ranks=2, transfer_s=0.02, **QUIET)]
    write_run(tmp_path / "before" / "run", points, repeats=8)
    expect = [{"metric": "efficiency", "at_least": least}]
    write_run(tmp_path / "stored" / "run", points, repeats=8, seed=2, expect=expect)
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "pscale"
    fake.write_text(RUN.format(python=sys.executable, stored=tmp_path / "stored"))
    fake.chmod(0o755)
    ended, error = measure(tmp_path, fake.parent, SUITE="synthetic", BASELINE=tmp_path / "before" / "run")
    assert ended == code, error
    summary = (tmp_path / "step.md").read_text()
    assert summary.startswith("**passed: Step times of B against A, 2 cases: 2 not different.**")
    assert ("* dp 2 ranks: efficiency ≥ 0.99: falls short" in summary) == bool(code)
