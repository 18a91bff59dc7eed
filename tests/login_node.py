"""The command line on the login node of a cluster, what its runs have noted, and a virtual cluster for it."""

import ctypes
import json
import os
import shutil
import socket
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from patience import run_program, wait_for
from whole_runs import Cli

SITE = """
virtual:
  hosts: ["*"]
  poll: 0.5s
"""
WEAK = """
name: nodes
scaling: weak
model: {kind: gpt, layers: 1, width: 32, heads: 4, sequence: 32, vocabulary: 256}
data: {kind: synthetic}
train: {batch: 2, steps: 5, warmup: 1}
plan: {dp: ranks}
sweep: {ranks: [1, 2, 4]}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, ranks_per_node: 1, time_limit: 10m}
"""


class LoginNode(Cli):
    """A folder with a suite and the profile of a site that may be asked every second."""

    def __init__(self, folder: Path, site: str = SITE):
        super().__init__(folder)
        (folder / "sites.yaml").write_text(site)
        self.weak = self.suite(WEAK)

    def start(self, *options: str) -> subprocess.Popen:
        return subprocess.Popen(
            self.command("run", self.weak, "--reports", self.reports, "--no-report", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def say(self, *arguments: str) -> str:
        return self.call(*arguments, "--reports", self.reports).stdout

    def status(self) -> dict:
        return json.loads(self.say("status", "--json"))

    def events(self, kind: str) -> list[dict]:
        """Return what the run and its jobs have noted of one kind."""
        found = []
        for path in self.reports.glob("nodes/*/**/journal.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            found += [json.loads(line) for line in lines if line.endswith("\n")]
        return [record for record in found if record["event"] == kind]

    def job_at_work(self) -> str:
        """Return the id of the job that was submitted last, once a launch is under way."""
        wait_for(lambda: self.events("launched"))
        return self.events("submitted")[-1]["id"]


SCRIPT = Path(__file__).parent / "slurm" / "cluster"
_PR_SET_CHILD_SUBREAPER = 36
PORTS, EACH = range(18000, 28000, 10), 5  # below those that systems hand out


def missing():
    places = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # daemons are not on the path of every login
    if not all(shutil.which(name, path=places) for name in ("slurmctld", "slurmd", "munged", "sbatch")):
        return "Slurm is not installed: tests/slurm/cluster install"
    return "" if os.geteuid() == 0 else "a virtual Slurm cluster needs root"


def free_port():
    """Return the first of so many free ports as a cluster takes, as far from others' who ask as can be."""
    first = os.getpid() % len(PORTS)
    for port in (*PORTS[first:], *PORTS[:first]):
        with ExitStack() as taken:
            try:
                for number in range(EACH):
                    taken.enter_context(socket.create_server(("", port + number)))
            except OSError:
                continue
            return str(port)
    pytest.fail("no ports are free")


@contextmanager
def virtual_cluster(tmp_path_factory, **variables):
    """Have a virtual Slurm cluster of four nodes, where this is the login node; skips where it cannot be."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    folder = tmp_path_factory.mktemp("slurm")
    # A launch inside this process has made it the parent of orphans (prctl(2)). As zombies, which nobody here
    # reaps, those of Slurm's daemons would keep the nodes of their jobs from ever being free again.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    try:
        run_program([SCRIPT, "start", folder, free_port()], env={**os.environ, **variables})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
            # MPICH publishes UCX addresses in 4 KiB of stack memory; with too few zeros in it lines exceed
            # the buffer of Slurm's pmi2 and launches fail at random
            patch.setenv("MPIR_CVAR_CH4_NETMOD", "ofi")
            patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
            yield folder
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=False)
