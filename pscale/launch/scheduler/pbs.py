"""PBS Professional and OpenPBS: qsub, qstat, qdel."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.config import Launch
from pscale.errors import UsageError
from pscale.launch.scheduler.protocol import Ending, JobRequest, Phase, Shape, Sighting, Ticket
from pscale.launch.scheduler.script import clock, script
from pscale.launch.scheduler.tools import ask, must, submitted

_LIMITS = r"would exceed|max_queued|maximum number of jobs"
_UNSURE = r"cannot connect to server|timed? ?out|Communication failure"
_RUNNING = ("R", "E", "S", "U", "B")
_COMMENTS: Sequence[tuple[str, Ending]] = (
    (r"exceed\w* resource walltime|walltime .*exceeded", "timeout"),
    (r"preempt", "preempted"),
    (r"node (failure|fail|is down)|Mom .*(down|lost)", "node_failed"),
    (r"exceed\w* resource mem", "out_of_memory"),
)
_CODES: Mapping[int, Ending] = {  # of PBS itself (pbs_error.h), and 256 + a signal: qdel sends 15, then 9
    0: "completed",
    -24: "out_of_memory",
    -27: "out_of_memory",
    -29: "timeout",
    265: "cancelled",
    271: "cancelled",
}


class Pbs:
    """PBS with `select` and JSON: PBS Professional 18 or newer, OpenPBS."""

    name = "pbs"
    submits = "qsub"
    alive: tuple[str, ...] = ("qstat", "-B")
    down = r"Connection (refused|timed out)|No route to host"

    def render(self, request: JobRequest) -> str:
        """Return the script; chunks are spread, one on each node."""
        asked = request.launch
        if asked.qos:
            raise UsageError("launch.qos: PBS has no such thing; choose a queue with `partition`")
        chunk = [
            f"{request.nodes}:ncpus={request.cores_per_node}:mpiprocs={request.ranks_per_node}",
            f"ompthreads={request.cores_per_rank}",
            *((f"ngpus={asked.gpus}",) if asked.gpus else ()),
            *((asked.constraint,) if asked.constraint else ()),
        ]
        options = [
            f"-N {request.name}",
            f"-l select={':'.join(chunk)}",
            "-l place=scatter",
            f"-l walltime={clock(request.time_limit_s)}",
            "-r n",
            "-j oe",
            "-V",
            *((f"-q {asked.partition}",) if asked.partition else ()),
            *((f"-A {asked.account}",) if asked.account else ()),
            *asked.directives,
        ]
        return script(request, "#PBS", options, "$PBS_JOBID")

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:
        """Return the command."""
        return ("qsub", "-o", str(request.log), str(script))

    def submit(self, request: JobRequest, script: Path) -> str:
        """Submit and return the job's id."""
        argv = self.submission(request, script)
        return submitted(ask(argv), argv, limits=_LIMITS, unsure=_UNSURE).strip()

    def poll_many(self, tickets: Sequence[Ticket]) -> Mapping[str, Sighting]:
        """Ask qstat for all jobs, finished ones included; unknown ids spoil its exit code, not its answer."""
        ids = [ticket.id for ticket in tickets if ticket.id]
        ids += [number for ticket in tickets if not ticket.id for number in _named(ticket.name)]
        if not ids:
            return {}
        argv = ("qstat", "-x", "-f", "-F", "json", *ids)
        answer = ask(argv)
        text = answer.out if answer.out.lstrip().startswith("{") else ""
        if not text and not re.search(r"Unknown Job", answer.err, re.IGNORECASE):
            must(answer, argv)
        jobs: Mapping[str, Any] = json.loads(text).get("Jobs", {}) if text else {}
        found = {str(job.get("Job_Name")): _sighting(number, job) for number, job in jobs.items()}
        return {ticket.name: found[ticket.name] for ticket in tickets if ticket.name in found}

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs."""
        argv = ("qdel", *ids)
        answer = ask(argv)
        if not re.search(r"has finished|Unknown Job|invalid state", answer.err, re.IGNORECASE):
            must(answer, argv)

    def shape(self, launch: Launch) -> Shape | None:  # noqa: ARG002
        """Return None: queues of PBS do not say which nodes they have."""
        return None


def _named(name: str) -> list[str]:
    return ask(("qselect", "-x", "-N", name)).out.split()


def _sighting(number: str, job: Mapping[str, Any]) -> Sighting:
    comment = str(job.get("comment", ""))
    state = str(job.get("job_state", ""))
    if state not in {"F", "X"}:
        phase: Phase = "running" if state in _RUNNING else "queued"
        return Sighting(id=number, phase=phase, note=comment)
    code = int(job.get("Exit_status", 1))
    told = (ending for pattern, ending in _COMMENTS if re.search(pattern, comment, re.IGNORECASE))
    deleted: Ending = "cancelled" if "Exit_status" not in job else "failed"
    return Sighting(id=number, phase="ended", ending=next(told, _CODES.get(code, deleted)), note=comment)
