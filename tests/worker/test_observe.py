import os
import threading

import pytest

from pscale.worker import observe


def test_the_cpus_of_a_process_are_those_of_all_its_threads():
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one CPU")
    one, other, *_ = sorted(allowed)
    bound, done = threading.Event(), threading.Event()

    def elsewhere() -> None:
        os.sched_setaffinity(0, {other})
        bound.set()
        done.wait()

    before = observe.affinity()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    bound.wait()
    try:
        os.sched_setaffinity(0, {one})
        assert {one, other} <= set(observe.affinity())
    finally:
        os.sched_setaffinity(0, allowed)
        done.set()
        thread.join()
    assert observe.affinity() == before
