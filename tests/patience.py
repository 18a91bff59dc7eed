"""How long tests wait for what has to come: however busy the machine is, a limit only ends what hangs."""

import time

LIMIT_S = 1200


def wait_for(condition, every_s=0.02):
    """Wait until a condition holds, and return what it is worth."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(every_s)
    return found
