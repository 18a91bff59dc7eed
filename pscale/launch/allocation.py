"""Whether pscale runs inside a job of a scheduler, and what that job has been given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pscale.launch.machine import Machine
from pscale.launch.scheduler.tools import ask

_SLURM_CPUS = re.compile(r"(\d+)(?:\(x\d+\))?")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Nodes that a scheduler has given to the job around this process."""

    scheduler: str
    job: str
    nodes: int
    cpus: int | None = None  # on the node with fewest, as the scheduler counts; None: unknown
    hostfile: str = ""

    def machine(self, here: Machine) -> Machine:
        """Return `here`, one of its nodes, as all of them; where the job has fewer CPUs, with fewer cores.

        Where the scheduler keeps processes to the CPUs of the job, these are known; its own count is of
        hardware threads or of cores, as it likes.
        """
        threads_per_core = max(1, here.cpus // here.cores)
        counted = self.cpus / threads_per_core if self.cpus and not here.restricted else None
        known = [limit for limit in (here.cpu_limit, counted) if limit is not None]
        others = f" and {self.nodes - 1} more" if self.nodes > 1 else ""
        return replace(
            here,
            host=here.host + others,
            nodes=self.nodes,
            hostfile=self.hostfile,
            cpu_limit=min(known) if known and min(known) < here.cores else here.cpu_limit,
        )


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the job that this process runs in; None outside of jobs."""
    if "SLURM_JOB_ID" in environ and "SLURM_JOB_NODELIST" in environ:
        return _slurm(environ)
    if "PBS_JOBID" in environ and "PBS_NODEFILE" in environ:
        return _listed("pbs", environ["PBS_JOBID"], environ["PBS_NODEFILE"], environ.get("NCPUS"))
    if "LSB_JOBID" in environ and "LSB_DJOB_HOSTFILE" in environ:
        return _listed("lsf", environ["LSB_JOBID"], environ["LSB_DJOB_HOSTFILE"], None)
    if "FLUX_ENCLOSING_ID" in environ:
        return _flux(environ["FLUX_ENCLOSING_ID"])
    return None


def _slurm(environ: Mapping[str, str]) -> Allocation:
    cpus = [int(count) for count in _SLURM_CPUS.findall(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))]
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    return Allocation(
        scheduler="slurm", job=environ["SLURM_JOB_ID"], nodes=int(nodes), cpus=min(cpus, default=None)
    )


def _listed(scheduler: str, job: str, file: str, cpus: str | None) -> Allocation | None:
    """Read a file that names a host as often as it has slots; where it cannot be read this is no such job."""
    try:
        hosts = Counter(Path(file).read_text(encoding="utf-8").split())
    except OSError:
        return None
    fewest = int(cpus) if cpus else min(hosts.values(), default=1)
    return Allocation(scheduler=scheduler, job=job, nodes=max(1, len(hosts)), cpus=fewest, hostfile=file)


def _flux(job: str) -> Allocation:
    words = ask(("flux", "resource", "list", "--no-header", "--format={nnodes} {ncores}")).out.split()
    nodes, cores = (int(word) for word in words) if len(words) == 2 else (1, 0)
    return Allocation(scheduler="flux", job=job, nodes=nodes, cpus=cores // nodes or None)
