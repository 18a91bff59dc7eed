"""Inside a job the launcher is the one that makes one world, as is tried."""

import json
import sys

import pytest
from noop_runs import make_launcher

from pscale.config import Launch
from pscale.errors import LaunchError
from pscale.launch import launcher, selection
from pscale.launch.machine import Machine
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
    monkeypatch.setattr(launcher, "_prefixes", list)

    def answers(stumble=(), **sizes):
        (program.parent / "stumble").write_text(json.dumps(dict(stumble)))
        (program.parent / "sizes").write_text(
            json.dumps({f"--mpi={pmi}": found for pmi, found in sizes.items()})
        )
        return program.parent / "asked"

    return answers


def test_the_first_launcher_that_makes_one_world_is_taken(srun):
    asked = srun(pmi2=[1, 1], pmix=[2])
    found = selection.select(Launch(), INSIDE, NODES)
    assert (found.flavour, found.arguments, found.version) == ("srun", PMIX, "23.02.1")
    tried = asked.read_text().splitlines()
    assert [line.split()[0] for line in tried] == ["--mpi=pmi2", "--mpi=pmix"]
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1" in tried[0], "on two nodes, where there are two"


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


@pytest.mark.parametrize(
    ("stumble", "arguments"), [("--version", PMI2), ("--mpi=list", PMI2), ("--mpi=pmi2", PMIX)]
)
def test_a_launcher_of_a_scheduler_that_stumbles_is_tried_all_the_same(srun, stumble, arguments):
    launcher.identify.cache_clear()
    srun([(stumble, "srun: error: Unable to contact slurm controller")], pmi2=[2], pmix=[2])
    found = selection.select(Launch(), INSIDE, NODES)
    assert (found.flavour, found.arguments) == ("srun", arguments)
    launcher.identify.cache_clear()


def test_a_launcher_that_is_named_is_taken_as_it_is(srun, tmp_path):
    asked = srun(pmi2=[1, 1])
    assert selection.select(Launch(launcher="mpiexec"), INSIDE, NODES).path == str(
        tmp_path / "bin" / "mpiexec"
    )
    assert not asked.exists()
