"""PBS Professional and OpenPBS: qsub, qstat, qdel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

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
_JOB = re.compile(r"^Job Id: *(\d+)(?:\.\S*)?\n(.*?)(?=^Job Id: |\Z)", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(
    r"^    (Job_Name|job_state|comment|Exit_status|Output_Path) = (.+(?:\n\t.*)*)\n", re.MULTILINE
)


class Pbs(Scheduler):
    """PBS with `select`: PBS Professional 18 or newer, OpenPBS."""

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
    memory = "constraint: mem=4gb"
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
        """Ask qstat for all jobs, finished ones included."""
        ids = [handle.id for handle in handles if handle.id]
        for handle in handles:
            if not handle.id:
                said = self.output(("qselect", "-x", "-N", handle.name))
                ids += re.findall(f"^{self.id_pattern}$", said, re.MULTILINE | re.ASCII)
        found = self._jobs(ids) if ids else {}
        return {job.get("Job_Name", ""): _status(number, job) for number, job in found.items()}

    def _jobs(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return the attributes of jobs, without those that are unknown.

        Raises LaunchError where the answer says nothing of a job: it may be cut, or not be one. It is asked
        for as text: as JSON it is none where the job's environment has quotes in it, as functions do.
        """
        answer = self.ask(("qstat", "-x", "-f", *ids))
        found = {each[1]: _attributes(each[2]) for each in _JOB.finditer(answer.out)}
        unknown = [line for line in answer.err.splitlines() if "unknown job" in line.lower()]
        absent = {number for line in unknown for number in re.findall(r"(?<![\w.-])\d+", line)}
        for number in ids:
            if number not in absent and not found.get(number, {}).get("job_state"):
                raise LaunchError(f"qstat says nothing of job {number}: {answer.last_words}")
        return {number: job for number, job in found.items() if number in ids}


KIND = Pbs


def _attributes(text: str) -> dict[str, str]:
    """Return attributes by name; long values go on in lines with a tab, and an empty line ends a job.

    The environment stands behind name, state and log, and before comment and exit code; it may have lines
    that look like them.
    """
    found: dict[str, str] = {}
    for name, value in _ATTRIBUTE.findall(text):
        if name not in found or name not in {"Job_Name", "job_state", "Output_Path"}:
            found[name] = value.replace("\n\t", "")
    return {**found, **({"end": ""} if text.endswith("\n\n") else {})}


def _status(number: str, job: Mapping[str, str]) -> JobStatus:
    comment, state, code = job.get("comment", ""), job["job_state"], job.get("Exit_status", "")
    if state not in {"F", "X"}:
        phase: Phase = "running" if state in _RUNNING else "queued"
        return JobStatus(id=number, phase=phase, note=comment)
    if not code and "end" not in job:
        raise LaunchError(f"qstat tells only a part of job {number}")
    known = _CODES.get(int(code), "failed") if re.fullmatch(r"-?\d+", code, re.ASCII) else "failed"
    return JobStatus(
        id=number,
        phase="ended",
        ending=first_match(_COMMENTS, comment, known if code else "cancelled"),
        note=comment,
    )
