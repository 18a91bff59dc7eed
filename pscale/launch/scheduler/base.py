"""What pscale asks of a scheduler, whichever it is, and what all schedulers have in common."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from pscale.config import Case, Launch
from pscale.errors import LaunchError, ResultsError, UsageError
from pscale.launch import isolated_process
from pscale.launch.isolated_process import Answer
from pscale.launch.machine import Machine, Placement

Phase = Literal["queued", "running", "ended"]
Ending = Literal[
    "completed", "failed", "cancelled", "timeout", "preempted", "node_failed", "out_of_memory", "vanished"
]
STARTED, EXIT = "started", "exit"  # files that a script leaves in its job's folder
NEVER = r"(?!)"  # a pattern that matches nothing
UNANSWERED = "did not answer"
_LIMIT_S = 60
_DEMANDS = (  # what sites refuse jobs for, and the field of a suite that sets it
    (r"\b(account|project)s?\b", "account"),
    (r"(?<!/)\b(qos|quality of service)\b", "qos"),
    (r"\b(partition|queue)s?\b", "partition"),
    (r"\b(feature|constraint)s?\b", "constraint"),
    (r"\b(gpu|gres|generic resource)s?\b", "gpus"),
    (r"\b(time ?limit|walltime|wall clock|duration|run ?limit)\b|WallDuration", "job_time_limit"),
    (r"\b(license|reservation)s?\b", "directives"),
)
_JOB_NAME = re.compile(r"pscale-[\w.+-]+-\d+", re.ASCII)  # that `JobManager` gives; none begins an option


class LimitError(LaunchError):
    """The scheduler accepts no more jobs of this user at the moment."""


class UnsureError(LaunchError):
    """The scheduler did not answer: a job may or may not have been submitted, cancelled or ended."""


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """The nodes and the time that a job asks for."""

    nodes: int
    ranks_per_node: int
    cores_per_rank: int
    time_limit_s: float

    @property
    def cores_per_node(self) -> int:
        """Cores that the job needs on each node."""
        return self.ranks_per_node * self.cores_per_rank


@dataclass(frozen=True, kw_only=True)
class JobRequest(JobSize):
    """A job: `command` runs once, on its first node, and starts the ranks from there.

    `name` is one word that no other job has; log and exit code go to `folder`.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    launch: Launch  # partition, account and the like; modules and setup

    @property
    def log(self) -> Path:
        """File of the job's output."""
        return self.folder / "log.txt"


@dataclass(frozen=True, kw_only=True)
class JobHandle:
    """What identifies a job: its name, and the scheduler's id as soon as that is known."""

    name: str
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """What the scheduler says of a job. `note` is its reason, in its own words."""

    id: str
    phase: Phase
    ending: Ending | None = None  # once `phase` is "ended"
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What jobs may have: nodes of one kind, and for how long; None: no limit, or an unknown one."""

    host: str  # the nodes' name in messages
    cpu_model: str
    nodes: int
    cores_per_node: int
    memory_bytes: int = 0  # of a node; 0: unknown
    max_time_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Nodes that a scheduler has given to the job around this process."""

    scheduler: str
    job: str
    nodes: int
    cpus: int | None = None  # on the node with fewest, as the scheduler counts; None: unknown
    hostfile: str = ""
    cluster: str = ""  # where one login node serves several

    def machine(self, here: Machine) -> Machine:
        """Return `here`, one of its nodes, as all of them; where the job has fewer CPUs, with fewer cores.

        An affinity mask says exactly which CPUs the job has. Without one the scheduler's count is used, in
        hardware threads or cores as the scheduler is configured.
        """
        threads_per_core = max(1, here.cpus // here.cores)
        counted = self.cpus / threads_per_core if self.cpus and not here.restricted else None
        known = [limit for limit in (here.cpu_limit, counted) if limit is not None]
        others = f" and {self.nodes - 1} more" if self.nodes > 1 else ""
        return replace(
            here,
            host=here.host + others,
            nodes=self.nodes,
            hostfile=self.hostfile,
            cpu_limit=min(known) if known and min(known) < here.cores else here.cpu_limit,
        )

    @classmethod
    def from_hostfile(cls, scheduler: str, job: str, file: str, cpus: str | None = None) -> Allocation | None:
        """Read a file that names a host once for each slot; None where it cannot be read."""
        try:
            hosts = Counter(Path(file).read_text(encoding="utf-8").split())
        except OSError:
            return None
        fewest = int(cpus) if cpus and cpus.isdecimal() else min(hosts.values(), default=1)
        return cls(scheduler=scheduler, job=job, nodes=max(1, len(hosts)), cpus=fewest, hostfile=file)


class Scheduler(ABC):
    """One kind of batch system. Commands that fail raise LaunchError with their output.

    Strings called patterns are regular expressions.
    """

    name: ClassVar[str]  # in suites
    title: ClassVar[str]  # in messages

    # Detection and commands.
    submit_program: ClassVar[str]
    ping: ClassVar[tuple[str, ...]]  # a command that fails where the scheduler does not answer
    unreachable: ClassVar[str]  # pattern of its output where the scheduler exists but is down now
    cancel_command: ClassVar[tuple[str, ...]]
    already_ended: ClassVar[str] = NEVER  # pattern of what cancelling a finished job says
    job_limit: ClassVar[str]  # pattern of a refusal that is over once other jobs of the user have ended
    unsure: ClassVar[str]  # pattern of a failure after which the job may have been submitted all the same
    memory: ClassVar[str] = ""  # what a suite says for a job with so much memory
    id_pattern: ClassVar[str] = r"(\d+)"  # pattern of an id; its group is what commands are given
    id_line: ClassVar[str] = "^{}(;.*)?$"  # pattern of the line that names the id of a submitted job
    log_endings: ClassVar[Sequence[tuple[Ending, str]]] = ()  # patterns of what it writes into a job's log

    # The script of a job.
    directive: ClassVar[str]  # how a line with an option begins
    job_id_variable: ClassVar[str]  # in the job's shell
    has_qos: ClassVar[bool] = False
    script_on_stdin: ClassVar[bool] = False

    # Environment variables, by patterns of their names.
    job_variables: ClassVar[str]  # describe a job: a job does not inherit those of another
    stored_variables: ClassVar[str]  # of these, the ones to keep with results: sizes, places, binding
    site_variables: ClassVar[str]  # of these, the ones that say where the scheduler is
    launch_variables: ClassVar[str] = NEVER  # would change how the launcher places ranks

    # Its own launcher of MPI ranks, if it has one.
    launcher: ClassVar[str] = ""  # the program, which is also the launcher's flavour
    launcher_version: ClassVar[str] = NEVER  # pattern with a group `version`, of what --version prints
    launcher_command: ClassVar[tuple[str, ...]] = ()  # what follows the program
    launcher_noise: ClassVar[str] = NEVER  # pattern of lines that it writes after a rank has failed
    launcher_advice: ClassVar[Sequence[tuple[str, str]]] = ()  # patterns of its refusals, and what to do

    def __init__(self, is_inherited: Callable[[str], bool]):
        """`is_inherited` says which environment variables commands, and so jobs, see."""
        self._is_inherited = is_inherited

    @abstractmethod
    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job that this process runs in; None outside of jobs of this scheduler."""

    @abstractmethod
    def options(self, request: JobRequest) -> list[str]:
        """Return the options in the script of a job, without the user's own directives; pure."""

    @abstractmethod
    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:
        """Return the command that submits the script; pure."""

    @abstractmethod
    def query(self, handles: Sequence[JobHandle]) -> Mapping[str, JobStatus]:
        """Ask once for all jobs; by name. The answer may leave jobs out, and have others."""

    @abstractmethod
    def file_of(self, number: str) -> str:
        """Return the script or the log of a job, as the scheduler knows it; empty for an unknown job."""

    def resources(self, launch: Launch) -> Resources | None:  # noqa: ARG002
        """Return what jobs with this partition may have; None where the scheduler cannot be asked."""
        return None

    def obstacle(self, environ: Mapping[str, str], nodes: int, cores: int) -> str:  # noqa: ARG002
        """Return why a launch of this size cannot start in the job around this process, or nothing."""
        return ""

    def launcher_interfaces(self, path: str, library: str) -> Iterable[tuple[str, ...]]:  # noqa: ARG002
        """Yield the options by which ranks may find each other, the better first, for an MPI flavour."""
        return ((),)

    def launcher_options(self, case: Case, placement: Placement) -> tuple[str, ...]:  # noqa: ARG002
        """Return the launcher's options that place and bind the ranks of a case; pure."""
        return ()

    def render(self, request: JobRequest) -> str:
        """Return the job's script; pure.

        The exit code is left in a file, since a scheduler forgets. A shell handles a signal only once the
        command that it waits for has ended: hence the command in the background, and `wait`.
        """
        if request.launch.qos and not self.has_qos:
            raise UsageError(
                f"launch.qos: {self.title} has no quality of service; choose a queue with `partition`"
            )
        lines = [
            "#!/bin/bash",
            *(
                f"{self.directive} {option}"
                for option in (*self.options(request), *request.launch.directives)
            ),
            "",
            f"folder={shlex.quote(str(request.folder))}",
            f'rm -f "$folder/{EXIT}"  # of a job that was queued again',
            f'echo "{self.job_id_variable}" > "$folder/{STARTED}"',
            f'trap \'echo "$?" > "$folder/{EXIT}.tmp"; mv "$folder/{EXIT}.tmp" "$folder/{EXIT}"\' EXIT',
            'trap \'kill -TERM "$child" 2>/dev/null; wait "$child"; exit 143\' TERM',
            *(f"module load {shlex.quote(module)} || exit 1" for module in request.launch.modules),
            *request.launch.setup.splitlines(),
            "",
            f"{shlex.join(request.command)} &",
            "child=$!",
            'wait "$child"',
            "",
        ]
        return "\n".join(lines)

    def submit(self, request: JobRequest, script: Path) -> str:
        """Submit and return the job's id.

        Raises LimitError where the user has too many jobs, UnsureError where no answer came.
        """
        argv = self.submission(request, script)
        answer = self.ask(argv, stdin=script if self.script_on_stdin else None)
        if answer.code == 0:
            whole = answer.out[: answer.out.rfind("\n") + 1]  # a cut number is that of another job
            named = [*re.finditer(self.id_line.format(self.id_pattern), whole, re.MULTILINE | re.ASCII)]
            if named:  # a site's own words come before
                return named[-1][1]
            raise UnsureError(f"{argv[0]} names no job: {answer.last_words}")
        said = answer.err + answer.out
        if re.search(self.job_limit, said, re.IGNORECASE):
            raise LimitError(f"{argv[0]}: {answer.last_words}")
        raise self._error(argv, answer, self._fields(said))

    def _error(self, argv: Sequence[str], answer: Answer, advice: str = "") -> LaunchError:
        """Return what a command that failed has said, as UnsureError if it was not heard."""
        if re.search(self.unsure, answer.err + answer.out, re.IGNORECASE):
            return UnsureError(f"{argv[0]}: {answer.last_words}")
        return LaunchError(f"{argv[0]}: {answer.last_words}{advice}")

    def _fields(self, refusal: str) -> str:
        """Return the fields of a suite that set what a refusal speaks of."""
        fields = [field for pattern, field in _DEMANDS if re.search(pattern, refusal, re.IGNORECASE)]
        if self.memory and re.search(r"\bmem(ory)?\b", refusal, re.IGNORECASE):
            fields.append(self.memory)
        named = ", ".join(f"`launch.{field}`" for field in fields)
        return f"; a suite or a site's profile sets {named} (docs/clusters.md)" if fields else ""

    def poll_many(self, handles: Sequence[JobHandle]) -> Mapping[str, JobStatus]:
        """Ask once for all jobs; by name. Those of which the scheduler knows nothing are left out.

        Raises ResultsError for a name or an id that pscale does not write: a journal may be anybody's.
        """
        for handle in handles:
            if not _JOB_NAME.fullmatch(handle.name):
                raise ResultsError(f"{handle.name!r:.60} is not a job of pscale; the journal is damaged")
        found = self.query([replace(handle, id=self._number(handle.id)) for handle in handles])
        return {handle.name: found[handle.name] for handle in handles if handle.name in found}

    def cancel(self, folders: Mapping[str, Path]) -> None:
        """End jobs, by id, with script and log in these folders; those that have ended are no error.

        Raises LaunchError for a job that has them elsewhere, and then ends none: it is not of this run.
        """
        numbers = [self._number(each) for each in folders]
        for number, folder in zip(numbers, folders.values(), strict=True):
            file = self.file_of(number).strip().rpartition("\n")[2]
            if file and not _is_in(file, folder):
                ending = " ".join((*self.cancel_command, number))
                raise LaunchError(f"job {number} is not of this run: it has {file!r}; `{ending}` ends it")
        argv = (*self.cancel_command, *numbers)
        answer = self.ask(argv)
        if answer.code and not re.search(self.already_ended, answer.err, re.IGNORECASE):
            raise self._error(argv, answer)

    def _number(self, job: str) -> str:
        """Return an id as commands get it: without the name of a host, which would be asked."""
        known = re.fullmatch(self.id_pattern, job, re.ASCII)
        if job and not known:
            raise ResultsError(f"{job!r:.60} is not a job id of {self.title}; the journal is damaged")
        return known[1] if known else ""

    def ask(self, argv: Sequence[str], stdin: Path | None = None) -> Answer:
        """Run a command; raises UnsureError if it takes too long, LaunchError if it does not exist."""
        env = {name: value for name, value in os.environ.items() if self._is_inherited(name)}
        try:
            text = stdin.read_text(encoding="utf-8") if stdin else ""
            return isolated_process.ask(argv, _LIMIT_S, stdin=text, env=env)
        except subprocess.TimeoutExpired as error:
            raise UnsureError(f"{argv[0]} {UNANSWERED} in {_LIMIT_S} s") from error
        except OSError as error:
            raise LaunchError(f"cannot start {argv[0]}: {error.strerror or error}") from error

    def output(self, argv: Sequence[str]) -> str:
        """Return what a command prints; raises LaunchError if it fails."""
        answer = self.ask(argv)
        if answer.code:
            raise self._error(argv, answer)
        return answer.out


def _is_in(file: str, folder: Path) -> bool:
    try:
        return Path(file).parent.samefile(folder)
    except (OSError, ValueError):
        return False


def asked_for(launch: Launch, **options: str) -> list[str]:
    """Return the options for the fields of `launch` that a user has set, each with a place for the value."""
    return [option.format(value) for name, option in options.items() if (value := getattr(launch, name))]


def first_match(endings: Iterable[tuple[str, Ending]], text: str, otherwise: Ending) -> Ending:
    """Return the ending of the first pattern that is in a text, in capitals or not."""
    found = (ending for pattern, ending in endings if re.search(pattern, text, re.IGNORECASE))
    return next(found, otherwise)


def fields(text: str, count: int) -> Iterator[list[str]]:
    """Yield the fields between | of every line that has so many; the last may have a | of its own."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", count - 1)]
        if len(parts) == count:
            yield parts


def clock(seconds: float) -> str:
    """Write a time as H:MM:SS, in whole minutes, rounded up."""
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02}:00"
