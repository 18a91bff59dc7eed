"""Start one job on this machine, wait for it, and leave nothing of it running."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Literal

from pscale.errors import LaunchError
from pscale.launch import hang, processes
from pscale.launch.command import Command
from pscale.launch.outcome import BORN, STDERR, STDOUT, Outcome, Status, judge, overdue

_LOOK_S = 2.0  # between two looks for ranks that say that they stand still

Ending = Literal["ended", "hung", "overdue"]


def launch(command: Command, folder: Path, time_limit_s: float) -> Outcome:
    """Run a job whose logs and results go to `folder`.

    A job that lasts longer than `time_limit_s` is ended, and so is one whose ranks say that they stand still,
    and one that is waited for when the user interrupts. Raises LaunchError where it cannot be started or
    `folder` cannot be written.
    """
    job = tag(folder)
    started_unix_s, started = time.time(), time.perf_counter()
    try:
        process = _start(command, folder, job)
        ending = _wait(process, folder, time_limit_s)
        wall_s = time.perf_counter() - started
    finally:  # also what a launcher that crashed has left behind
        processes.end(job)
    exit_code = process.wait()
    status, reason = _verdict(ending, folder, exit_code, time_limit_s)
    return Outcome(
        status=status,
        reason=reason,
        wall_s=wall_s,
        exit_code=exit_code,
        started_unix_s=started_unix_s,
        unborn=status == "failed" and not (folder / BORN).exists(),
    )


def tag(folder: Path) -> str:
    """Return what the processes of the job in `folder` are known by."""
    return str(folder.resolve())


def _start(command: Command, folder: Path, job: str) -> subprocess.Popen[bytes]:
    """Start the launcher in a session of its own, so that the terminal's Ctrl-C reaches pscale alone."""
    try:
        with (folder / STDOUT).open("wb") as stdout, (folder / STDERR).open("wb") as stderr:
            return subprocess.Popen(
                command.argv,
                env={**command.env, processes.TAG: job},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"cannot start {command.argv[0]} in {folder}: {error}") from error


def _verdict(ending: Ending, folder: Path, exit_code: int, limit_s: float) -> tuple[Status, str]:
    match ending:
        case "ended":
            return judge(folder, exit_code)
        case "hung":
            return "hung", hang.told(folder)
        case "overdue":
            return "timeout", overdue(folder, limit_s)


def _wait(process: subprocess.Popen[bytes], folder: Path, limit_s: float) -> Ending:
    """Wait for the end, for ranks that say that they stand still, or for the limit.

    `Popen.wait` with a limit sleeps up to 50 ms between two looks, which would be added to every case.
    """
    waiter = threading.Thread(target=process.wait, daemon=True)
    waiter.start()
    roll_call, deadline = hang.RollCall(folder), time.monotonic() + limit_s
    while (left_s := deadline - time.monotonic()) > 0:
        waiter.join(min(left_s, _LOOK_S))
        if not waiter.is_alive():
            return "ended"
        if roll_call.is_over():
            return "hung"
    return "overdue"
