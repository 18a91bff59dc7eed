"""Slurm: sbatch, squeue, sacct where there is accounting, scancel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pscale.config import Launch
from pscale.errors import LaunchError
from pscale.launch.machine import Machine
from pscale.launch.scheduler.protocol import Ending, JobRequest, Phase, Shape, Sighting, Ticket
from pscale.launch.scheduler.script import clock, script
from pscale.launch.scheduler.tools import ask, must, submitted

# Of many limits the end of other jobs helps against one, that on their number. slurmctld names the limit in a
# line of its own, and says "job submit limit, user's size and/or time limits" of all.
_LIMITS = r"(?s)SubmitJob|\A(?!.*(QOS|Assoc)\w+Limit).*job submit limit"
_UNSURE = r"Socket timed out|Unable to contact slurm controller|Connection (refused|timed out)|try again"
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
_ENDINGS: Mapping[str, Ending] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_failed",
    "BOOT_FAIL": "node_failed",
    "OUT_OF_MEMORY": "out_of_memory",
}
_LIST = ("squeue", "--noheader", "--states=all", "--format=%i|%T|%r|%j")  # last, what may be anything
_NODES = ("sinfo", "--noheader", "--exact", "--format=%P|%F|%X|%Y|%m|%l|%f")
_PARTITIONS = ("sinfo", "--noheader", "--format=%R")
_TIME = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")


class Slurm:
    """Slurm 20.11 or newer."""

    name = "slurm"
    submits = "sbatch"
    alive: tuple[str, ...] = ("scontrol", "ping")
    down = r"is DOWN|RESTORE SLURMCTLD"

    def render(self, request: JobRequest) -> str:
        """Return the script; nothing is left to defaults that a site or a shell may have changed."""
        asked = request.launch
        options = [
            f"--job-name={request.name}",
            f"--nodes={request.nodes}",
            f"--ntasks-per-node={request.ranks_per_node}",
            f"--cpus-per-task={request.cores_per_rank}",
            "--threads-per-core=1",
            f"--time={clock(request.time_limit_s)}",
            "--no-requeue",
            "--open-mode=append",
            "--export=ALL",
            *(f"--{name}={value}" for name in _NAMES if (value := getattr(asked, name))),
            *((f"--gpus-per-node={asked.gpus}",) if asked.gpus else ()),
            *asked.directives,
        ]
        return script(request, "#SBATCH", options, "$SLURM_JOB_ID")

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:
        """Return the command; the log's path is said here, where no rule of quoting applies."""
        log = str(request.log).replace("%", "%%")
        return ("sbatch", "--parsable", f"--output={log}", str(script))

    def submit(self, request: JobRequest, script: Path) -> str:
        """Submit and return the job's id."""
        argv = self.submission(request, script)
        answer = submitted(ask(argv), argv, limits=_LIMITS, unsure=_UNSURE)
        return answer.strip().partition(";")[0]

    def poll_many(self, tickets: Sequence[Ticket]) -> Mapping[str, Sighting]:
        """Ask squeue for all jobs of this user, and sacct for those that it has forgotten."""
        argv = (*_LIST, f"--user={os.getuid()}")
        found = dict(_sightings(must(ask(argv), argv)))
        forgotten = [ticket for ticket in tickets if ticket.name not in found and ticket.id]
        if forgotten:
            found |= _accounted(forgotten)
        return {ticket.name: found[ticket.name] for ticket in tickets if ticket.name in found}

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs."""
        argv = ("scancel", "--quiet", *ids)
        must(ask(argv), argv)

    def shape(self, launch: Launch) -> Shape | None:
        """Return the largest group of equal nodes of the partition that has the constraint."""
        argv = (*_NODES, *((f"--partition={launch.partition}",) if launch.partition else ()))
        groups = [line.split("|") for line in must(ask(argv), argv).splitlines() if line.count("|") == 6]
        if not launch.partition:  # the default one, if there is such
            groups = [group for group in groups if group[0].endswith("*")] or groups
        features = set(re.split(r"[&|,()\[\]]", launch.constraint)) - {""}
        groups = [group for group in groups if features <= set(group[6].split(","))] or groups
        if not groups:
            known = ", ".join(dict.fromkeys(ask(_PARTITIONS).out.split())) or "none that you may see"
            raise LaunchError(f"Slurm has no partition {launch.partition or 'by default'}; it has: {known}")
        name, nodes, sockets, cores, memory_mb, longest, _ = max(groups, key=lambda group: _count(group[1]))
        machine = Machine(
            host=f"partition {name.rstrip('*')}",
            cpu_model=f"slurm {name.rstrip('*')}",
            core_cpus=tuple((cpu,) for cpu in range(int(sockets) * int(cores))),
            memory_bytes=int(memory_mb.rstrip("+")) << 20,
            nodes=_count(nodes),
        )
        return Shape(machine=machine, longest_s=_seconds(longest))


_NAMES = ("partition", "account", "qos", "constraint")


def _count(nodes: str) -> int:
    """Return the last of "allocated/idle/other/all": nodes that are down today do not change a suite."""
    return int(nodes.rpartition("/")[2])


def _seconds(limit: str) -> float | None:
    match = _TIME.fullmatch(limit)
    if match is None:  # infinite, n/a
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _sightings(text: str) -> Iterator[tuple[str, Sighting]]:
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 3)]
        if len(parts) == 4 and parts[1]:
            number, state, reason, name = parts
            yield name, _sighting(number, state, "" if reason == "None" else reason)


def _sighting(number: str, state: str, note: str) -> Sighting:
    state = state.split(maxsplit=1)[0].rstrip("+")  # "CANCELLED by 0", and a flag of sacct
    if state in _ENDINGS:
        return Sighting(id=number, phase="ended", ending=_ENDINGS[state], note=note)
    phase: Phase = "running" if state in _RUNNING else "queued"
    return Sighting(id=number, phase=phase, note=note)


def _accounted(tickets: Sequence[Ticket]) -> dict[str, Sighting]:
    """Ask the accounting, which a site may not have."""
    named = {ticket.id: ticket.name for ticket in tickets}
    jobs = f"--jobs={','.join(named)}"
    answer = ask(
        ("sacct", "--noheader", "--parsable2", "--allocations", jobs, "--format=JobIDRaw,State,ExitCode")
    )
    lines = [line.split("|") for line in answer.out.splitlines() if line.count("|") == 2]
    return {
        named[number]: _sighting(number, state, f"exit code {code}")
        for number, state, code in lines
        if number in named
    }
