"""Commands of schedulers that answer from files in a folder: what a test says, or what jobs really do.

`install` puts them on PATH. A job is `<id>.json`; its state is one word of STATES, or "missing": it lives on,
and no query shows it. With a file `execute` in the folder scripts really run, as one node of this host.
Answers have the form of the real commands.
"""

import json
import os
import sys
from pathlib import Path

STATES = (
    *("queued", "running", "completed", "failed", "cancelled", "timeout"),
    *("preempted", "node_failed", "out_of_memory", "forgotten"),
)
COMMANDS = {
    "slurm": ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun"),
    "pbs": ("qsub", "qstat", "qdel", "qselect"),
    "lsf": ("bsub", "bjobs", "bkill", "lsid"),
    "flux": ("flux",),
    "cobalt": ("qsub", "qstat", "qdel"),
}
FULL = {
    "slurm": "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: "
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
    "pbs": "qsub: would exceed limit on jobs for user in queue workq",
    "lsf": "User <u>: Pending job threshold reached. Retrying in 60 seconds... job limit",
    "flux": "flux batch: ERROR: max active jobs limit exceeded for user",
    "cobalt": "The limit of 20 jobs per user in the 'default' queue has been reached",
}
UNKNOWN = {
    "slurm": "scancel: error: Kill job error on job id {}: Invalid job id specified",
    "pbs": "qdel: Unknown Job Id {}",
    "lsf": "Job <{}>: No matching job found",
    "flux": "flux-job: {}: unknown job id",
    "cobalt": "qdel: Job {} not found",
}
SLURM = {
    "queued": "PENDING|Resources",
    "running": "RUNNING|None",
    "completed": "COMPLETED|None",
    "failed": "FAILED|NonZeroExitCode",
    "cancelled": "CANCELLED|None",
    "timeout": "TIMEOUT|TimeLimit",
    "preempted": "PREEMPTED|None",
    "node_failed": "NODE_FAIL|NodeDown",
    "out_of_memory": "OUT_OF_MEMORY|OutOfMemory",
}
PBS = {
    "queued": {"job_state": "Q", "comment": "Not Running: Insufficient amount of resource: ncpus"},
    "running": {"job_state": "R", "comment": "Job run at Fri Nov 20 at 10:00 on (n1:ncpus=2)"},
    "completed": {"job_state": "F", "Exit_status": 0, "comment": "Job run at 10:00 and finished"},
    "failed": {"job_state": "F", "Exit_status": 4, "comment": "Job run at 10:00 and failed"},
    "cancelled": {"job_state": "F", "Exit_status": 271, "comment": "terminated"},
    "timeout": {"job_state": "F", "Exit_status": -29, "comment": "job killed: walltime 62 exceeded limit 60"},
    "preempted": {"job_state": "F", "Exit_status": 271, "comment": "Job preempted by deletion"},
    "node_failed": {"job_state": "F", "Exit_status": -3, "comment": "Mom n2 down or lost contact"},
    "out_of_memory": {"job_state": "F", "Exit_status": -27, "comment": "mem exceeded"},
}
LSF = {
    "queued": "PEND|-|-|New job is waiting for scheduling;",
    "running": "RUN|-|-|-",
    "completed": "DONE|-|-|-",
    "failed": "EXIT|4|-|-",
    "cancelled": "EXIT|130|TERM_OWNER: job killed by owner|-",
    "timeout": "EXIT|140|TERM_RUNLIMIT: job killed after reaching LSF run time limit|-",
    "preempted": "EXIT|130|TERM_PREEMPT: job killed after preemption|-",
    "node_failed": "ZOMBI|-|-|-",
    "out_of_memory": "EXIT|137|TERM_MEMLIMIT: job killed after reaching LSF memory usage limit|-",
}
FLUX = {
    "queued": "SCHED|||",
    "running": "RUN|||",
    "completed": "INACTIVE|COMPLETED||",
    "failed": "INACTIVE|FAILED||",
    "cancelled": "INACTIVE|CANCELED|cancel|",
    "timeout": "INACTIVE|TIMEOUT|timeout|resource allocation expired",
    "preempted": "INACTIVE|CANCELED|cancel|preempted by bank",
    "node_failed": "INACTIVE|FAILED|node-failure|lost contact with n2",
    "out_of_memory": "INACTIVE|FAILED||",  # Flux does not tell
}

NAMING = ("#SBATCH --job-name=", "#PBS -N ", "#BSUB -J ", "# flux: --job-name=", "#COBALT --jobname ")


def install(folder: Path, name: str) -> Path:
    """Make the commands of scheduler `name` in `folder`/bin; its jobs are kept in `folder`."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for command in COMMANDS[name]:
        program, call = programs / command, f"{name}_{command}"
        call = call if call in COMMANDS_OF else command
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" {call} "{folder}" "$@"\n')
        program.chmod(0o755)
    return programs


class Jobs:
    """The jobs that the commands know, for them and for tests."""

    def __init__(self, folder: Path):
        self.folder = folder

    def all(self) -> list[dict]:
        found = [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]
        return [{**job, "state": self._state(job)} for job in found]

    def _state(self, job: dict) -> str:
        if job["state"] != "executing":
            return job["state"]
        code = self.folder / f"{job['id']}.exit"
        if not code.exists():
            return "running"
        return "completed" if code.read_text().strip() == "0" else "failed"

    def known(self) -> list[dict]:
        return [job for job in self.all() if job["state"] not in {"forgotten", "missing"}]

    def set(self, number: str, state: str) -> None:
        path = self.folder / f"{number}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "state": state}))

    def submit(self, name: str, script: str, log: str, file: str = "") -> str:
        limit = self.folder / "limit"
        live = [job for job in self.all() if job["state"] in {"queued", "running"}]
        if limit.exists() and len(live) >= int(limit.read_text()):
            print(FULL[name], file=sys.stderr)
            sys.exit(1)
        number = str(1000 + len(self.all()))
        naming = next(line for line in script.splitlines() if line.startswith(NAMING))
        named = naming.split()[-1].split("=")[-1]
        executes = (self.folder / "execute").exists()
        state = "executing" if executes else "queued"
        job = {"id": number, "name": named, "state": state, "script": script, "env": dict(os.environ)}
        (self.folder / f"{number}.json").write_text(json.dumps({**job, "file": file or log}))
        if executes:
            self._execute(name, number, script, log)
        return number

    def _execute(self, name: str, number: str, script: str, log: str) -> None:
        hosts, file = self.folder / f"{number}.hosts", self.folder / f"{number}.sh"
        hosts.write_text("localhost\n" * 2)
        file.write_text(script)
        inside = {
            "slurm": {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "2"},
            "pbs": {"PBS_JOBID": number, "PBS_NODEFILE": str(hosts), "NCPUS": "2"},
            "lsf": {"LSB_JOBID": number, "LSB_DJOB_HOSTFILE": str(hosts)},
            "flux": {"FLUX_ENCLOSING_ID": number},
            "cobalt": {"COBALT_JOBID": number, "COBALT_NODEFILE": str(hosts)},
        }[name]
        import shlex  # noqa: PLC0415 - most calls have no use for these
        import subprocess  # noqa: PLC0415

        code = self.folder / f"{number}.exit"
        order = f"bash {shlex.quote(str(file))} > {shlex.quote(log)} 2>&1; echo $? > {shlex.quote(str(code))}"
        no_ends = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        subprocess.Popen(
            ["bash", "-c", order], env={**os.environ, **inside}, start_new_session=True, **no_ends
        )


def sbatch(jobs: Jobs, arguments: list[str]) -> None:
    log = next(word.partition("=")[2] for word in arguments if word.startswith("--output="))
    print(jobs.submit("slurm", Path(arguments[-1]).read_text(), log, file=arguments[-1]))


def squeue(jobs: Jobs, arguments: list[str]) -> None:
    if "--format=%o" in arguments:
        print(*(job["file"] for job in jobs.known() if f"--jobs={job['id']}" in arguments))
        return
    print("7|RUNNING|None|another job's | name\nof two lines")
    for job in jobs.known():
        print(f"{job['id']}|{SLURM[job['state']]}|{job['name']}")


def sacct(jobs: Jobs, arguments: list[str]) -> None:
    accounting = jobs.folder / "accounting"
    if not accounting.exists():
        sys.exit("Slurm accounting storage is disabled")
    asked = next(word.partition("=")[2] for word in arguments if word.startswith("--jobs=")).split(",")
    print("\n".join(line for line in accounting.read_text().splitlines() if line.split("|")[0] in asked))


def scontrol(_jobs: Jobs, _arguments: list[str]) -> None:
    print("Slurmctld(primary) at fake is UP")


def sinfo(_jobs: Jobs, arguments: list[str]) -> None:
    partitions = ("small|0/2/0/2|1|2|1000|30:00|(null)", "main*|1/2/1/4|1|2|1000|1-00:00:00|fast,big")
    asked = next((word.partition("=")[2] for word in arguments if word.startswith("--partition=")), "")
    for line in partitions:
        name = line.split("|")[0].rstrip("*")
        if asked in ("", name):
            print(name if "--format=%R" in arguments else line)


def qsub(jobs: Jobs, arguments: list[str]) -> None:
    print(jobs.submit("pbs", Path(arguments[-1]).read_text(), arguments[arguments.index("-o") + 1]))


FUNCTION = """BASH_FUNC_module%%=() { eval "$(modulecmd bash '$@')"
    job_state = F
\techo {\\"x\\": 1}
}"""


def qstat(jobs: Jobs, arguments: list[str]) -> None:
    if "-B" in arguments:
        return
    asked = arguments[arguments.index("-f") + 1 :]
    known = {job["id"]: job for job in jobs.known()}
    for number in asked:
        if number not in known:
            print(f"qstat: Unknown Job Id {number}.n0", file=sys.stderr)
            continue
        state = dict(PBS[known[number]["state"]])
        path = f"n0:{known[number]['file']}"
        attributes = {
            "Job_Name": known[number]["name"],
            "Job_Owner": "user@n0",
            "job_state": state.pop("job_state"),
            "Output_Path": f"{path[:50]}\n\t{path[50:]}",
            "Variable_List": f"PBS_O_HOME=/home/user,PBS_O_LANG=C,\n\t{FUNCTION},A=1",
            **dict(sorted(state.items(), reverse=True)),  # the comment comes before the exit code
        }
        print(f"Job Id: {number}.n0")
        print("".join(f"    {name} = {value}\n" for name, value in attributes.items()))
    sys.exit(0 if known.keys() >= set(asked) else 153)


def qselect(jobs: Jobs, arguments: list[str]) -> None:
    for job in jobs.known():
        if job["name"] == arguments[-1]:
            print(f"{job['id']}.n0")


def bsub(jobs: Jobs, arguments: list[str]) -> None:
    number = jobs.submit("lsf", sys.stdin.read(), arguments[arguments.index("-o") + 1])
    print(f"Job <{number}> is submitted to default queue <normal>.")


def bjobs(jobs: Jobs, arguments: list[str]) -> None:
    asked = arguments[arguments.index("-o") + 2 :]
    for job in jobs.known():
        if any(word.startswith("output_file") for word in arguments):
            print(*[job["file"]] * (job["id"] in asked))
        elif job["id"] in asked or ("-J" in asked and job["name"] in asked):
            print(f"{job['id']}|{job['name']}|{LSF[job['state']]}")
    for number in set(asked) - {job["id"] for job in jobs.known()} if "-J" not in asked else ():
        print(f"Job <{number}> is not found", file=sys.stderr)


def flux(jobs: Jobs, arguments: list[str]) -> None:
    match arguments[0]:
        case "batch":
            log = next(word.partition("=")[2] for word in arguments if word.startswith("--output="))
            print(jobs.submit("flux", Path(arguments[-1]).read_text(), log))
        case "jobs":
            for job in jobs.known():
                print(f"{job['id']}|{job['name']}|{FLUX[job['state']]}|")
        case "job":
            (file,) = (job["file"] for job in jobs.known() if job["id"] == arguments[2])
            options = {"output": {"stdout": {"type": "file", "path": file}}}
            print(json.dumps({"attributes": {"system": {"shell": {"options": options}}}}))
        case "cancel":
            cancel(jobs, arguments[1:])
        case "resource":
            print("4 8" if "--states=up" in arguments else "1 2")
        case "run" | "--version":
            sys.exit("flux run: not made")


def cobalt_qsub(jobs: Jobs, arguments: list[str]) -> None:
    script = Path(arguments[-1])
    if not os.access(script, os.X_OK):
        sys.exit(f"command {script} is not executable")
    log = arguments[arguments.index("-o") + 1]
    print('Job routed to queue "default".', jobs.submit("cobalt", script.read_text(), log), sep="\n")


def cobalt_qstat(jobs: Jobs, arguments: list[str]) -> None:
    if "-B" in arguments:  # which asks the other qstat
        sys.exit("qstat: error: no such option: -B")
    live = [job for job in jobs.known() if job["state"] in {"queued", "running"}]
    print("JobID  JobName  State  OutputPath\n=================================")
    for job in live:
        if not arguments[-1].isdecimal() or job["id"] == arguments[-1]:
            print(f"{job['id']}   {job['name']}  {job['state']:8}  {job['file']}  ")


def cancel(jobs: Jobs, arguments: list[str]) -> None:
    gone = {job["id"] for job in jobs.all() if job["state"] == "forgotten"}
    for number in arguments:
        if number in gone:
            sys.exit(UNKNOWN[jobs.folder.name].format(number))
        if not number.startswith("-"):
            jobs.set(number, "cancelled")


COMMANDS_OF = {
    call.__name__: call
    for call in (sbatch, squeue, sacct, scontrol, sinfo, qsub, qstat, qselect, bsub, bjobs, flux)
}
COMMANDS_OF |= {call.__name__: call for call in (cobalt_qsub, cobalt_qstat)}
COMMANDS_OF |= dict.fromkeys(("scancel", "qdel", "bkill"), cancel)
COMMANDS_OF["lsid"] = lambda *_: None

if __name__ == "__main__":
    name, folder, *words = sys.argv[1:]
    COMMANDS_OF.get(name, lambda *_: sys.exit(f"{name}: not made"))(Jobs(Path(folder)), words)
