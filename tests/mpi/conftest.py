import os
import shutil
import subprocess
from pathlib import Path

import pytest
from whole_runs import TINY, Cli

PROGRAMS = Path(__file__).parent.parent / "watch" / "programs"

PLANS = """
name: plans
scaling: strong
model: {kind: gpt, layers: 4, width: 32, heads: 4, sequence: 32, vocabulary: 257}
data: {kind: synthetic}
train: {batch: 8, micro_batches: 2, steps: 4, warmup: 1}
ranks: 4
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0, trace: true}
launch: {oversubscribe: true, time_limit: 10m}
sweep:
  cases:
  - {reduction: gather-broadcast}
  - {dp: 2, tp: 2, sp: true, zero: 3}
  - {cp: 4}
  - {pp: 4, schedule: zero-bubble, micro_batches: 4}
  - {pp: 2, schedule: interleaved, virtual_stages: 2, dp: 2, zero: 1, offload: optimizer}
"""


@pytest.fixture
def cli(tmp_path):
    folder = tmp_path / "a folder with $(touch pwned) 'quotes'"
    folder.mkdir()
    return Cli(folder)


@pytest.fixture
def tiny(cli):
    return cli.suite(TINY)


@pytest.fixture
def sitecustomize(cli, monkeypatch):
    """Return a function that lets every Python of a launch begin with a program."""
    monkeypatch.setenv("PYTHONPATH", str(cli.folder), prepend=os.pathsep)
    return (cli.folder / "sitecustomize.py").write_text


@pytest.fixture(scope="session")
def plans(tmp_path_factory):
    """A traced run of plans that between them make every kind of call."""
    cli = Cli(tmp_path_factory.mktemp("plans"))
    return cli.run(cli.suite(PLANS), report=True)


@pytest.fixture
def watch(cli):
    """Return a function that watches a program and returns what it left; the exit code `None` is any."""

    def run(ranks, *words, options=(), code=0):
        usual = ("-n", ranks, *options, "--no-report", "--reports", cli.reports)
        done = cli.call("watch", *usual, "--", *words, code=code)
        return cli.newest(done.stdout + done.stderr)

    return run


@pytest.fixture
def compiled(compilers, tmp_path):
    """Return a function that compiles a program of the tests."""

    def compile_(compiler, name="calls.c", *flags):
        if not (compilers / compiler).exists() or not shutil.which("cc"):
            pytest.skip(f"there is no {compiler}")
        program = tmp_path / name.partition(".")[0]
        subprocess.run([compilers / compiler, "-pthread", *flags, "-o", program, PROGRAMS / name], check=True)
        return program

    return compile_
