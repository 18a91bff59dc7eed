"""IBM Spectrum LSF: bsub, bjobs, bkill."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pscale.config import Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch.scheduler.protocol import Ending, JobRequest, Shape, Sighting, Ticket
from pscale.launch.scheduler.script import clock, script
from pscale.launch.scheduler.tools import ask, must, submitted

_LIMITS = r"(pending|job|slot).* (limit|threshold)|limit .*reached"
_UNSURE = r"batch daemon not responding|LSF is down|Communication time ?out"
_SUBMITTED = re.compile(r"Job <(\d+)>")
_RUNNING = ("RUN", "USUSP", "SSUSP", "UNKWN")
# www.ibm.com/docs: LSF 10.1, "Termination reasons displayed by bacct, bhist, and bjobs"
_REASONS: Sequence[tuple[str, Ending]] = (
    ("TERM_RUNLIMIT|TERM_DEADLINE|TERM_CPULIMIT", "timeout"),
    ("TERM_PREEMPT|TERM_LOAD|TERM_WINDOW|TERM_RC|TERM_MC_RECALL", "preempted"),
    ("TERM_MEMLIMIT|TERM_SWAP", "out_of_memory"),
    ("TERM_OWNER|TERM_ADMIN|TERM_FORCE_OWNER|TERM_FORCE_ADMIN|TERM_BUCKET_KILL", "cancelled"),
    ("TERM_ZOMBIE|TERM_REMOVE_HUNG_JOB|host.*(down|unavail|unreach)", "node_failed"),
)
_FIELDS = "jobid job_name stat exit_code exit_reason pend_reason delimiter='|'"
_ABSENT = r"is not found|No (matching )?job found|No unfinished job"


class Lsf:
    """LSF 10.1 or newer. A slot is a core: that holds with and without affinity scheduling."""

    name = "lsf"
    submits = "bsub"
    alive: tuple[str, ...] = ("lsid",)
    down = r"LIM is down|Cannot contact LIM|LSF is down"

    def render(self, request: JobRequest) -> str:
        """Return the script."""
        asked = request.launch
        if asked.qos:
            raise UsageError("launch.qos: LSF has no such thing; choose a queue with `partition`")
        hours, minutes, _ = clock(request.time_limit_s).split(":")
        options = [
            f"-J {request.name}",
            f"-n {request.nodes * request.cores_per_node}",
            f'-R "span[ptile={request.cores_per_node}]"',
            *((f'-R "select[{asked.constraint}]"',) if asked.constraint else ()),
            f"-W {hours}:{minutes}",
            "-rn",
            *((f"-q {asked.partition}",) if asked.partition else ()),
            *((f"-P {asked.account}",) if asked.account else ()),
            *((f'-gpu "num={asked.gpus}"',) if asked.gpus else ()),
            *asked.directives,
        ]
        return script(request, "#BSUB", options, "$LSB_JOBID")

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Return the command; it reads the script from standard input."""
        return ("bsub", "-o", str(request.log))

    def submit(self, request: JobRequest, script: Path) -> str:
        """Submit and return the job's id."""
        argv = self.submission(request, script)
        text = submitted(ask(argv, stdin=script), argv, limits=_LIMITS, unsure=_UNSURE)
        told = _SUBMITTED.search(text)
        if told is None:
            raise LaunchError(f"bsub names no job: {text.strip()}")
        return told[1]

    def poll_many(self, tickets: Sequence[Ticket]) -> Mapping[str, Sighting]:
        """Ask bjobs for all jobs that have an id, and by name for one that has none yet."""
        found: dict[str, Sighting] = {}
        ids = [ticket.id for ticket in tickets if ticket.id]
        wanted = [ids] if ids else []
        wanted += [["-J", ticket.name] for ticket in tickets if not ticket.id]
        for which in wanted:
            argv = ("bjobs", "-a", "-noheader", "-o", _FIELDS, *which)
            answer = ask(argv)
            if not re.search(_ABSENT, answer.err):
                must(answer, argv)
            found |= dict(_sightings(answer.out))
        return {ticket.name: found[ticket.name] for ticket in tickets if ticket.name in found}

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs."""
        argv = ("bkill", *ids)
        answer = ask(argv)
        if not re.search(r"already finished|is not found|No matching job", answer.err):
            must(answer, argv)

    def shape(self, launch: Launch) -> Shape | None:  # noqa: ARG002
        """Return None: queues of LSF do not say which hosts they have."""
        return None


def _sightings(text: str) -> Iterator[tuple[str, Sighting]]:
    for line in text.splitlines():
        if line.count("|") < 5:
            continue
        number, name, state, code, reason, pending = (part.strip() for part in line.split("|", 5))
        note = "" if (said := reason if state == "EXIT" else pending) == "-" else said
        if state == "DONE":
            yield name, Sighting(id=number, phase="ended", ending="completed")
        elif state in {"EXIT", "ZOMBI"}:
            told = (ending for pattern, ending in _REASONS if re.search(pattern, note))
            lost: Ending = "node_failed" if state == "ZOMBI" else "failed"
            note = note or f"exit code {code}"
            yield name, Sighting(id=number, phase="ended", ending=next(told, lost), note=note)
        else:
            yield name, Sighting(id=number, phase="running" if state in _RUNNING else "queued", note=note)
