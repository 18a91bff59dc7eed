"""A process that pscale waits for: how it ends, and that it does not outlive the one that waits."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from patience import lives, wait_for

from pscale.launch import isolated_process


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Put a program where it can be run by the name `part`."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def write(text):
        (tmp_path / "part.py").write_text(text)
        return "part"

    return write


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", -15)])
def test_the_end_of_a_part_is_reported(module, tmp_path, ending, code):
    assert isolated_process.run(module(f"import os, sys; {ending}"), tmp_path, {}).code == code


def test_the_environment_of_this_process_has_the_last_word(module, tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "3")
    name = module("import os, sys; sys.exit(int(os.environ['MINE']) + int(os.environ['OTHER']))")
    assert isolated_process.run(name, tmp_path, {"MINE": "1", "OTHER": "10"}).code == 13


def test_a_part_ends_when_the_one_that_waits_for_it_is_killed(module, tmp_path):
    name = module(
        "import os, sys, time; from pathlib import Path; from pscale.launch import isolated_process\n"
        "isolated_process.end_with_parent()\n"
        "(Path(sys.argv[1]) / 'draft').write_text(str(os.getpid()))\n"
        "(Path(sys.argv[1]) / 'draft').rename(Path(sys.argv[1]) / 'pid')\n"
        "time.sleep(1000)"
    )
    imports = "from pathlib import Path; from pscale.launch import isolated_process"
    waits = f"{imports}; isolated_process.run({name!r}, Path.cwd(), {{}})"
    parent = subprocess.Popen([sys.executable, "-c", waits], cwd=tmp_path)
    told = tmp_path / "pid"
    part = psutil.Process(int(wait_for(lambda: told.exists() and told.read_text())))
    parent.send_signal(signal.SIGKILL)
    assert parent.wait() == -signal.SIGKILL
    wait_for(lambda: not lives(part))
