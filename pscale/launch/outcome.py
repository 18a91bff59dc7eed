"""How one launch ended, from the files that it left, and the report of one that hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypedDict

from pscale.config.choices import MOST_RANKS
from pscale.launch.scheduler import SCHEDULERS
from pscale.launch.search import text_of, visible
from pscale.runs.host import as_ranges
from pscale.runs.launch_folder import LaunchFolder
from pscale.runs.run_shape import mismatch

Status = Literal[  # the last four: what became of the job around a launch
    "ok",
    "watched",
    "warm-up",
    "failed",
    "timeout",
    "skipped",
    "hung",
    "invalid",
    "cancelled",
    "preempted",
    "node_failed",
    "vanished",
]

RESULT, BORN, STDOUT, STDERR = "result.json", "born", "stdout.log", "stderr.log"

_HANG_REPORTS = "hang-*.jsonl"  # a file for each host, a line for each rank
_REPORTS_S = 3.0  # ranks report at different moments
_REPORTS_SHARE = 0.25  # of the time without progress that counts as a hang
_LONGEST_BYTES = 16 << 20  # of a file that ranks write for us
Report = Mapping[str, Any]
_QUOTED_LINES = 3
_INNERMOST_FIRST = "(most recent call first):"  # how `faulthandler` heads a stack
_QUOTED_BYTES = 64 << 10
_DECORATION = re.compile(r"[\s=-]*")
# What launchers of schedulers write about ranks that have failed.
_LAUNCHER_NOISE = re.compile("|".join(scheduler.launcher_noise for scheduler in SCHEDULERS))
_BOILERPLATE = re.compile(  # what Hydra and Open MPI write after a rank has failed: the same of any failure
    r"=\s+(BAD TERMINATION|PID \d+ RUNNING|EXIT CODE:|CLEANING UP|YOU CAN IGNORE)"
    r"|YOUR APPLICATION TERMINATED WITH|This typically refers to a problem|Please see the FAQ page"
    r"|(mpirun|mpiexec|prterun) (noticed|detected|has exited)|(exited on )?signal \d+ \(\w"
    r"|thus causing the job|Primary job +terminated|a non-zero exit code\. Per user|Process name: "
    r"|Exit code: |Proc: \[|Errorcode: |NOTE: invoking MPI_ABORT|You may or may not see output"
    r'|exactly when Open MPI kills|"abort"\. This may have caused|terminated by signals sent by'
    r"|\[\S+:\d+\] (\*\*\* (Process received|End of error)|Signal code:|Failing at |\[ *\d+\])"
)
_LEFT_EARLY = re.compile(  # what Open MPI writes, in many lines, of a rank that ends without MPI_Finalize
    r"(?:mpirun|mpiexec|prterun) has exited due to process rank (\d+)(?:.*\n){1,30}?-{20,}"
)
_SIGNAL, _LAST_SIGNAL = 128, 64  # added to the number of a signal for an exit code by shells and launchers
_OFTEN = {
    "SIGKILL": "too little memory",
    "SIGBUS": "/dev/shm or a disk is full",
    "SIGXFSZ": "the limit of `ulimit -f`",
    "SIGXCPU": "the limit of `ulimit -t`",
}
_SIGNALLED = re.compile(r"\(signal (\d+)\)|exited on\s+signal (\d+)")  # Hydra, Open MPI
_STATUS = re.compile(r"=\s+EXIT CODE: (\d+)")  # Hydra
_ADVICE = (  # what launchers say when they refuse, and what to do about it
    (
        r"not enough slots|Out of resource",
        "Open MPI counts fewer cores than this needs: use fewer ranks, or `launch: {oversubscribe: true}`",
    ),
    (
        r"attempt to run as root",
        "run as another user, or allow it with `launch: {extra: [--allow-run-as-root]}`",
    ),
    (
        r"larger than total system size",
        "more cores asked for than there are: use fewer threads, or `launch: {bind: none}`",
    ),
    (
        r"duplicate setting|listed more than once",
        "`launch: {extra: ...}` repeats an option that pscale gives itself",
    ),
    (
        r"unsupported PMI version|no-pmix|PMI_Init|PMIX_Init|suspicious MPI execution environment",
        "launcher and the MPI library that mpi4py loads are of different kinds: `pscale doctor` names both",
    ),
    (
        r"mpi/pmi2: value not properly terminated",
        "the PMI of this launcher cuts long addresses of MPICH off: "
        "`launch: {env: {MPIR_CVAR_CH4_NETMOD: ofi}}`",
    ),
    (
        r"cannot load MPI library",
        "mpi4py finds no MPI: `pip install 'pscale[mpich]'`, or load the site's module",
    ),
    (r"No space left on device|Disk quota exceeded", "the disk is full"),
    (
        r"(?m)^(Fortran runtime error: End of file|EOFError: EOF when reading a line)",
        "it read to the end of its input: a workload has standard input only with `stdin: FILE`",
    ),
    *(advice for scheduler in SCHEDULERS for advice in scheduler.launcher_advice),
)


class _Failure(TypedDict):
    """What a rank that fails leaves."""

    rank: int
    status: str
    traceback: str
    message: str
    unix_s: float


class _Hang(TypedDict):
    """What a rank writes that makes no progress."""

    rank: int
    ranks: int
    verb: str | None
    axis: str | None
    group: list[int]
    step: int | None
    phase: str | None
    still_s: float
    stack: list[str]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A figure of a launch in `unit`; of a step time that the program tells step by step, all of them."""

    value: float
    unit: str
    resolution: float | None = None  # unit of the last digit that was printed; None: an exact number
    steps: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a launch ended, by what it left. `reason` is one line, or empty."""

    status: Status
    reason: str = ""
    figures: Mapping[str, Reading] = field(default_factory=dict)  # of a workload that ended well


@dataclass(frozen=True, kw_only=True)
class Outcome(Verdict):
    """The end of one launch; `exit_code` is minus the number of a signal."""

    wall_s: float
    exit_code: int
    started_unix_s: float
    failed_at_startup: bool = False  # before its ranks had formed their MPI world
    cut_short: bool = False  # it did not end by itself


def judge(folder: LaunchFolder, exit_code: int) -> Verdict:
    """Return how a launch ended that ended by itself and left `folder`."""
    if failure := _first_failure(folder):
        status: Status = "invalid" if failure["status"] == "invalid" else "failed"
        return Verdict(status=status, reason=_quoted(failure))
    if exit_code == 0 and folder.is_file(RESULT):
        return Verdict(status="ok")
    return Verdict(status="failed", reason=cause(folder, exit_code) + last_words(folder))


def overdue(folder: LaunchFolder, limit_s: float) -> str:
    """Return the reason of a launch that was ended because it took more than `limit_s`."""
    return described(f"no end after {limit_s:g} s (time_limit)", folder)


def described(cause: str, folder: LaunchFolder) -> str:
    """Return the reason of a launch that was ended for a `cause`: with what its ranks have said before."""
    failure = _first_failure(folder)
    return cause + (f": {_quoted(failure)}" if failure else last_words(folder))


def last_words(folder: LaunchFolder, *logs: str) -> str:
    """Return what to do about the end of a log, that end, and where it is, to be put behind a cause.

    It is the first of `logs` that says anything; standard error, if none are named.
    """
    texts = {name: _tail(folder, name) for name in logs or (STDERR,)}
    name, text = next((each for each in texts.items() if each[1].strip()), (next(iter(texts)), ""))
    lines = [
        visible(line.strip())
        for line in _LEFT_EARLY.sub("", text).splitlines()
        if not _DECORATION.fullmatch(line)
    ]
    said = "".join(f": {' / '.join(told)}" for told in [_telling(lines)] if told)
    advice = next((f"; {advice}" for pattern, advice in _ADVICE if re.search(pattern, text)), "")
    return f"{advice}{said} [{folder.path / name}]"


def _telling(lines: Sequence[str]) -> Sequence[str]:
    """Return the last lines or, of a stack that a rank left when it was ended, where it was.

    Lines of launchers about ranks that ended are used only where there are no others.
    """
    lines = [line for line in lines if not _BOILERPLATE.match(line)]
    lines = [line for line in lines if not _LAUNCHER_NOISE.match(line)] or lines
    stacks = [number for number, line in enumerate(lines, 1) if line.endswith(_INNERMOST_FIRST)]
    if stacks and all(line.startswith("File ") for line in lines[stacks[-1] :]):
        return lines[stacks[-1] :][:_QUOTED_LINES]
    return lines[-_QUOTED_LINES:]


def _first_failure(folder: LaunchFolder) -> dict[str, Any] | None:
    """Return what the first rank to fail left behind: it takes the others with it."""
    return min(_failures(folder), key=lambda failure: float(failure["unix_s"]), default=None)


def _failures(folder: LaunchFolder) -> Iterator[dict[str, Any]]:
    for name in folder.names("failure-*.json"):
        with suppress(OSError, ValueError, RecursionError):  # the disk was full, say: the log will have to do
            failure = json.loads(_start_of(folder, name))
            if not mismatch(_Failure, failure):
                yield failure


def _quoted(failure: dict[str, Any]) -> str:
    lines = (failure["traceback"] or failure["message"]).strip().splitlines()
    return f"rank {failure['rank']}: {lines[-1] if failure['traceback'] else ' '.join(lines)}"


def cause(folder: LaunchFolder, exit_code: int) -> str:
    """Return why a launch ended that left no results, as far as its exit code and its logs tell."""
    if exit_code == 0:
        return "ended without an error but left no results"
    if exit_code < 0:
        return f"the launcher was ended by {signal_name(-exit_code)}"
    said = _tail(folder, STDOUT) + _tail(folder, STDERR)
    if numbers := _signals(said):
        return f"a rank was ended by {' or '.join(map(signal_name, numbers))}"
    if left := _LEFT_EARLY.search(said):
        return f"rank {left[1]} ended before MPI_Finalize, exit code {exit_code} of the launcher"
    number = exit_code - _SIGNAL
    return f"exit code {exit_code}" + (f", of {signal_name(number)}" if 0 < number <= _LAST_SIGNAL else "")


def _signals(said: str) -> list[int]:
    """Return which signals may have ended a rank, by what the launcher said.

    Hydra writes the bits of the statuses of all ranks as one, also of those that it has killed itself, and
    the status of one of them.
    """
    found = _SIGNALLED.search(said)
    if not found or not found[1]:
        return [int(found[2])] if found else []
    merged, kill = int(found[1]), int(signal.SIGKILL)
    one = next((int(each[1]) for each in _STATUS.finditer(said)), merged)
    if one == kill != merged:
        return [merged, *(number for number in range(1, merged) if number | kill == merged)]
    return [one if one | kill == merged else merged]


def signal_name(number: int) -> str:
    """Return the name of a signal, and what it often means."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (often: {_OFTEN[name]})" if name in _OFTEN else name


def _tail(folder: LaunchFolder, name: str) -> str:
    """Return the end of a log; nothing where it cannot be read."""
    try:
        return tail(folder.open(name))
    except OSError:
        return ""


def tail(file: BinaryIO) -> str:
    """Return the end of an open log, and close it."""
    with file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _QUOTED_BYTES))
        return text_of(file.read(_QUOTED_BYTES), "utf-8")


class HangReports:
    """The reports that ranks of the job in `folder` write when they make no progress."""

    def __init__(self, folder: LaunchFolder, clock: Callable[[], float] = time.monotonic):
        self._folder, self._clock = folder, clock
        self._first: float | None = None

    def are_complete(self) -> bool:
        """Tell whether all ranks have reported, or enough time has passed since the first did."""
        found = list(_reports(self._folder))
        if not found:
            return False
        if len(found) >= int(found[0]["ranks"]):
            return True
        if self._first is None:
            self._first = self._clock()
            return False
        limit_s = max(_REPORTS_S, _REPORTS_SHARE * max(float(report["still_s"]) for report in found))
        return self._clock() - self._first > limit_s


def describe_hang(folder: LaunchFolder) -> str:
    """Return the hang report of the job in `folder` in one line: who is in which call, who is missing.

    Empty where no rank reported a hang.
    """
    reports = sorted(_reports(folder), key=lambda report: int(report["rank"]))
    if not reports:
        return ""
    missing = set(range(reports[0]["ranks"])) - {report["rank"] for report in reports}
    calls: dict[tuple[str, str, tuple[int, ...]], list[Report]] = defaultdict(list)
    elsewhere = []
    for report in reports:
        if report["verb"]:
            calls[report["verb"], report["axis"], tuple(report["group"])].append(report)
        else:
            elsewhere.append(report)
    parts = [_call(verb, axis, found) for (verb, axis, _), found in calls.items()]
    parts += [f"rank {report['rank']} is in no call but{_place(report)}" for report in elsewhere]
    if missing:
        parts.append(f"no report from {ranks(sorted(missing))}: ended, stopped or still running")
    still_s = max(report["still_s"] for report in reports)
    return f"no progress for {still_s:.3g} s: {'; '.join(parts)} [{folder.path / _HANG_REPORTS}]"


def ranks(numbers: Sequence[int]) -> str:
    """Write "rank 3", or "ranks 0-2, 5"."""
    return f"rank{'s' if len(numbers) > 1 else ''} {as_ranges(numbers, ', ')}"


def _call(verb: str, axis: str, found: Sequence[Report]) -> str:
    """Say who is in a call, and which ranks of its group are not."""
    inside = [int(report["rank"]) for report in found]
    missing = sorted(set(found[0]["group"]) - set(inside))
    absent = f", {ranks(missing)} missing" if missing else ""
    step = (
        "" if found[0]["step"] is None else f" (step {found[0]['step']}, {found[0]['phase'] or 'no phase'})"
    )
    return f"{ranks(inside)} in {verb} over {axis}{step}{absent}"


def _place(report: Report) -> str:
    """Return the innermost line of a stack, without the folders."""
    if not report["stack"]:
        return " in an unknown place"
    where, _, line = str(report["stack"][-1]).partition(": ")
    path, _, function = where.partition(" ")
    return f" at {Path(path).name} {function}: {line}"


def _reports(folder: LaunchFolder) -> Iterator[dict[str, Any]]:
    for name in folder.names(_HANG_REPORTS):
        with suppress(OSError, ValueError, RecursionError):  # a line is being written
            found = [json.loads(line) for line in _start_of(folder, name).splitlines()]
            yield from (each for each in found if not mismatch(_Hang, each) and each["ranks"] <= MOST_RANKS)


def _start_of(folder: LaunchFolder, name: str) -> str:
    """Return what a rank has written into a file, as far as it is of a sensible size."""
    with folder.open(name) as file:
        return file.read(_LONGEST_BYTES).decode()
