"""What pscale asks of a scheduler, whichever it is, and what all schedulers have in common."""

from __future__ import annotations

import math
import os
import re
import shlex
import stat
import subprocess
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
_OPTIONAL = ("partition", "account", "qos", "constraint", "gpus")  # fields of `launch` that options set
_JOB_NAME = re.compile(r"pscale-[\w.+-]+-\d+", re.ASCII)  # that `JobManager` gives; none begins an option


Transport = Callable[..., Answer]  # as `isolated_process.ask`


class LimitError(LaunchError):
    """The scheduler accepts no more jobs of this user at the moment."""


class UnsureError(LaunchError):
    """The scheduler did not answer: a job may or may not have been submitted, cancelled or ended."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job: `command` runs once, on its first node, and starts the ranks from there.

    `name` is one word that no other job has; log and exit code go to `folder`.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    nodes: int
    ranks_per_node: int
    cores_per_rank: int
    time_limit_s: float
    launch: Launch  # partition, account and the like; modules and setup

    @property
    def cores_per_node(self) -> int:
        """Cores that the job needs on each node."""
        return self.ranks_per_node * self.cores_per_rank

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


class _Optional(str):
    """A field of `launch`: behind its colon stands the text for a field that is set, with * for its value."""

    def __format__(self, form: str) -> str:
        return form.replace("*", self) if self else ""


class Scheduler:
    """One kind of batch system: its words, for one engine. Commands that fail raise LaunchError.

    Strings called patterns are regular expressions. Of templates, `submit_command` and `options` have the
    values of `_values` in braces; other commands {name}, {user}, {id} and {ids}: words, or joined in a word.
    """

    name: ClassVar[str]  # in suites
    title: ClassVar[str]  # in messages

    # Commands, as templates of words.
    submit_command: ClassVar[tuple[str, ...]]
    ping: ClassVar[tuple[str, ...]]  # fails where the scheduler does not answer
    queue_command: ClassVar[tuple[str, ...]]  # prints the states of jobs: of {ids}, or of all that there are
    name_command: ClassVar[tuple[str, ...]] = ()  # prints the id or state of {name}, where {ids} are needed
    history_command: ClassVar[tuple[str, ...]] = ()  # prints the states of {ids} that left the queue
    file_command: ClassVar[tuple[str, ...]]  # prints the path of the script or the log of job {id}
    cancel_command: ClassVar[tuple[str, ...]]

    # Their answers.
    unreachable: ClassVar[str]  # pattern of what `ping` says where the scheduler exists but is down now
    unsure: ClassVar[str]  # pattern of a failure after which the job may have been submitted all the same
    job_limit: ClassVar[str]  # pattern of a refusal that is over once other jobs of the user have ended
    absent: ClassVar[str] = NEVER  # pattern of what says that job {} is unknown, of one that is not listed
    already_ended: ClassVar[str] = NEVER  # pattern of what cancelling a finished job says
    id_pattern: ClassVar[str] = r"(\d+)"  # pattern of an id; its group is what commands are given
    id_line: ClassVar[str] = "^{}(;.*)?$"  # pattern of the line that names the id of a submitted job
    log_endings: ClassVar[Sequence[tuple[Ending, str]]] = ()  # patterns of what it writes into a job's log
    memory: ClassVar[str] = ""  # what a suite says for a job with so much memory

    # The script of a job.
    directive: ClassVar[str]  # how a line with an option begins
    options: ClassVar[str]  # template of the options, one a line; empty lines are left out
    refused: ClassVar[Sequence[tuple[str, str, str]]] = ()  # field of `launch`, pattern, and what to do
    job_id_variable: ClassVar[str]  # in the job's shell
    log_escapes: ClassVar[tuple[str, str]] = ("", "")  # a letter of the log's path, and how it is written
    script_on_stdin: ClassVar[bool] = False

    # Environment variables, by patterns of their names.
    job_variables: ClassVar[str]  # describe a job: a job does not inherit those of another
    stored_variables: ClassVar[str]  # of these, the ones to keep with results: sizes, places, binding
    site_variables: ClassVar[str]  # of these, the ones that say where the scheduler is
    launch_variables: ClassVar[str] = NEVER  # would change how the launcher places ranks
    hostfile_variable: ClassVar[str] = ""  # names a file with a host for each slot
    cpus_variable: ClassVar[str] = ""  # the CPUs of each node, where slots are others
    whole_nodes: ClassVar[bool] = False  # a job has all CPUs of its nodes, and one line for each

    # Its own launcher of MPI ranks, if it has one.
    launcher: ClassVar[str] = ""  # the program, which is also the launcher's flavour
    launcher_version: ClassVar[str] = NEVER  # pattern with a group `version`, of what --version prints
    launcher_command: ClassVar[tuple[str, ...]] = ()  # what follows the program
    launcher_noise: ClassVar[str] = NEVER  # pattern of lines that it writes after a rank has failed
    launcher_advice: ClassVar[Sequence[tuple[str, str]]] = ()  # patterns of its refusals, and what to do

    def __init__(self, is_inherited: Callable[[str], bool], transport: Transport = isolated_process.ask):
        """`is_inherited` says which environment variables commands, and so jobs, see; `transport` asks."""
        self._is_inherited, self._transport = is_inherited, transport

    @property
    def submit_program(self) -> str:
        """The program that submits jobs: where it is on PATH, there may be such a scheduler."""
        return self.submit_command[0]

    def parse(self, text: str) -> Iterator[tuple[str, JobStatus]]:
        """Yield name and state of each job in an answer, if it is all there; pure."""
        raise NotImplementedError

    def file_in(self, text: str) -> str:
        """Return the path in an answer to `file_command`; pure. A site's own words come before."""
        return text.strip().rpartition("\n")[2]

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job that this process runs in; None outside of jobs of this scheduler.

        It has the hosts of a file; None where that cannot be read.
        """
        job, file = (environ.get(name, "") for name in (self.job_id_variable[1:], self.hostfile_variable))
        try:
            hosts = Counter(Path(file).read_text(encoding="utf-8").split())
        except OSError:
            return None
        stated = environ.get(self.cpus_variable, "")
        fewest = int(stated) if stated.isdecimal() else min(hosts.values(), default=1)
        cpus, nodes = None if self.whole_nodes else fewest, max(1, len(hosts))
        found = Allocation(scheduler=self.name, job=job, nodes=nodes, cpus=cpus, hostfile=file)
        return found if job else None

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

    def _values(self, request: JobRequest) -> dict[str, object]:
        """Return what templates name. Raises UsageError for a field of `launch` that no option sets."""
        launch, minutes = request.launch, max(1, math.ceil(request.time_limit_s / 60))
        for field in _OPTIONAL:
            value = getattr(launch, field)
            if value and f"{{{field}" not in self.options:
                raise UsageError(
                    f"launch.{field}: {self.title} has no option for it; choose a queue with `partition`, or "
                    "give options of its own as `directives`"
                )
        for field, pattern, advice in self.refused:
            if re.search(pattern, str(getattr(launch, field))):
                raise UsageError(f"launch.{field}: {getattr(launch, field)}: {advice}")
        if "{gpus_per_rank" in self.options and launch.gpus % request.ranks_per_node:
            raise UsageError(
                f"launch.gpus: {self.title} counts them per rank, and {launch.gpus} cannot be divided by "
                f"{request.ranks_per_node} ranks per node"
            )
        return {
            **vars(request),
            **{field: _Optional(getattr(launch, field) or "") for field in _OPTIONAL},
            "gpus_per_rank": _Optional(launch.gpus // request.ranks_per_node or ""),
            "cores_per_node": request.cores_per_node,
            "cores": request.nodes * request.cores_per_node,
            "ranks": request.nodes * request.ranks_per_node,
            "time_limit_s": math.ceil(request.time_limit_s),
            "minutes": minutes,
            "clock": f"{minutes // 60}:{minutes % 60:02}:00",
            "clock_hm": f"{minutes // 60}:{minutes % 60:02}",
            "log": str(request.log).replace(*self.log_escapes),
        }

    def submission(self, request: JobRequest, script: Path) -> tuple[str, ...]:
        """Return the command that submits the script; pure."""
        return tuple(word.format(**self._values(request), script=script) for word in self.submit_command)

    def render(self, request: JobRequest) -> str:
        """Return the job's script; pure.

        The exit code is left in a file, since a scheduler forgets. A shell handles a signal only once the
        command that it waits for has ended: hence the command in the background, and `wait`.
        """
        options = filter(None, self.options.strip().format(**self._values(request)).splitlines())
        lines = [
            "#!/bin/bash",
            *(f"{self.directive} {option}" for option in (*options, *request.launch.directives)),
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
        script.chmod(script.stat().st_mode | stat.S_IXUSR)  # some refuse others
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
        found = self._statuses([replace(handle, id=self._number(handle.id)) for handle in handles])
        return {handle.name: found[handle.name] for handle in handles if handle.name in found}

    def _statuses(self, handles: Sequence[JobHandle]) -> dict[str, JobStatus]:
        """Ask once for all jobs; by name. The answer may leave jobs out, and have others."""
        found: dict[str, JobStatus] = {}
        ids = [handle.id for handle in handles if handle.id]
        for handle in handles if self.name_command else ():
            if not handle.id:
                text = self.output(_words(self.name_command, name=handle.name))
                ids += re.findall(f"^{self.id_pattern}$", text, re.MULTILINE | re.ASCII)
                found |= dict(self.parse(text))
        by_id = any("{ids}" in word for word in self.queue_command)
        if ids or not by_id:
            found |= self._queued(ids, each=by_id)
        forgotten = [handle.id for handle in handles if handle.name not in found and handle.id]
        if forgotten and self.history_command:  # a site may keep none
            text = self.ask(_words(self.history_command, forgotten)).out
            found |= {name: each for name, each in self.parse(text) if each.id in forgotten}
        return found

    def _queued(self, ids: Sequence[str], *, each: bool) -> dict[str, JobStatus]:
        """Return the states in the queue, by name; with `each`, an answer without one of `ids` is cut."""
        argv = _words(self.queue_command, ids)
        answer = self.ask(argv)
        if answer.code and not self._is_absent(answer, r"\S+"):
            raise self._error(argv, answer)
        found = dict(self.parse(answer.out))
        named = {each.id for each in found.values()}
        for number in ids if each else ():
            if number not in named and not self._is_absent(answer, number):
                raise LaunchError(f"{argv[0]} says nothing of job {number}: {answer.last_words}")
        return found

    def _is_absent(self, answer: Answer, number: str) -> bool:
        return re.search(self.absent.replace("{}", number), answer.err, re.IGNORECASE) is not None

    def cancel(self, folders: Mapping[str, Path]) -> None:
        """End jobs, by id, with script and log in these folders; those that have ended are no error.

        Raises LaunchError for a job that has them elsewhere, and then ends none: it is not of this run.
        """
        numbers = [self._number(each) for each in folders]
        for number, folder in zip(numbers, folders.values(), strict=True):
            argv = _words(self.file_command, [number])
            answer = self.ask(argv)
            if answer.code and re.search(self.unsure, answer.err, re.IGNORECASE):
                raise self._error(argv, answer)
            file = self.file_in(answer.out)
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
            return self._transport(argv, _LIMIT_S, stdin=text, env=env)
        except subprocess.TimeoutExpired as error:
            raise UnsureError(f"{argv[0]} {UNANSWERED} in {_LIMIT_S} s") from error
        except OSError as error:
            raise LaunchError(f"cannot start {argv[0]}: {error.strerror or error}") from error

    def output(self, argv: Sequence[str]) -> str:
        """Return what a command prints; raises LaunchError if it fails, but for a job that is unknown."""
        answer = self.ask(argv)
        if answer.code and not self._is_absent(answer, r"\S+"):
            raise self._error(argv, answer)
        return answer.out


def _is_in(file: str, folder: Path) -> bool:
    try:
        return Path(file).parent.samefile(folder)
    except (OSError, ValueError):
        return False


def _words(template: Sequence[str], ids: Sequence[str] = (), name: str = "") -> tuple[str, ...]:
    """Return the words of a command."""
    values = {"ids": ",".join(ids), "id": ids[0] if ids else "", "name": name, "user": os.getuid()}
    words = (ids if word == "{ids}" else (word.format(**values),) for word in template)
    return tuple(word for each in words for word in each)


def status(number: str, ending: Ending | None, note: str = "", *, runs: bool = False) -> JobStatus:
    """Return the state of a job that has ended, `runs` or is queued."""
    phase: Phase = "ended" if ending else "running" if runs else "queued"
    return JobStatus(id=number, phase=phase, ending=ending, note=note)


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
