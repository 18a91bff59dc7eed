"""Start one job on this machine, wait for it, and leave nothing of it running."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from pscale.errors import LaunchError
from pscale.launch.command import Command
from pscale.launch.outcome import (
    BORN,
    STDERR,
    STDOUT,
    HangReports,
    Outcome,
    Verdict,
    describe_hang,
    described,
    judge,
    overdue,
    ranks,
)
from pscale.runs.atomic_files import open_file
from pscale.runs.launch_folder import LaunchFolder

TAG = "PSCALE_JOB"  # environment variable that marks all processes of a job

_LOGS = STDOUT, STDERR
_PARENTS = "hydra_pmi_proxy", "prterun"  # of the ranks on a host: MPICH and Intel MPI, Open MPI
_RANK, _RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_RANKS_HERE = "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"
LARGEST_LOG_BYTES, _KEPT_BYTES = 64 << 20, 1 << 20
_LARGEST_MEANWHILE = 256 << 20  # of a log that is not cut yet, of a job that runs
_BLOCK = 512  # bytes, as stat(2) counts
_PUNCH_HOLE = 3  # with FALLOC_FL_KEEP_SIZE: fallocate(2)
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 3.0  # for MPI to clean up after itself before it is killed
_KILLS = 5  # more than one: a process may start while the others are killed
_PAUSE_S = 0.01

ReadOn = Callable[[LaunchFolder, str, int], None]  # a log up to a byte
# Why a job is ended; those of its ranks that ended before the others had met them, as far as they are known.
Overrun = Literal["hung", "timeout"] | frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Observer:
    """What a job tells while it runs, beside its processes: by default nothing."""

    look_s: float = 2.0  # between two looks at it
    is_stuck: Callable[[], bool] = lambda: False
    is_joining: Callable[[], bool] = lambda: False  # ranks of it wait in MPI_Init for the others
    ending: Callable[[int], str] = lambda _: "ended"  # how a rank ended that has not joined them


def launch(
    command: Command,
    folder: Path,
    time_limit_s: float,
    *,
    observer: Observer | None = None,
    judged: Callable[[LaunchFolder, int], Verdict] = judge,
    read_on: ReadOn | None = None,
    inside: Path | None = None,
    stdin: Path | None = None,
    shows: bool = False,
) -> Outcome:
    """Run a job whose logs and results go to `folder`; one that `shows` its output has the terminal instead.

    Its standard input is a file; none is that of pscale where it `shows` its output, and empty otherwise.

    Its processes start `inside` a folder, or that of pscale. What it left, and the exit code, are `judged`;
    before a part of a large log is left out meanwhile, the log is `read_on` up to a byte.
    It is ended after `time_limit_s`, when the `observer`, or else files of our own ranks, tell that it is
    stuck or that a rank has ended for which others wait in MPI_Init, and when the user interrupts. Raises
    LaunchError where it cannot be started or `folder` cannot be written.
    """
    job, before, shared = tag(folder), _adopted(), shared_segments()
    started_unix_s, started = time.time(), time.perf_counter()
    try:
        held = LaunchFolder(folder)
    except OSError as error:
        raise _not_started(command, folder, error) from error
    try:
        try:
            process = _start(command, held, job, inside, stdin, shows=shows)
            observer = observer or Observer(
                is_stuck=HangReports(held).are_complete, is_joining=lambda: not held.is_file(BORN)
            )
            with _handing_on(process, signal.SIGUSR1):
                overrun = _wait(process, observer, time_limit_s, held, read_on)
            wall_s = time.perf_counter() - started
        finally:  # also what a launcher that crashed has left behind
            end(job, before)
            remove_segments(shared_segments() - shared)
        exit_code = process.wait()
        _bury(before)
        verdict = _ended(held, overrun, time_limit_s, observer, shows=shows) or judged(held, exit_code)
    finally:
        _cut_logs(held)
    return Outcome(
        status=verdict.status,
        reason=verdict.reason,
        figures=verdict.figures,
        wall_s=wall_s,
        exit_code=exit_code,
        started_unix_s=started_unix_s,
        failed_at_startup=verdict.status == "failed" and not held.is_file(BORN),
        cut_short=overrun is not None,
    )


def _ended(
    folder: LaunchFolder, overrun: Overrun | None, limit_s: float, observer: Observer, *, shows: bool
) -> Verdict | None:
    """Return the verdict on a job that was ended, or has taken its `folder` away; None: its results tell."""
    if not folder.is_in_place():
        reason = f"the program took {folder.path} away, the folder of its launch"
        return Verdict(status="failed", reason=reason)
    match overrun:
        case "hung":
            return Verdict(status="hung", reason=describe_hang(folder))
        case "timeout":
            return Verdict(status="timeout", reason=overdue(folder, limit_s))
        case frozenset():
            reason = f"{_endings(overrun, observer)} before MPI_Init, in which the others wait"
            return Verdict(status="failed", reason=reason if shows else described(reason, folder))
    return None


def _endings(numbers: Collection[int], observer: Observer) -> str:
    same: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(numbers):
        same[observer.ending(number)].append(number)
    return "; ".join(f"{ranks(of)} {ending}" for ending, of in same.items()) or "a rank ended"


def tag(folder: Path) -> str:
    """Return the tag of all processes of the job in `folder`."""
    return str(folder.resolve())


def _start(
    command: Command, folder: LaunchFolder, job: str, inside: Path | None, stdin: Path | None, *, shows: bool
) -> subprocess.Popen[bytes]:
    """Start the launcher in a session of its own, so that the terminal's Ctrl-C reaches pscale alone."""
    passes = stdin is None and shows and not _is_in_background()
    try:
        with (
            folder.make(STDOUT) as stdout,
            folder.make(STDERR) as stderr,
            open_file(stdin) if stdin else nullcontext(subprocess.DEVNULL) as given,
        ):
            return subprocess.Popen(
                command.argv,
                cwd=inside,
                env={**command.env, TAG: job},
                stdin=None if passes else given,
                stdout=None if shows else stdout,
                stderr=None if shows else stderr,
                start_new_session=True,
            )
    except OSError as error:
        raise _not_started(command, folder.path, error) from error


def _is_in_background() -> bool:
    """Tell whether the terminal's input is for another program, such as the shell that started this one."""
    with suppress(OSError):  # it is no terminal, or not that of this session
        return os.tcgetpgrp(0) != os.getpgrp()
    return False


def _not_started(command: Command, folder: Path, error: OSError) -> LaunchError:
    return LaunchError(f"cannot start {command.argv[0]} in {folder}: {error}")


@contextmanager
def _handing_on(process: subprocess.Popen[bytes], number: signal.Signals) -> Iterator[None]:
    """Hand a signal that is meant for the program, such as that of a batch system, to its launcher."""
    alone = threading.current_thread() is not threading.main_thread()
    if alone or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    signal.signal(number, lambda *_: process.send_signal(number))
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def _wait(
    process: subprocess.Popen[bytes],
    observer: Observer,
    limit_s: float,
    folder: LaunchFolder,
    read_on: ReadOn | None,
) -> Overrun | None:
    """Wait for the end, for what the observer tells, or for the limit; keep the logs in `folder` small.

    `Popen.wait` with a limit sleeps up to 50 ms between two looks, which would be added to every case.
    """
    waiter = threading.Thread(target=process.wait, daemon=True)
    waiter.start()
    deadline = time.monotonic() + limit_s
    lacked: frozenset[int] | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        waiter.join(min(left_s, observer.look_s))
        if not waiter.is_alive():
            return None
        for log in _LOGS:
            _leave_out(folder, log, read_on)
        if observer.is_stuck():
            return "hung"
        before = lacked
        lacked = _ended_ranks(process.pid, tag(folder.path)) if observer.is_joining() else None
        if None not in (before, lacked):  # else they are being started
            return lacked
    return "timeout"


def _ended_ranks(launcher: int, job: str) -> frozenset[int] | None:
    """Return the ranks on this host that have ended, none where they cannot be named; None: all may be alive.

    Hydra lets the others wait unless a signal has ended it, Open MPI if it has ended without an error. A rank
    may live on in what it has started, and a process may hide its environment: both are looked at.
    """
    try:
        first = psutil.Process(launcher)
        started = [first, *first.children(recursive=True)]
        (parent,) = (each for each in started if each.name() in _PARENTS)
        above = {parent.pid, *(each.pid for each in parent.parents())}
        children = [each.environ() for each in parent.children() if _lives(each)]
        living = [*children, *(each.environ() for each in tagged(job) if each.pid not in above)]
        numbers = {int(number) for each in living if (number := _first_of(each, _RANK))}
        sizes = {int(_first_of(each, _RANKS_HERE) or 0) for each in children}  # 0: an agent, or not begun
        if len(sizes) != 1 or max(len(children), len(numbers)) >= (size := max(sizes)):
            return None
        world = max(int(_first_of(each, _RANKS) or 0) for each in children)
        return frozenset(range(size)) - numbers if world == size else frozenset()
    except (psutil.Error, OSError, ValueError):  # some have just ended
        return None


def _first_of(environ: Mapping[str, str], names: Collection[str]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _leave_out(folder: LaunchFolder, name: str, read_on: ReadOn | None) -> None:
    """Free the middle of a log that has grown too large, once it was read; ranks write on at its end."""
    with suppress(OSError):
        log = folder.descriptor(name)
        facts = os.fstat(log)
        if facts.st_blocks * _BLOCK <= _LARGEST_MEANWHILE or not folder.has(name):
            return
        if read_on:
            read_on(folder, name, facts.st_size)
        if not _free(log, _KEPT_BYTES, facts.st_size - 2 * _KEPT_BYTES):
            _cut(log)  # what is written in this instant may be lost


def _free(log: int, begin: int, length: int) -> bool:
    """Give a part of a file back, which reads as zeros then; false where its file system cannot."""
    with suppress(AttributeError):  # no Linux
        hole = (ctypes.c_int64(each) for each in (begin, length))
        return bool(ctypes.CDLL(None).fallocate64(log, _PUNCH_HOLE, *hole) == 0)
    return False


def _cut_logs(folder: LaunchFolder) -> None:
    """Leave of logs that have grown too large their beginnings and ends."""
    for name in _LOGS:
        with suppress(OSError, KeyError):  # it was never made
            if folder.has(name):  # else it is somebody's now
                _cut(folder.descriptor(name))


def _cut(log: int) -> None:
    size = os.fstat(log).st_size
    if size > LARGEST_LOG_BYTES:
        last = os.pread(log, _KEPT_BYTES, size - _KEPT_BYTES)
        left_out = b"\n... %d bytes left out ...\n" % (size - 2 * _KEPT_BYTES)
        os.pwrite(log, left_out + last, _KEPT_BYTES)
        os.ftruncate(log, _KEPT_BYTES + len(left_out) + len(last))


def _adopted() -> frozenset[psutil.Process]:
    """Return the children of this process, which from now on gets those whose parents have ended too."""
    with suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return frozenset(psutil.Process().children())


def end(tag: str, others: Collection[psutil.Process] | None = None) -> None:
    """End all processes whose environment has `TAG`=`tag`: terminate, then kill, and wait for the end.

    Neither the process group nor the tree finds them all: launchers put ranks into sessions of their own and,
    killed, leave them without a parent. Those that hide their environment are found among the children of
    this process, if `others` are all that it had before. The memory that they share is removed.
    """
    are_left, shared = True, frozenset[Path]()
    try:
        shared = segments_of(each.pid for each in tagged(tag))
        are_left = _signal(tag, signal.SIGTERM, others)
    finally:  # also when the user is too impatient for the search or the grace
        for _ in range(_KILLS):
            if not are_left:
                break
            are_left = _signal(tag, signal.SIGKILL, others)
        remove_segments(shared)


def tagged(tag: str) -> list[psutil.Process]:
    """Return the living processes of a job."""
    found = []
    for process in psutil.process_iter():
        # those of other users cannot be read, zombies have no environment left
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(TAG) == tag:
                found.append(process)
    return found


def _hidden(others: Collection[psutil.Process] | None) -> list[psutil.Process]:
    """Return the children that are neither `others` nor of this session, with theirs.

    A launch has sessions of its own: children in this one were started for something else meanwhile.
    """
    if others is None:
        return []
    with suppress(psutil.Error):
        new = [child for child in psutil.Process().children() if child not in others and _is_apart(child)]
        return [each for child in new for each in (child, *child.children(recursive=True)) if _lives(each)]
    return []


def _is_apart(process: psutil.Process) -> bool:
    with suppress(OSError):  # it is gone
        return os.getsid(process.pid) != os.getsid(0)
    return False


def _bury(others: Collection[psutil.Process]) -> None:
    """Take note of the end of children whose own parents are gone."""
    for child in psutil.Process().children():
        with suppress(psutil.Error, ChildProcessError):
            if child not in others and _is_apart(child) and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _signal(tag: str, number: signal.Signals, others: Collection[psutil.Process] | None) -> bool:
    """Send a signal to the processes of a job and wait for their end; false if there were none."""
    found = [*dict.fromkeys([*tagged(tag), *_hidden(others)])]  # the launcher first: it began first
    for process in found:
        with suppress(psutil.Error):
            process.send_signal(number)
    patience = time.monotonic() + _GRACE_S
    while any(_lives(process) for process in found) and time.monotonic() < patience:
        time.sleep(_PAUSE_S)
    return bool(found)


def _lives(process: psutil.Process) -> bool:
    """Tell whether a process still runs, without reaping it: its parent does that."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# MPICH names a segment by the job; a later job of that name takes what a killed one has left for its own.
SHARED_MEMORY = Path("/dev/shm")
_NAMES = "mpich_shm_*", "mpich_shar_tmp*", "sm_segment.*", "vader_segment.*"  # MPICH, Open MPI


def shared_segments() -> frozenset[Path]:
    """Return the segments of this user's MPI jobs, in use or not."""
    found = set()
    for path in (path for name in _NAMES for path in SHARED_MEMORY.glob(name)):
        with suppress(OSError):  # it is gone
            if path.lstat().st_uid == os.geteuid():
                found.add(path)
    return frozenset(found)


def unused_segments(candidates: Collection[Path]) -> frozenset[Path]:
    """Return those of the segments that no process has open or mapped."""
    left = {str(path) for path in candidates}
    for process in Path("/proc").glob("[0-9]*") if left else ():
        left -= _of(process)
    return frozenset(map(Path, left))


def segments_of(processes: Iterable[int]) -> frozenset[Path]:
    """Return the segments of these processes."""
    of_all = [_of(Path(f"/proc/{number}")) for number in processes]
    return frozenset(path for path in shared_segments() if any(str(path) in each for each in of_all))


def remove_segments(candidates: Collection[Path]) -> None:
    """Remove those of the segments that no process has open or mapped."""
    for path in unused_segments(candidates):
        with suppress(OSError):
            path.unlink()


def _of(process: Path) -> set[str]:
    """Return the segments that a process has: what is open first, as it maps before it closes."""
    found = set()
    with suppress(OSError):  # it has ended, or is another user's, who has none of ours
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                found.add(str(descriptor.readlink()))
        for line in (process / "maps").read_text(errors="replace").splitlines():
            found.add(line[line.find("/") :] if f" {SHARED_MEMORY}/" in line else "")
    return {path for path in found if path.startswith(f"{SHARED_MEMORY}/")}
