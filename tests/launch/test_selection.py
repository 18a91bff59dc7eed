"""Inside a job the launcher is the one that makes one world: tried, and remembered."""

import json
import sys

import pytest
from noop_runs import make_launcher

from pscale.config import Launch
from pscale.errors import LaunchError
from pscale.launch import launcher, selection
from pscale.launch.machine import Machine
from pscale.launch.outcome import Outcome
from pscale.launch.scheduler.base import Allocation

INSIDE = Allocation(scheduler="slurm", job="17", nodes=2)
PMI2, PMIX = ("--mpi=pmi2",), ("--mpi=pmix",)
NODES = Machine(host="n1 and 1 more", cpu_model="c", core_cpus=((0,), (1,)), memory_bytes=1, nodes=2)
# A shell gives itself up for Python, whose path may have spaces; Python reads a text.
SRUN = """#!/bin/sh
"exec" "{python}" "-S" "$0" "$@"
import json, pathlib, sys
here = pathlib.Path(sys.argv[0]).parent
stumble = json.loads((here / "stumble").read_text())
if set(sys.argv[1:]) & stumble.keys():
    sys.exit(stumble[sys.argv[1]])
elif "--version" in sys.argv:
    print("slurm 23.02.1")
elif "--mpi=list" in sys.argv:
    print("MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n\\tpmix", file=sys.stderr)
else:
    with (here / "asked").open("a") as file:
        file.write(" ".join(sys.argv[1:]) + "\\n")
    sizes = json.loads((here / "sizes").read_text())[sys.argv[1]]
    for size in sizes or sys.exit("PMI server not found"):
        print(json.dumps({{"size": size, "ranks": []}}))
"""


@pytest.fixture
def srun(tmp_path, monkeypatch):
    """Make an srun whose worlds have the sizes that a test says for each interface; MPI is MPICH."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(SRUN.format(python=sys.executable))
    program.chmod(0o755)
    make_launcher(program.with_name("mpiexec"), "echo no ssh >&2; exit 9\n")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(launcher, "_prefixes", list)

    def answers(stumble=(), **sizes):
        (program.parent / "stumble").write_text(json.dumps(dict(stumble)))
        (program.parent / "sizes").write_text(
            json.dumps({f"--mpi={pmi}": found for pmi, found in sizes.items()})
        )
        return program.parent / "asked"

    return answers


def test_the_first_launcher_that_makes_one_world_is_taken_and_remembered(srun):
    asked = srun(pmi2=[1, 1], pmix=[2])
    found = selection.select(Launch(), INSIDE, NODES)
    assert (found.flavour, found.arguments, found.version) == ("srun", PMIX, "23.02.1")
    tried = asked.read_text().splitlines()
    assert [line.split()[0] for line in tried] == ["--mpi=pmi2", "--mpi=pmix"]
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1" in tried[0], "on two nodes, where there are two"
    assert selection.select(Launch(), INSIDE, NODES) == found
    assert len(asked.read_text().splitlines()) == 2


def test_singletons_are_an_error_that_says_how_each_launcher_failed_and_what_to_do(srun):
    srun(pmi2=[1, 1], pmix=[])
    with pytest.raises(LaunchError) as failed:
        selection.select(Launch(), INSIDE, NODES)
    text = str(failed.value)
    assert "no launcher makes one world of two ranks here" in text
    assert "--mpi=pmi2: 2 ranks are in worlds of 1, 1" in text
    assert "--mpi=pmix: exit code 1: PMI server not found" in text
    assert "mpiexec: exit code 9: no ssh" in text
    assert "launch: {launcher: ...}" in text


STUMBLES = [
    ("--version", "srun: fatal: Could not establish a configuration source"),
    ("--mpi=list", "srun: error: Unable to contact slurm controller (connect failure)"),
    ("--mpi=pmi2", "srun: error: Unable to create step for job 17: Job/step already completing or completed"),
    ("--mpi=pmi2", "srun: error: PMI2: send failed: Connection timed out"),
    ("--mpi=pmi2", "something that nobody has heard of"),
]


@pytest.mark.parametrize("stumble", STUMBLES, ids=[text for _, text in STUMBLES])
def test_what_a_scheduler_says_that_stumbles_is_not_remembered_of_its_launcher(srun, stumble):
    launcher.identify.cache_clear()
    srun([stumble], pmi2=[2], pmix=[2])
    found = selection.select(Launch(), INSIDE, NODES)
    assert (found.flavour, found.arguments) == ("srun", PMIX if stumble[0] == "--mpi=pmi2" else PMI2)
    launcher.identify.cache_clear()
    srun(pmi2=[2], pmix=[2])
    assert selection.select(Launch(), INSIDE, NODES).arguments == PMI2


def test_a_launcher_that_is_out_of_time_may_work_another_day(srun, monkeypatch):
    ended_late = Outcome(
        status="timeout", reason="no end after 60 s: PMI", wall_s=60.0, exit_code=1, started_unix_s=0.0
    )
    worlds = selection.worlds
    with monkeypatch.context() as patch:
        late = lambda command, folder: worlds(command, folder) if folder.name != "0" else ([], ended_late)  # noqa: E731
        patch.setattr(selection, "worlds", late)
        srun(pmi2=[2], pmix=[2])
        assert selection.select(Launch(), INSIDE, NODES).arguments == PMIX
    assert selection.select(Launch(), INSIDE, NODES).arguments == PMI2


def test_a_damaged_memory_is_no_memory(srun, tmp_path):
    srun(pmi2=[2], pmix=[2])
    cache = tmp_path / "cache" / "pscale" / "launchers.json"
    cache.parent.mkdir(parents=True)
    for text in ("{", "[]"):
        cache.write_text(text)
        assert selection.select(Launch(), INSIDE, NODES).arguments == PMI2
    (key,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: {"path": "x"}}))
    assert selection.select(Launch(), INSIDE, NODES).arguments == PMI2


def test_another_mpi_is_tried_anew(srun, tmp_path):
    asked = srun(pmi2=[2], pmix=[2])
    selection.select(Launch(), INSIDE, NODES)
    mpiexec = tmp_path / "bin" / "mpiexec"
    mpiexec.write_text(mpiexec.read_text().replace("Version: 0", "Version: 5.0"))
    launcher.identify.cache_clear()
    selection.select(Launch(), INSIDE, NODES)
    assert len(asked.read_text().splitlines()) == 2


def test_a_launcher_that_is_named_is_taken_as_it_is(srun, tmp_path):
    asked = srun(pmi2=[1, 1])
    assert selection.select(Launch(launcher="mpiexec"), INSIDE, NODES).path == str(
        tmp_path / "bin" / "mpiexec"
    )
    assert not asked.exists()
