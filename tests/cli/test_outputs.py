"""Standard output and error that are full, closed, or no longer read: a run ends well all the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from noop_runs import make_suite

from pscale.runs.journal import Journal

pytestmark = pytest.mark.slow

RUN = "run noop.yaml --no-report"


@pytest.fixture
def pscale(tmp_path):
    """Run the command line behind redirections of a shell; return its exit code and what it could write."""
    make_suite(tmp_path)

    def call(arguments, redirections):
        line = f'"{sys.executable}" -m pscale {arguments} {redirections}'
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, done.stdout, done.stderr

    return call


def is_complete(folder: Path) -> bool:
    (run,) = folder.glob("reports/noop/*")
    return Journal.open(run).is_finished()


@pytest.mark.parametrize(
    ("redirections", "reason"),
    [
        (">/dev/full", "pscale: cannot write to stdout: No space left on device\n"),
        (">&-", "pscale: cannot write to stdout: it is closed\n"),
    ],
)
def test_output_that_is_lost_is_reported_on_standard_error_with_exit_code_1(pscale, redirections, reason):
    assert pscale("schema", redirections) == (1, "", reason)


@pytest.mark.parametrize(
    ("redirections", "reason"),
    [("2>/dev/full", "No space left on device"), ("2>&-", "it is closed")],
)
def test_a_run_whose_messages_are_lost_runs_to_its_end(pscale, tmp_path, redirections, reason):
    code, out, _ = pscale(RUN, redirections)
    assert (code, out) == (1, f"pscale: cannot write to stderr: {reason}\n")
    assert is_complete(tmp_path)


def test_a_run_without_any_output_runs_to_its_end(pscale, tmp_path):
    assert pscale(RUN, ">/dev/full 2>&1") == (1, "", "")
    assert is_complete(tmp_path)


@pytest.mark.parametrize("arguments", ["schema", "--help"])
def test_a_reader_that_has_read_enough_is_no_error(pscale, arguments):
    assert pscale(arguments, "| true") == (0, "", "")


def test_a_run_whose_reader_is_gone_runs_to_its_end(pscale, tmp_path):
    assert pscale(RUN, "2>&1 | true") == (0, "", "")
    assert is_complete(tmp_path)


def test_a_mistake_keeps_its_exit_code_when_its_message_is_lost(pscale):
    assert pscale("show none.yaml", "2>/dev/full")[0] == 2


LOST = """
import sys, time, weakref
from pscale.cli import app, main
def interrupted(_):
    raise KeyboardInterrupt
def run():
    note = weakref.ref(held := type("Held", (), {})(), interrupted)
    del held
    time.sleep(60)
    return 0
app.main = run
main()
"""


def test_an_interrupt_that_python_drops_in_a_callback_ends_the_command_line_all_the_same():
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


NO_RIGHTS = "setpriv --inh-caps=-all --bounding-set=-all"
LOCKED = 'mkdir -p home; chmod 000 home; export HOME="$PWD/home"; unset XDG_CONFIG_HOME XDG_CACHE_HOME'
SURROUNDINGS = {  # what a shell does before and around a command, its exit code, what is on standard error
    "an unreadable home": (LOCKED, NO_RIGHTS, "show noop.yaml", 2, "/home/.config/pscale/sites.yaml: Perm"),
    "a cache that Matplotlib cannot write": (
        f"{LOCKED}; export XDG_CONFIG_HOME=$OLDPWD",
        NO_RIGHTS,
        "report",
        0,
        "",
    ),
    "a removed folder": (
        'mkdir gone; cd gone; rmdir "$PWD"',
        "",
        'run "$OLDPWD/noop.yaml" --set "launch.launcher=$OLDPWD/mpiexec"',
        2,
        "/gone, the current folder: No such",
    ),
    "no columns": ("export COLUMNS=0", "", "show noop.yaml", 0, ""),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_surroundings_that_lack_something_cost_no_traceback_and_make_no_noise(pscale, tmp_path, name):
    before, around, arguments, code, said = SURROUNDINGS[name]
    if around and (os.geteuid() or not shutil.which("setpriv")):
        pytest.skip("needs root and setpriv")
    if arguments == "report":
        pscale(RUN, "")
    line = f"{before}; {around} '{sys.executable}' -m pscale {arguments}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == code, done.stderr
    assert (said in done.stderr) if said else done.stderr == ""
    assert len(done.stderr.splitlines()) == bool(said)
    assert bool(done.stdout) == (code == 0)
