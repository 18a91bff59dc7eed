"""IBM Spectrum LSF: bsub, bjobs, bkill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pscale.launch.scheduler.base import Ending, JobStatus, Scheduler, fields, first_match, status

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
_LIST = ("bjobs", "-a", "-noheader", "-o", _FIELDS)


class Lsf(Scheduler):
    """LSF 10.1 or newer. A slot is a core, with and without affinity scheduling."""

    name, title = "lsf", "LSF"
    submit_command, script_on_stdin = ("bsub", "-o", "{log}"), True
    ping = ("lsid",)
    queue_command, name_command = (*_LIST, "{ids}"), (*_LIST, "-J", "{name}")
    # However long it is:
    file_command = ("bjobs", "-noheader", "-o", "output_file:4096 delimiter='|'", "{id}")
    cancel_command = ("bkill",)
    unreachable = r"LIM is down|Cannot contact LIM|LSF is down"
    unsure = r"batch daemon not responding|LSF is down|Communication time ?out"
    job_limit = r"(pending|job|slot).* (limit|threshold)|limit .*reached"
    absent = r"<{}> is not found|No (matching )?job found|No unfinished job"
    already_ended = r"already finished|is not found|No matching job"
    id_line = "Job <{}>"
    log_endings = (
        ("timeout", r"TERM_RUNLIMIT"),
        ("preempted", r"TERM_PREEMPT"),
        ("out_of_memory", r"TERM_MEMLIMIT"),
        ("cancelled", r"TERM_OWNER|TERM_ADMIN"),
    )
    memory = 'directives: ["-M 4GB"]'
    directive, job_id_variable = "#BSUB", "$LSB_JOBID"
    options = """
-J {name}
-n {cores}
-R "span[ptile={cores_per_node}]"
{constraint:-R "select[*]"}
-W {clock_hm}
-rn
{partition:-q *}
{account:-P *}
{gpus:-gpu "num=*"}
"""
    hostfile_variable = "LSB_DJOB_HOSTFILE"
    stored_variables = r"LSB_(JOBID|QUEUE|MCPU_HOSTS|DJOB_NUMPROC|MAX_NUM_PROCESSORS|BIND_CPU_LIST)"
    job_variables = r"(LSB|LS)_.*"
    site_variables = r"LSF_.*|LS_(JOBPID|EXEC)|LSB_(SUB_ADDITIONAL|CONFDIR|SHAREDIR)"

    def parse(self, text: str) -> Iterator[tuple[str, JobStatus]]:
        """Yield the jobs of lines like `7|name|EXIT|130|TERM_OWNER: …|-`."""
        for number, name, state, code, reason, pending in fields(text, 6):
            note = "" if (said := reason if state == "EXIT" else pending) == "-" else said
            ending: Ending | None = "completed" if state == "DONE" else None
            if state in {"EXIT", "ZOMBI"}:
                ending = first_match(_REASONS, note, "node_failed" if state == "ZOMBI" else "failed")
                note = note or f"exit code {code}"
            yield name, status(number, ending, note, runs=state in _RUNNING)


KIND = Lsf
