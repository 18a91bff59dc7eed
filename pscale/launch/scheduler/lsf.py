"""IBM Spectrum LSF: bsub, bjobs, bkill."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pscale.errors import LaunchError
from pscale.launch.scheduler.base import (
    Allocation,
    Ending,
    JobHandle,
    JobRequest,
    JobStatus,
    Scheduler,
    asked_for,
    clock,
    fields,
    first_match,
)

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


class Lsf(Scheduler):
    """LSF 10.1 or newer. A slot is a core, with and without affinity scheduling."""

    name, title = "lsf", "LSF"
    submit_program = "bsub"
    ping = ("lsid",)
    unreachable = r"LIM is down|Cannot contact LIM|LSF is down"
    cancel_command = ("bkill",)
    already_ended = r"already finished|is not found|No matching job"
    id_line = "Job <{}>"
    job_limit = r"(pending|job|slot).* (limit|threshold)|limit .*reached"
    unsure = r"batch daemon not responding|LSF is down|Communication time ?out"
    log_endings = (
        ("timeout", r"TERM_RUNLIMIT"),
        ("preempted", r"TERM_PREEMPT"),
        ("out_of_memory", r"TERM_MEMLIMIT"),
        ("cancelled", r"TERM_OWNER|TERM_ADMIN"),
    )
    directive, job_id_variable, script_on_stdin = "#BSUB", "$LSB_JOBID", True
    memory = 'directives: ["-M 4GB"]'
    stored_variables = r"LSB_(JOBID|QUEUE|MCPU_HOSTS|DJOB_NUMPROC|MAX_NUM_PROCESSORS|BIND_CPU_LIST)"
    job_variables = r"(LSB|LS)_.*"
    site_variables = r"LSF_.*|LS_(JOBPID|EXEC)|LSB_(SUB_ADDITIONAL|CONFDIR|SHAREDIR)"

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Read the job's list of hosts."""
        if "LSB_JOBID" not in environ or "LSB_DJOB_HOSTFILE" not in environ:
            return None
        return Allocation.from_hostfile(self.name, environ["LSB_JOBID"], environ["LSB_DJOB_HOSTFILE"])

    def options(self, request: JobRequest) -> list[str]:
        """Return the options."""
        asked = request.launch
        hours, minutes, _ = clock(request.time_limit_s).split(":")
        return [
            f"-J {request.name}",
            f"-n {request.nodes * request.cores_per_node}",
            f'-R "span[ptile={request.cores_per_node}]"',
            *asked_for(asked, constraint='-R "select[{}]"'),
            f"-W {hours}:{minutes}",
            "-rn",
            *asked_for(asked, partition="-q {}", account="-P {}", gpus='-gpu "num={}"'),
        ]

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Return the command; it reads the script from standard input."""
        return ("bsub", "-o", str(request.log))

    def file_of(self, number: str) -> str:
        """Return the log, however long its name is."""
        return self.ask(("bjobs", "-noheader", "-o", "output_file:4096 delimiter='|'", number)).out.strip()

    def query(self, handles: Sequence[JobHandle]) -> Mapping[str, JobStatus]:
        """Ask bjobs for all jobs that have an id, and by name for one that has none yet."""
        found: dict[str, JobStatus] = {}
        ids = [handle.id for handle in handles if handle.id]
        wanted = [ids] if ids else []
        wanted += [["-J", handle.name] for handle in handles if not handle.id]
        for which in wanted:
            answer = self.ask(("bjobs", "-a", "-noheader", "-o", _FIELDS, *which))
            if answer.code and not re.search(_ABSENT, answer.err):
                raise LaunchError(f"bjobs: {answer.last_words}")
            found |= dict(_statuses(answer.out))
        return found


KIND = Lsf


def _statuses(text: str) -> Iterator[tuple[str, JobStatus]]:
    for number, name, state, code, reason, pending in fields(text, 6):
        note = "" if (said := reason if state == "EXIT" else pending) == "-" else said
        if state == "DONE":
            yield name, JobStatus(id=number, phase="ended", ending="completed")
        elif state in {"EXIT", "ZOMBI"}:
            ending = first_match(_REASONS, note, "node_failed" if state == "ZOMBI" else "failed")
            note = note or f"exit code {code}"
            yield name, JobStatus(id=number, phase="ended", ending=ending, note=note)
        else:
            yield name, JobStatus(id=number, phase="running" if state in _RUNNING else "queued", note=note)
