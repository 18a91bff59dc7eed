"""Flux: flux batch, flux jobs, flux cancel, flux run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pscale.config import Case, Launch
from pscale.errors import LaunchError
from pscale.launch.isolated_process import documents
from pscale.launch.machine import Placement
from pscale.launch.scheduler.base import (
    Allocation,
    Ending,
    JobStatus,
    Resources,
    Scheduler,
    fields,
    first_match,
    status,
)

_ENDINGS: Mapping[str, Ending] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
    "TIMEOUT": "timeout",
}
_EXCEPTIONS: Sequence[tuple[str, Ending]] = (
    (r"node.?fail|node.?down|lost contact", "node_failed"),
    (r"preempt", "preempted"),
)
_FIELDS = "{{id.f58}}|{{name}}|{{state}}|{{result}}|{{exception.type}}|{{exception.note}}|"
_RESOURCES = ("flux", "resource", "list")
_COUNTS = ("--no-header", "--format={nnodes} {ncores}")
_QUEUED = ("DEPEND", "PRIORITY", "SCHED", "NEW")


class Flux(Scheduler):
    """Flux 0.48 or newer. A rank is a slot."""

    name, title = "flux", "Flux"
    # In Flux's paths {{…}} is a template, which names of runs do not contain.
    submit_command = ("flux", "batch", "--output={log}", "{script}")
    ping = ("flux", "getattr", "size")
    # All jobs of this user, as one that is unknown would be an error.
    queue_command = ("flux", "jobs", "-a", "--count=0", "--no-header", f"--format={_FIELDS}")
    file_command = ("flux", "job", "info", "{id}", "jobspec")
    cancel_command = ("flux", "cancel")
    unreachable = r"lost connection|Connection (reset|timed out)"  # without an instance it says there is none
    unsure = r"Unable to connect to Flux|Connection timed out|No route to host"
    job_limit = r"max(imum)?[- ](active|running)[- ]jobs|exceeds (the )?limit|limit exceeded"
    already_ended = r"job is inactive|unknown job"
    id_pattern = r"([ƒf][1-9A-Za-z]+|\d+)"
    directive, job_id_variable = "# flux:", "$FLUX_ENCLOSING_ID"
    options = """
--job-name={name}
--nodes={nodes}
--nslots={ranks}
--cores-per-slot={cores_per_rank}
--time-limit={time_limit_s}s
{partition:--queue=*}
{account:--bank=*}
{constraint:--requires=*}
{gpus_per_rank:--gpus-per-slot=*}
"""
    stored_variables = r"FLUX_(ENCLOSING_ID|JOB_(ID|SIZE|NNODES))"
    job_variables, site_variables = r"FLUX_.*", r"FLUX_URI"
    launcher, launcher_command = "flux", ("run",)
    launcher_version = r"^commands:\s+(?P<version>\d\S*)"

    def parse(self, text: str) -> Iterator[tuple[str, JobStatus]]:
        """Yield the jobs of whole lines."""
        for number, name, state, result, kind, note in fields(text, 6):
            if not note.endswith("|"):  # the line is cut
                continue
            said = " ".join(part for part in (kind, note.rstrip("|")) if part)
            ending: Ending | None = None
            if state == "INACTIVE":
                ending = first_match(_EXCEPTIONS, said, _ENDINGS.get(result, "failed"))
            yield name, status(number, ending, said, runs=state not in _QUEUED)

    def file_in(self, text: str) -> str:
        """Return the log."""
        try:
            options = documents(text)[-1]["attributes"]["system"]["shell"]["options"]
            return str(options["output"]["stdout"]["path"])
        except (IndexError, KeyError, TypeError):
            return ""

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Ask the instance of the job, a Flux of its own, for its nodes and cores."""
        if "FLUX_ENCLOSING_ID" not in environ:
            return None
        nodes, cores = _counts(self.ask((*_RESOURCES, *_COUNTS)).out) or (1, 0)
        job = environ["FLUX_ENCLOSING_ID"]
        return Allocation(scheduler=self.name, job=job, nodes=nodes, cpus=cores // nodes or None)

    def resources(self, launch: Launch) -> Resources | None:
        """Return what all nodes that are up have on average: Flux lists them together."""
        queue = (f"--queue={launch.partition}",) if launch.partition else ()
        found = _counts(self.output((*_RESOURCES, *queue, "--states=up", *_COUNTS)))
        if not found:
            raise LaunchError(f"Flux has no nodes up{f' in queue {launch.partition}' if queue else ''}")
        nodes, cores = found
        model = f"flux {launch.partition}".rstrip()
        return Resources(host="Flux", cpu_model=model, nodes=nodes, cores_per_node=cores // nodes)

    def launcher_options(self, case: Case, placement: Placement) -> tuple[str, ...]:
        """Return options of `flux run`."""
        affinity = "off" if placement.shared or case.launch.bind == "none" else "per-task"
        return (
            f"--nodes={placement.nodes}",
            f"--ntasks={case.ranks}",
            f"--cores-per-task={case.threads}",
            f"--setopt=cpu-affinity={affinity}",
        )


KIND = Flux


def _counts(text: str) -> tuple[int, int] | None:
    """Return the nodes and cores of a line; None without one, or without nodes."""
    found = re.findall(r"^(\d+) (\d+)$", text, re.MULTILINE | re.ASCII)
    return (int(found[-1][0]), int(found[-1][1])) if found and int(found[-1][0]) else None
