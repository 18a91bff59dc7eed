"""Completion as shells drive it: the script that they load, and the protocol that it speaks."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from synthetic import Point, write_run

from pscale.suite import shipped

pytestmark = pytest.mark.slow

POINTS = [Point(ranks=1), Point(ranks=2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a suite, a run, and a command called pscale."""
    root = tmp_path_factory.mktemp("completed")
    (root / "kept").mkdir()
    (root / "kept" / "weak.yaml").write_text("name: weak")
    (root / "own.yaml").write_text("name: own")
    write_run(root / "reports" / "weak" / "first", POINTS, repeats=1, steps=2)
    (root / "bin").mkdir()
    command = root / "bin" / "pscale"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pscale "$@"\n')
    command.chmod(0o755)
    return root


def call(folder, *command, **variables):
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


def offered(folder, line):
    """Return what fish would be offered behind a line; a value a line, help behind a tab."""
    spoken = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": line}
    said = call(folder, "pscale", _PSCALE_COMPLETE="complete_fish", **spoken)
    return [word.split("\t")[0] for word in said.splitlines()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pscale ch", ["check"]),
        ("pscale run ", ["own.yaml", *shipped.suites()]),
        ("pscale init we", ["weak"]),
        ("pscale show kept/", ["kept/weak.yaml"]),
        ("pscale report ", ["weak", "reports/weak/first"]),
        ("pscale check reports/w", ["reports/weak/first"]),
        ("pscale compare reports/weak/first ", ["weak", "reports/weak/first"]),
        ("pscale run own.yaml --set model.wi", ["model.width="]),
        ("pscale run own.yaml --only widt", ["width"]),
        ("pscale check --refer", ["--reference"]),
        ("pscale run nowhere/", []),
    ],
)
def test_a_word_is_completed_to_what_there_is(folder, line, words):
    found = offered(folder, line)
    assert [word for word in found if word and not word.endswith("/")] == words


def test_cases_are_completed_to_the_ids_of_the_run_with_their_labels(folder, monkeypatch):
    from pscale.cli import options as complete  # noqa: PLC0415

    monkeypatch.chdir(folder)

    class Context:
        params = {"path": None, "reports": None}  # noqa: RUF012

    found = complete.cases(Context(), "")
    assert found == [(point.case.id, point.case.label) for point in POINTS]
    Context.params = {"path": "reports/weak/nothing", "reports": None}
    assert complete.cases(Context(), "") == []


def test_bash_completes_with_the_script_that_it_is_given(folder):
    """The script is loaded and its function called as bash does when somebody presses the tabulator."""
    drive = """
        source <(pscale --show-completion)
        COMP_WORDS=(pscale report reports/w); COMP_CWORD=2
        _pscale_completion pscale
        printf '%s\n' "${COMPREPLY[@]}"
        complete -p pscale
    """
    said = call(folder, "bash", "--norc", "-c", drive).splitlines()
    assert said[0] == "reports/weak/first"
    assert "-F _pscale_completion pscale" in said[-1]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_that_calls_back_with_their_protocol(folder, shell):
    script = call(folder, "pscale", _PSCALE_COMPLETE=f"source_{shell}")
    assert f"_PSCALE_COMPLETE=complete_{shell}" in script
    if shell == "zsh":
        said = call(folder, "pscale", _PSCALE_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="pscale ch")
        assert said.startswith("_arguments")
        assert '"check"' in said
    if shutil.which(shell):
        assert call(folder, shell, "-n", "-c", script) == ""
