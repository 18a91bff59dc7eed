"""PBS Professional and OpenPBS: qsub, qstat, qdel."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.errors import LaunchError, UsageError
from pscale.launch.scheduler.base import (
    Allocation,
    Ending,
    JobHandle,
    JobRequest,
    JobStatus,
    Phase,
    Scheduler,
    asked_for,
    clock,
    first_match,
)

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


class Pbs(Scheduler):
    """PBS with `select` and JSON: PBS Professional 18 or newer, OpenPBS."""

    name, title = "pbs", "PBS"
    submit_program = "qsub"
    ping = ("qstat", "-B")
    unreachable = r"Connection (refused|timed out)|No route to host"
    cancel_command = ("qdel",)
    already_ended = r"has finished|Unknown Job|invalid state"
    job_limit = r"would exceed|max_queued|maximum number of jobs"
    unsure = r"cannot connect to server|timed? ?out|Communication failure"
    id_pattern = r"(\d+)(?:\.[\w.-]+)?"
    log_endings = (
        ("timeout", r"job killed: walltime \d+ exceeded limit"),
        ("out_of_memory", r"job killed: mem"),
    )
    directive, job_id_variable = "#PBS", "$PBS_JOBID"
    stored_variables = r"PBS_(JOBID|QUEUE|NUM_PPN|NCPUS|NP|NNODES)"
    job_variables, site_variables = r"PBS_.*", r"PBS_(CONF_FILE|EXEC|HOME|SERVER|DEFAULT)"

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Read the job's list of nodes."""
        if "PBS_JOBID" not in environ or "PBS_NODEFILE" not in environ:
            return None
        job, file = environ["PBS_JOBID"], environ["PBS_NODEFILE"]
        return Allocation.from_hostfile(self.name, job, file, environ.get("NCPUS"))

    def options(self, request: JobRequest) -> list[str]:
        """Return the options; chunks are spread, one on each node."""
        asked = request.launch
        if "@" in asked.partition:
            raise UsageError(f"launch.partition: {asked.partition}: name the server in PBS_DEFAULT instead")
        chunk = [
            f"{request.nodes}:ncpus={request.cores_per_node}:mpiprocs={request.ranks_per_node}",
            f"ompthreads={request.cores_per_rank}",
            *asked_for(asked, gpus="ngpus={}", constraint="{}"),
        ]
        return [
            f"-N {request.name}",
            f"-l select={':'.join(chunk)}",
            "-l place=scatter",
            f"-l walltime={clock(request.time_limit_s)}",
            "-r n",
            "-j oe",
            "-V",
            *asked_for(asked, partition="-q {}", account="-A {}"),
        ]

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:
        """Return the command."""
        return ("qsub", "-o", str(request.log), str(script))

    def file_of(self, number: str) -> str:
        """Return the log, without the host on which it is."""
        return "".join(job.get("Output_Path", "").partition(":")[2] for job in self._jobs([number]).values())

    def query(self, handles: Sequence[JobHandle]) -> Mapping[str, JobStatus]:
        """Ask qstat for all jobs, finished ones included; unknown ids spoil its exit code, not its answer."""
        ids = [handle.id for handle in handles if handle.id]
        for handle in handles:
            if not handle.id:
                ids += self.ask(("qselect", "-x", "-N", handle.name)).out.split()
        found = self._jobs(ids) if ids else {}
        return {str(job.get("Job_Name")): _status(number, job) for number, job in found.items()}

    def _jobs(self, ids: Sequence[str]) -> Mapping[str, Any]:
        answer = self.ask(("qstat", "-x", "-f", "-F", "json", *ids))
        text = answer.out if answer.out.lstrip().startswith("{") else ""
        if answer.code and not text and not re.search(r"Unknown Job", answer.err, re.IGNORECASE):
            raise LaunchError(f"qstat: {answer.last_words}")
        jobs: Mapping[str, Any] = json.loads(text).get("Jobs", {}) if text else {}
        return jobs


KIND = Pbs


def _status(number: str, job: Mapping[str, Any]) -> JobStatus:
    comment = str(job.get("comment", ""))
    state = str(job.get("job_state", ""))
    if state not in {"F", "X"}:
        phase: Phase = "running" if state in _RUNNING else "queued"
        return JobStatus(id=number, phase=phase, note=comment)
    code = int(job.get("Exit_status", 1))
    deleted: Ending = "cancelled" if "Exit_status" not in job else "failed"
    ending = first_match(_COMMENTS, comment, _CODES.get(code, deleted))
    return JobStatus(id=number, phase="ended", ending=ending, note=comment)
