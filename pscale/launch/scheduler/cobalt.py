"""Cobalt, of Argonne's machines: qsub, qstat, qdel. Nodes are given whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pscale.launch.scheduler.base import JobStatus, Scheduler, status

_LIST = ("qstat", "--header", "JobID:JobName:State:OutputPath")
_QUEUED = r"queued|.*hold.*|dep_fail|.*pending"
_LINE = re.compile(r"^ *(\d+) +(\S+) +(\S+) +(/.*?) *$", re.MULTILINE | re.ASCII)


class Cobalt(Scheduler):
    """Cobalt 1.0 or newer. A job that has ended is in no list: its exit code is what its script has left."""

    name, title = "cobalt", "Cobalt"
    submit_command = ("qsub", "--mode", "script", "-o", "{log}", "-e", "{log}", "{script}")
    ping = ("qstat", "-Q", "--header", "Name:State")
    queue_command, file_command = _LIST, (*_LIST, "{id}")
    cancel_command = ("qdel",)
    unreachable = unsure = r"Failed to connect|Connection (refused|timed out)|failed to contact"
    job_limit = r"limit of \d+ jobs|maxqueued|per user limit"
    already_ended = r"not found"
    directive, job_id_variable = "#COBALT", "$COBALT_JOBID"
    options = """
--jobname {name}
-n {nodes}
-t {minutes}
{partition:-q *}
{account:-A *}
{constraint:--attrs *}
"""
    hostfile_variable, whole_nodes = "COBALT_NODEFILE", True
    stored_variables = r"COBALT_(JOBID|QUEUE|PARTNAME|PARTSIZE|JOBSIZE)"
    job_variables, site_variables = r"COBALT_.*", r"COBALT_CONFIG_FILES"

    def parse(self, text: str) -> Iterator[tuple[str, JobStatus]]:
        """Yield the jobs of a table."""
        for number, name, state, _ in _LINE.findall(text):
            yield name, status(number, None, state, runs=not re.fullmatch(_QUEUED, state))

    def file_in(self, text: str) -> str:
        """Return the log."""
        return "".join(path for *_, path in _LINE.findall(text))


KIND = Cobalt
