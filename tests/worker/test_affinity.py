import random

import pytest

from pscale.worker.affinity import crowd, masks, numbers


def of(*cpus):
    """Return threads of rank 0, 1, … with these CPUs."""
    return [(rank, frozenset(mask)) for rank, mask in enumerate(cpus)]


def test_threads_that_can_all_have_a_cpu_of_their_own_are_no_crowd():
    assert crowd(of({0, 1}, {0, 1})) is None
    assert crowd(of({0, 1, 2}, {0, 1}, {0})) is None, "the first have to make room"
    assert crowd(of(*[range(64)] * 64)) is None


def test_an_overlap_is_found_though_there_are_cpus_enough_in_all():
    found = crowd(of({0}, {0}, {1, 2, 3}))
    assert (found.threads, found.ranks, found.cpus) == (2, (0, 1), frozenset({0}))
    found = crowd(of({4, 5}, {0, 1}, {1, 0}, {0}, {4, 5}))
    assert (found.threads, found.ranks, found.cpus) == (3, (1, 2, 3), frozenset({0, 1}))


def test_every_crowd_is_one_and_everybody_else_can_be_placed():
    chance = random.Random(4)
    for _ in range(500):
        wanted = of(*(chance.sample(range(5), chance.randint(1, 3)) for _ in range(chance.randint(1, 6))))
        found = crowd(wanted)
        if found:
            inside = [mask for _, mask in wanted if mask <= found.cpus]
            assert found.threads == len(inside) > len(found.cpus)
        else:
            assert placeable([mask for _, mask in wanted])


def placeable(cpus):
    """Try everything."""
    if not cpus:
        return True
    return any(placeable([mask - {cpu} for mask in cpus[1:]]) for cpu in cpus[0])


def test_the_threads_that_compute_are_looked_at_and_idle_helpers_are_not():
    rank = {"cpus": "0-7", "thread_cpus": ["0", "1", "0-7", "0-7"]}
    assert masks(rank, 2) == [{0}, {1}]
    assert masks({"cpus": "0-2,8", "thread_cpus": None}, 2) == [{0, 1, 2, 8}] * 2
    assert numbers("0-2,8") == {0, 1, 2, 8}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_thread_that_was_not_seen_may_run_where_its_process_may(threads):
    assert masks({"cpus": "3", "thread_cpus": ["3"]}, threads) == [{3}] * threads
