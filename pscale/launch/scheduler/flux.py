"""Flux: flux batch, flux jobs, flux cancel, flux run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pscale.config import Case, Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch.isolated_process import documents
from pscale.launch.machine import Placement
from pscale.launch.scheduler.base import (
    Allocation,
    Ending,
    JobHandle,
    JobRequest,
    JobStatus,
    Resources,
    Scheduler,
    asked_for,
    fields,
    first_match,
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
_FIELDS = "{id.f58}|{name}|{state}|{result}|{exception.type}|{exception.note}|"
_JOBS = ("flux", "jobs", "-a", "--count=0", "--no-header", f"--format={_FIELDS}")
_RESOURCES = ("flux", "resource", "list")
_COUNTS = ("--no-header", "--format={nnodes} {ncores}")
_QUEUED = ("DEPEND", "PRIORITY", "SCHED", "NEW")


class Flux(Scheduler):
    """Flux 0.48 or newer. A rank is a slot."""

    name, title = "flux", "Flux"
    submit_program = "flux"
    ping = ("flux", "getattr", "size")
    unreachable = r"lost connection|Connection (reset|timed out)"  # without an instance it says there is none
    cancel_command = ("flux", "cancel")
    already_ended = r"job is inactive|unknown job"
    id_pattern = r"([ƒf][1-9A-Za-z]+|\d+)"
    job_limit = r"max(imum)?[- ](active|running)[- ]jobs|exceeds (the )?limit|limit exceeded"
    unsure = r"Unable to connect to Flux|Connection timed out|No route to host"
    directive, job_id_variable = "# flux:", "$FLUX_ENCLOSING_ID"
    stored_variables = r"FLUX_(ENCLOSING_ID|JOB_(ID|SIZE|NNODES))"
    job_variables, site_variables = r"FLUX_.*", r"FLUX_URI"
    launcher, launcher_command = "flux", ("run",)
    launcher_version = r"^commands:\s+(?P<version>\d\S*)"

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Ask the instance of the job, a Flux of its own, for its nodes and cores."""
        if "FLUX_ENCLOSING_ID" not in environ:
            return None
        nodes, cores = _counts(self.ask((*_RESOURCES, *_COUNTS)).out) or (1, 0)
        job = environ["FLUX_ENCLOSING_ID"]
        return Allocation(scheduler=self.name, job=job, nodes=nodes, cpus=cores // nodes or None)

    def options(self, request: JobRequest) -> list[str]:
        """Return options of `flux batch`."""
        asked = request.launch
        return [
            f"--job-name={request.name}",
            f"--nodes={request.nodes}",
            f"--nslots={request.nodes * request.ranks_per_node}",
            f"--cores-per-slot={request.cores_per_rank}",
            f"--time-limit={math.ceil(request.time_limit_s)}s",
            *asked_for(asked, partition="--queue={}", account="--bank={}", constraint="--requires={}"),
            *((f"--gpus-per-slot={_gpus_per_slot(request)}",) if asked.gpus else ()),
        ]

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:
        """Return the command; in Flux's paths {{…}} is a template, which names of runs do not contain."""
        return ("flux", "batch", f"--output={request.log}", str(script))

    def file_of(self, number: str) -> str:
        """Return the log."""
        answer = self.ask(("flux", "job", "info", number, "jobspec"))
        try:
            options = documents(answer.out)[-1]["attributes"]["system"]["shell"]["options"]
            return str(options["output"]["stdout"]["path"])
        except (IndexError, KeyError, TypeError):
            return ""

    def query(self, handles: Sequence[JobHandle]) -> Mapping[str, JobStatus]:  # noqa: ARG002
        """Ask for all jobs of this user, as one that is unknown would be an error."""
        return dict(_statuses(self.output(_JOBS)))

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


def _gpus_per_slot(request: JobRequest) -> int:
    gpus, slots = request.launch.gpus, request.ranks_per_node
    if gpus % slots:
        raise UsageError(
            f"launch.gpus: Flux counts them per rank, and {gpus} cannot be divided by {slots} ranks per node"
        )
    return gpus // slots


def _statuses(text: str) -> Iterator[tuple[str, JobStatus]]:
    for number, name, state, result, kind, note in fields(text, 6):
        if not note.endswith("|"):  # the line is cut
            continue
        said = " ".join(part for part in (kind, note.rstrip("|")) if part)
        if state == "INACTIVE":
            ending = first_match(_EXCEPTIONS, said, _ENDINGS.get(result, "failed"))
            yield name, JobStatus(id=number, phase="ended", ending=ending, note=said)
        else:
            yield name, JobStatus(id=number, phase="queued" if state in _QUEUED else "running", note=said)
