"""What is for Linux only says so, and the rest works, without /proc and what binds processes."""

import json
import os
import sys
from pathlib import Path

import pytest
from patience import run_program

from pscale.blas import forwarding
from pscale.blas.forwarding import BlasError
from pscale.errors import LaunchError
from pscale.runs.store import read_table
from pscale.watch import preload

HIDING = """
import builtins, io, os, sys

for name in ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "O_TMPFILE"):
    delattr(os, name)
WALKS = {"pathlib", "genericpath", "posixpath", "glob"}  # and other libraries know their system

def hiding(function):
    def look(path, *rest, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys/")):
            frame = sys._getframe(1)
            while frame and frame.f_globals.get("__name__", "").split(".")[0] in WALKS:
                frame = frame.f_back
            if frame and frame.f_globals.get("__name__", "").startswith("pscale"):
                raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *rest, **options)
    return look

builtins.open = io.open = hiding(io.open)
for name in ("listdir", "scandir", "stat", "lstat", "open"):
    setattr(os, name, hiding(getattr(os, name)))
"""


@pytest.fixture
def elsewhere(tmp_path):
    """Run the command line where pscale sees nothing of Linux; return standard output."""
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "sitecustomize.py").write_text(HIDING)
    package = Path(forwarding.__file__).parents[2]

    def call(*arguments):
        environ = {**os.environ, "PYTHONPATH": f"{tmp_path / 'hiding'}:{package}"}
        return run_program([sys.executable, "-m", "pscale", *arguments], cwd=tmp_path, env=environ).stdout

    return call


@pytest.mark.slow
def test_a_suite_is_checked_measured_and_reported_without_linux(elsewhere, tmp_path):
    found = {finding["topic"]: finding for finding in json.loads(elsewhere("doctor", "--json"))}
    assert found["binding"]["text"] == "ranks cannot be bound to cores: that is for Linux"
    elsewhere("run", "quick")
    assert elsewhere("report").startswith("quick")
    (data,) = (tmp_path / "reports" / "quick").glob("*/data")
    rows = read_table(data, "ranks").to_pylist()
    assert all(row["peak_rss_bytes"] > 0 and row["thread_cpu_s"] is None for row in rows)
    assert {row["cpus"] for row in rows} == {f"0-{os.cpu_count() - 1}" if os.cpu_count() > 1 else "0"}
    assert "-bind-to none" in elsewhere("run", "quick", "--new", "--dry-run")


@pytest.mark.slow
def test_state_is_offloaded_without_what_only_linux_has_of_files(elsewhere):
    small = ("--set", "model.layers=2", "--set", "model.width=96", "--set", "train.batch=4")
    proof = elsewhere("verify", "offload", "--only", "offload == 'both' and zero == 3", "--json", *small)
    assert json.loads(proof)


def test_what_only_linux_can_do_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(forwarding, "built", lambda: None)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BlasError, match=r"^NumPy can be lent another BLAS on Linux only$"):
        forwarding.path_of("openblas", {})
    with pytest.raises(LaunchError, match=r"^`pscale watch` records programs on Linux only$"):
        preload.recorder(None)
