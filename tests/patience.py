"""How long tests wait for what has to come: however busy the machine is, a limit only ends what hangs."""

import time

import psutil

LIMIT_S = 1200  # of a whole program
_WAIT_S = 300  # for one event


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
