"""Slurm: sbatch, squeue, sacct where there is accounting, scancel, srun."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping

from pscale.config import Case, Launch
from pscale.errors import LaunchError
from pscale.launch.isolated_process import Answer
from pscale.launch.machine import Placement
from pscale.launch.scheduler.base import Allocation, Ending, JobStatus, Resources, Scheduler, fields, status

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
_NODES = ("sinfo", "--noheader", "--exact", "--format=%P|%F|%X|%Y|%m|%l|%f")
_PARTITIONS = ("sinfo", "--noheader", "--format=%R")
_GROUP = re.compile(r"(\d+/){3}\d+(\|\d+\+?){3}", re.ASCII)
_STEP_S, _STEP_LIMIT_S = 10, 60.0  # how long an ended step may keep its cores; until nothing is known
_TIME = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
_STATE = re.compile(r"([A-Z_]+)(\+| by \S+)?")  # sacct marks it, or says by whom
_CODE = re.compile(r"\d+:\d+", re.ASCII)
_CPUS = re.compile(r"(\d+)(?:\(x\d+\))?")
_CPU_BIND = {"core": "cores", "socket": "sockets", "numa": "ldoms", "none": "none"}
_PMI = {  # what the library of each kind may understand, the better first
    "mpich": ("pmi2", "pmix", "cray_shasta"),
    "intel": ("pmi2", "pmix"),
    "openmpi": ("pmix", "pmi2"),
}


class Slurm(Scheduler):
    """Slurm 20.11 or newer. A script leaves nothing to defaults that a site or a shell may have changed."""

    name, title = "slurm", "Slurm"
    submit_command = ("sbatch", "--parsable", "--output={log}", "{script}")  # nothing quotes the log there
    ping = ("scontrol", "ping")
    queue_command = ("squeue", "--noheader", "--states=all", "--user={user}", "--format=%i|%T|%r|%j")
    history_command = (
        *("sacct", "--noheader", "--parsable2", "--allocations"),
        *("--format=JobIDRaw,State,ExitCode,JobName", "--jobs={ids}"),
    )
    file_command = ("squeue", "--noheader", "--jobs={id}", "--format=%o")
    cancel_command = ("scancel", "--quiet")
    unreachable = r"is DOWN|RESTORE SLURMCTLD"
    unsure = r"Socket timed out|Unable to contact slurm controller|Connection (refused|timed out)|try again"
    # Of many limits the end of other jobs lifts one, that on their number. slurmctld names the limit in its
    # own line, and says "job submit limit, user's size and/or time limits" of all.
    job_limit = r"(?s)SubmitJob|\A(?!.*(QOS|Assoc)\w+Limit).*job submit limit"
    already_ended = r"Invalid job id"
    log_endings = (
        ("timeout", r"DUE TO TIME LIMIT"),
        ("node_failed", r"DUE TO NODE FAILURE"),
        ("preempted", r"DUE TO PREEMPTION"),
        ("out_of_memory", r"oom[-_]kill"),
        ("cancelled", r"\*\*\* JOB \S+ ON \S+ CANCELLED AT"),
    )
    memory = 'directives: ["--mem=4G"]'
    directive, job_id_variable, log_escapes = "#SBATCH", "$SLURM_JOB_ID", ("%", "%%")
    options = """
--job-name={name}
--nodes={nodes}
--ntasks-per-node={ranks_per_node}
--cpus-per-task={cores_per_rank}
--threads-per-core=1
--time={clock}
--no-requeue
--open-mode=append
--export=ALL
{partition:--partition=*}
{account:--account=*}
{qos:--qos=*}
{constraint:--constraint=*}
{gpus:--gpus-per-node=*}
"""
    stored_variables = (
        r"SLURM_(JOB_(ID|NUM_NODES|NODELIST|CPUS_PER_NODE|PARTITION|QOS)|CLUSTER_NAME|NNODES|NTASKS|NPROCS"
        r"|(NTASKS|TASKS|CPUS|GPUS|MEM|THREADS)_PER_\w+|CPUS_ON_NODE|(CPU|MEM|GPU)_(BIND|FREQ)\w*"
        r"|DISTRIBUTION|HINT|MPI_TYPE|OVERCOMMIT)"
    )
    job_variables, site_variables = r"SLURM_.*", r"SLURM_CONF"
    launch_variables = (  # defaults for srun, from sbatch, salloc or a login shell
        r"(SBATCH|SALLOC|SRUN)_.*|SLURM_(NTASKS.*|NPROCS|CPUS_PER_(TASK|GPU)|TRES_PER_TASK|CPU_BIND.*|HINT"
        r"|THREADS_PER_CORE|CORE_SPEC|DISTRIBUTION|EXPORT_ENV|MPI_TYPE|MEM_BIND.*|EXACT|EXCLUSIVE|OVERCOMMIT"
        r"|WHOLE|TIMELIMIT|KILL_BAD_EXIT|WAIT|UNBUFFEREDIO|LABELIO|STD(IN|OUT|ERR)MODE|JOB_NAME)"
    )
    launcher, launcher_version = "srun", r"^slurm\S* (?P<version>\d\S*)"
    launcher_noise = (
        r"srun: (error: [^:]+: tasks? |Terminating|launch/|Job step aborted)|slurmstepd: error: \*\*\* "
    )
    launcher_advice = (
        (
            r"step creation (temporarily|still) disabled|Cancelled pending job step|create step .* busy",
            "other steps of the job hold its cores or memory, as one around pscale does: "
            "`export SLURM_OVERLAP=1` lets launches share them",
        ),
    )

    def parse(self, text: str) -> Iterator[tuple[str, JobStatus]]:
        """Yield the jobs of lines like `7|RUNNING|None|name` or, of sacct, `7|CANCELLED by 0|0:15|name`."""
        for number, said, reason, name in fields(text, 4):
            if state := _STATE.fullmatch(said):
                note = f"exit code {reason}" if _CODE.fullmatch(reason) else re.sub("^None$", "", reason)
                yield name, status(number, _ENDINGS.get(state[1]), note, runs=state[1] in _RUNNING)

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Read the nodes and CPUs of the job."""
        if "SLURM_JOB_ID" not in environ or "SLURM_JOB_NODELIST" not in environ:
            return None
        cpus = [int(count) for count in _CPUS.findall(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))]
        nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
        return Allocation(
            scheduler=self.name,
            job=environ["SLURM_JOB_ID"],
            nodes=int(nodes) if nodes.isdecimal() else 1,
            cpus=min(cpus, default=None),
        )

    def resources(self, launch: Launch) -> Resources | None:
        """Return the largest group of equal nodes of the partition that has the constraint."""
        argv = (*_NODES, *((f"--partition={launch.partition}",) if launch.partition else ()))
        groups = [group for group in fields(self.output(argv), 7) if _GROUP.fullmatch("|".join(group[1:5]))]
        if not launch.partition:  # the default one, if there is such
            groups = [group for group in groups if group[0].endswith("*")] or groups
        features = set(re.split(r"[&|,()\[\]]", launch.constraint)) - {""}
        groups = [group for group in groups if features <= set(group[6].split(","))] or groups
        if not groups:
            known = ", ".join(dict.fromkeys(self.ask(_PARTITIONS).out.split())) or "none that you may see"
            raise LaunchError(f"Slurm has no partition {launch.partition or 'by default'}; it has: {known}")
        name, nodes, sockets, cores, memory_mb, longest, _ = max(groups, key=lambda group: _count(group[1]))
        return Resources(
            host=f"partition {name.rstrip('*')}",
            cpu_model=f"slurm {name.rstrip('*')}",
            nodes=_count(nodes),
            cores_per_node=int(sockets.rstrip("+")) * int(cores.rstrip("+")),
            memory_bytes=int(memory_mb.rstrip("+")) << 20,
            max_time_s=_seconds(longest),
        )

    def obstacle(self, environ: Mapping[str, str], nodes: int, cores: int) -> str:
        """Return why a launch would wait for ever: the step around pscale has the cores that it needs.

        MPI's own launchers start a step too. Asked is for a step that does nothing.
        """
        if "SLURM_STEP_ID" not in environ:
            return ""
        size = f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cores}", "--threads-per-core=1"
        argv = ("srun", f"--immediate={_STEP_S}", *size, "--mpi=none", "true")
        kept = {
            name: value for name, value in environ.items() if not re.fullmatch(self.launch_variables, name)
        }
        try:
            answer = self._transport(argv, _STEP_LIMIT_S, env=kept)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        if not re.search(r"Unable to create step.* busy", answer.err):
            return ""
        step = f"{environ.get('SLURM_JOB_ID')}.{environ['SLURM_STEP_ID']}"
        return (
            f"step {step}, in which pscale runs, leaves its job too few cores or too little memory: launches "
            "would wait for them; `export SLURM_OVERLAP=1` first, or start pscale with `srun --overlap`"
        )

    def launcher_interfaces(self, path: str, library: str) -> Iterator[tuple[str, ...]]:
        """Yield each process manager interface that both srun and the MPI library may know."""
        try:
            answer = self.ask((path, "--mpi=list"))
        except LaunchError as error:
            answer = Answer(code=1, out="", err=str(error))
        offered = set(re.findall(r"\b(pmix|pmi2|cray_shasta)\b", answer.out + answer.err))
        for pmi in _PMI.get(library, _PMI["mpich"]):
            if pmi in offered or answer.code:  # where the list is unknown, probes decide
                yield (f"--mpi={pmi}",)

    def launcher_options(self, case: Case, placement: Placement) -> tuple[str, ...]:
        """Say everything: srun takes little from the job, since Slurm 22.05 not even the cores of a task."""
        return (
            f"--nodes={placement.nodes}",
            f"--ntasks={case.ranks}",
            f"--ntasks-per-node={placement.ranks_per_node}",
            f"--cpus-per-task={case.threads}",
            f"--cpu-bind={'none' if placement.shared else _CPU_BIND[case.launch.bind]}",
            "--threads-per-core=1",
            "--distribution=block:block",
            *(("--overcommit",) if placement.shared else ()),
            "--kill-on-bad-exit=1",
            "--export=ALL",
        )


KIND = Slurm


def _count(nodes: str) -> int:
    """Return the last of "allocated/idle/other/all": nodes that are down today do not change a suite."""
    return int(nodes.rpartition("/")[2])


def _seconds(limit: str) -> float | None:
    match = _TIME.fullmatch(limit)
    if match is None:  # infinite, n/a
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
