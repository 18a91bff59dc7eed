from pscale.launch.doctor import OtherWork, other_work, wait_until_idle

IDLE, BUSY = OtherWork(cores=0.02, of=2), OtherWork(cores=1.3, of=2)


def waited(*seen):
    """Return whether waiting ended with an idle machine, what was told, and how many looks were left."""
    looks, told = list(seen), []
    found = wait_until_idle(told.append, look=lambda: looks.pop(0), sleep=lambda _: None, longest_s=10)
    return found, told, len(looks)


def test_waiting_ends_after_two_idle_looks_in_turn():
    assert waited(IDLE, IDLE) == (True, [], 0)
    idle, told, left = waited(BUSY, IDLE, BUSY, IDLE, IDLE, BUSY)
    assert (idle, left) == (True, 1)
    assert told == ["waiting for at most 0 minutes: other processes use 1.3 of 2 CPUs"]


def test_waiting_has_an_end_on_a_machine_that_stays_busy():
    idle, told, left = waited(*[BUSY] * 20)
    assert not idle
    assert left == 15
    assert told[-1].endswith("measuring anyway")


def test_a_look_counts_the_cores_that_are_busy():
    found = other_work(look_s=0.05)
    assert 0 <= found.cores <= found.of + 1e-9
    assert OtherWork(cores=0.09, of=1).disturbs is False
    assert OtherWork(cores=0.2, of=2).disturbs
    assert not OtherWork(cores=2.0, of=64).disturbs
