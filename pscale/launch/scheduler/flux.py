"""Flux: flux batch, flux jobs, flux cancel."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pscale.config import Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch.machine import Machine
from pscale.launch.scheduler.protocol import Ending, JobRequest, Shape, Sighting, Ticket
from pscale.launch.scheduler.script import script
from pscale.launch.scheduler.tools import ask, must, submitted

_LIMITS = r"max(imum)?[- ](active|running)[- ]jobs|exceeds (the )?limit|limit exceeded"
_UNSURE = r"Unable to connect to Flux|Connection timed out|No route to host"
_ENDINGS: Mapping[str, Ending] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
    "TIMEOUT": "timeout",
}
_FIELDS = "{id.f58}|{name}|{state}|{result}|{exception.type}|{exception.note}"
_QUEUED = ("DEPEND", "PRIORITY", "SCHED", "NEW")


class Flux:
    """Flux 0.48 or newer. A rank is a slot."""

    name = "flux"
    submits = "flux"
    alive: tuple[str, ...] = ("flux", "getattr", "size")
    down = (
        r"lost connection|Connection (reset|timed out)"  # outside of an instance it says that there is none
    )

    def render(self, request: JobRequest) -> str:
        """Return the script; its first lines are options of `flux batch`."""
        asked = request.launch
        if asked.qos:
            raise UsageError("launch.qos: Flux has no such thing; choose a queue with `partition`")
        options = [
            f"--job-name={request.name}",
            f"--nodes={request.nodes}",
            f"--nslots={request.nodes * request.ranks_per_node}",
            f"--cores-per-slot={request.cores_per_rank}",
            f"--time-limit={math.ceil(request.time_limit_s)}s",
            *((f"--queue={asked.partition}",) if asked.partition else ()),
            *((f"--bank={asked.account}",) if asked.account else ()),
            *((f"--requires={asked.constraint}",) if asked.constraint else ()),
            *((f"--gpus-per-slot={_gpus_per_slot(request)}",) if asked.gpus else ()),
            *asked.directives,
        ]
        return script(request, "# flux:", options, "$FLUX_ENCLOSING_ID")

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:
        """Return the command; in Flux's paths {{…}} is a template, which names of runs do not contain."""
        return ("flux", "batch", f"--output={request.log}", str(script))

    def submit(self, request: JobRequest, script: Path) -> str:
        """Submit and return the job's id."""
        argv = self.submission(request, script)
        return submitted(ask(argv), argv, limits=_LIMITS, unsure=_UNSURE).strip()

    def poll_many(self, tickets: Sequence[Ticket]) -> Mapping[str, Sighting]:
        """Ask for all jobs of this user, as one that is unknown would be an error."""
        argv = ("flux", "jobs", "-a", "--count=0", "--no-header", f"--format={_FIELDS}")
        found = dict(_sightings(must(ask(argv), argv)))
        return {ticket.name: found[ticket.name] for ticket in tickets if ticket.name in found}

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs."""
        argv = ("flux", "cancel", *ids)
        answer = ask(argv)
        if not re.search(r"job is inactive|unknown job", answer.err, re.IGNORECASE):
            must(answer, argv)

    def shape(self, launch: Launch) -> Shape | None:
        """Return what all nodes that are up have on average: Flux lists them together."""
        queue = (f"--queue={launch.partition}",) if launch.partition else ()
        argv = (
            "flux",
            "resource",
            "list",
            *queue,
            "--states=up",
            "--no-header",
            "--format={nnodes} {ncores}",
        )
        words = must(ask(argv), argv).split()
        if len(words) != 2 or not int(words[0]):
            raise LaunchError(f"Flux has no nodes up{f' in queue {launch.partition}' if queue else ''}")
        nodes, cores = (int(word) for word in words)
        machine = Machine(
            host="Flux",
            cpu_model=f"flux {launch.partition}".rstrip(),
            core_cpus=tuple((cpu,) for cpu in range(cores // nodes)),
            memory_bytes=0,
            nodes=nodes,
        )
        return Shape(machine=machine)


def _gpus_per_slot(request: JobRequest) -> int:
    gpus, slots = request.launch.gpus, request.ranks_per_node
    if gpus % slots:
        raise UsageError(
            f"launch.gpus: Flux counts them per rank, and {gpus} are not for {slots} ranks a node"
        )
    return gpus // slots


def _sightings(text: str) -> Iterator[tuple[str, Sighting]]:
    for line in text.splitlines():
        if line.count("|") < 5:
            continue
        number, name, state, result, kind, note = (part.strip() for part in line.split("|", 5))
        said = " ".join(part for part in (kind, note) if part)
        if state == "INACTIVE":
            ending = _ENDINGS.get(result, "failed")
            if re.search(r"node.?fail|node.?down|lost contact", said, re.IGNORECASE):
                ending = "node_failed"
            elif re.search(r"preempt", said, re.IGNORECASE):
                ending = "preempted"
            yield name, Sighting(id=number, phase="ended", ending=ending, note=said)
        else:
            yield name, Sighting(id=number, phase="queued" if state in _QUEUED else "running", note=said)
