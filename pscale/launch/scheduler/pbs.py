"""PBS Professional and OpenPBS: qsub, qstat, qdel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pscale.launch.scheduler.base import Ending, JobStatus, Scheduler, first_match, status

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
_CODE = re.compile(r"-?\d+", re.ASCII)
_JOB = re.compile(r"^Job Id: *(\d+)(?:\.\S*)?\n(.*?)(?=^Job Id: |\Z)", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(
    r"^    (Job_Name|job_state|comment|Exit_status|Output_Path) = (.+(?:\n\t.*)*)\n", re.MULTILINE
)


class Pbs(Scheduler):
    """PBS with `select`: PBS Professional 18 or newer, OpenPBS. Chunks are spread, one on each node."""

    name, title = "pbs", "PBS"
    submit_command = ("qsub", "-o", "{log}", "{script}")
    ping = ("qstat", "-B")
    # Text: as JSON it is none where the job's environment has quotes in it, as functions do.
    queue_command, name_command = ("qstat", "-x", "-f", "{ids}"), ("qselect", "-x", "-N", "{name}")
    file_command = ("qstat", "-x", "-f", "{id}")
    cancel_command = ("qdel",)
    unreachable = r"Connection (refused|timed out)|No route to host"
    unsure = r"cannot connect to server|timed? ?out|Communication failure"
    job_limit = r"would exceed|max_queued|maximum number of jobs"
    absent = r"unknown job.*(?<![\w.-]){}(?!\d)"
    already_ended = r"has finished|Unknown Job|invalid state"
    id_pattern = r"(\d+)(?:\.[\w.-]+)?"
    log_endings = (
        ("timeout", r"job killed: walltime \d+ exceeded limit"),
        ("out_of_memory", r"job killed: mem"),
    )
    memory = "constraint: mem=4gb"
    directive, job_id_variable = "#PBS", "$PBS_JOBID"
    options = """
-N {name}
-l select={nodes}:ncpus={cores_per_node}:mpiprocs={ranks_per_node}:ompthreads={cores_per_rank}\
{gpus::ngpus=*}{constraint::*}
-l place=scatter
-l walltime={clock}
-r n
-j oe
-V
{partition:-q *}
{account:-A *}
"""
    refused = (("partition", "@", "name the server in PBS_DEFAULT instead"),)
    hostfile_variable, cpus_variable = "PBS_NODEFILE", "NCPUS"
    stored_variables = r"PBS_(JOBID|QUEUE|NUM_PPN|NCPUS|NP|NNODES)"
    job_variables, site_variables = r"PBS_.*", r"PBS_(CONF_FILE|EXEC|HOME|SERVER|DEFAULT)"

    def parse(self, text: str) -> Iterator[tuple[str, JobStatus]]:
        """Yield the jobs whose state is told, and of those that have ended all."""
        for number, job in _jobs(text):
            name, comment, state = (job.get(key, "") for key in ("Job_Name", "comment", "job_state"))
            code = job.get("Exit_status", "")
            if state in {"F", "X"} and (code or "end" in job):
                known = _CODES.get(int(code), "failed") if _CODE.fullmatch(code) else "failed"
                ending = first_match(_COMMENTS, comment, known if code else "cancelled")
                yield name, status(number, ending, comment)
            elif state not in {"", "F", "X"}:
                yield name, status(number, None, comment, runs=state in _RUNNING)

    def file_in(self, text: str) -> str:
        """Return the log, without the host on which it is."""
        return "".join(job.get("Output_Path", "").partition(":")[2] for _, job in _jobs(text))


KIND = Pbs


def _jobs(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield ids and attributes by name; long values go on in lines with a tab, and an empty line ends a job.

    The environment stands behind name, state and log, and before comment and exit code; it may have lines
    that look like them.
    """
    for number, lines in _JOB.findall(text):
        found: dict[str, str] = {"end": ""} if lines.endswith("\n\n") else {}
        for name, value in _ATTRIBUTE.findall(lines):
            if name not in found or name not in {"Job_Name", "job_state", "Output_Path"}:
                found[name] = value.replace("\n\t", "")
        yield number, found
