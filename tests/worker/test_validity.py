"""Launches that must not be believed are, each, invalid with their reason."""

import math
import random

import pytest

from pscale.config import Case, Launch, Omp, Require
from pscale.runs.host import numbers_in
from pscale.worker.validity import masks, oversubscription, reason_invalid

COLUMNS = {"replica_spread": 0.0, "loss_spread": 0.0}
RANK = {
    "host": "h",
    "node": 0,
    "threads": 1,
    "blas": "openblas",
    "blas_library": None,
    "blas_threading": "pthreads",
    "clock_backwards_s": 0.0,
    "thread_cpus": None,
}


def case_of(**fields):
    return Case(suite="s", label="l", ranks=2, **fields)


def ranks_of(*cpus, **columns):
    return [{**RANK, "rank": rank, "cpus": each, **columns} for rank, each in enumerate(cpus)]


def reason(case=None, ranks=None, losses=(2.0, 1.0), **columns):
    return reason_invalid(case or case_of(), ranks or ranks_of("0", "1"), losses, COLUMNS | columns)


def test_a_launch_in_order_has_no_reason_invalid():
    assert reason() == ""
    assert reason(ranks=ranks_of("0-1", "0-1")) == "", "unbound ranks find a CPU each"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_invalid(loss):
    assert "the loss is not finite" in reason(losses=(2.0, loss))


@pytest.mark.parametrize("spread", [1e-4, math.nan])
def test_replicas_and_losses_that_should_agree_and_do_not_are_invalid(spread):
    assert "replicas disagree by" in reason(replica_spread=spread)
    assert "losses disagree by" in reason(loss_spread=spread)
    assert "over the limit of 1e-05" in reason(loss_spread=spread)


def test_a_clock_that_went_backwards_is_invalid():
    ranks = ranks_of("0", "1")
    ranks[1]["clock_backwards_s"] = 3e-6
    assert reason(ranks=ranks) == "the clock of rank 1 went backwards by 3 µs"


def test_other_threads_or_another_blas_than_asked_for_are_invalid():
    assert reason(ranks=ranks_of("0", "1", threads=4)) == "rank 0 got 4 BLAS threads, the case asked for 1"
    assert "rank 0: the suite requires blas: mkl" in reason(case_of(require=Require(blas="mkl")))
    omp = case_of(launch=Launch(omp=Omp(proc_bind="close")))
    assert "rank 0: launch.omp is about OpenMP threads" in reason(omp)


def test_ranks_that_share_a_cpu_are_named_with_it_though_others_are_free():
    found = reason(ranks=ranks_of("0", "0", "1-3"))
    assert found.startswith("2 threads of ranks 0-1 on h share 1 CPU (0); bind ranks to different cores")
    assert reason(case_of(launch=Launch(oversubscribe=True)), ranks_of("0", "0")) == "", "it was asked for"


def test_threads_of_a_rank_that_are_all_bound_to_one_cpu_are_found_by_their_own_affinity():
    two = case_of(threads=2)
    spread = ranks_of("0-1", threads=2, thread_cpus=["0", "1", "0-1"])
    crowded = ranks_of("0-1", threads=2, thread_cpus=["0", "0", "0-1"])
    assert reason(two, spread) == ""
    assert reason(two, crowded).startswith("2 threads of rank 0 on h share 1 CPU (0)")


def test_cpus_of_the_same_number_on_two_nodes_are_two():
    ranks = ranks_of("0", "0")
    ranks[1] |= {"node": 1, "host": "i"}
    assert reason(ranks=ranks) == ""


def test_a_launch_that_never_took_a_step_is_invalid():
    columns = {"loss_scales": [2.0, 1.0], "skipped_steps": [0, 1]}
    assert reason(**columns).startswith(
        "every step was skipped: gradients overflowed down to a loss scale of 1;"
    )
    assert reason(**columns | {"skipped_steps": [0]}) == ""


def of(*cpus):
    """Return threads of rank 0, 1, … with these CPUs."""
    return [(rank, frozenset(mask)) for rank, mask in enumerate(cpus)]


def test_threads_that_can_all_have_a_cpu_of_their_own_are_no_oversubscription():
    assert oversubscription(of({0, 1}, {0, 1})) is None
    assert oversubscription(of({0, 1, 2}, {0, 1}, {0})) is None, "the first have to make room"
    assert oversubscription(of(*[range(64)] * 64)) is None


def test_an_overlap_is_found_though_there_are_cpus_enough_in_all():
    found = oversubscription(of({0}, {0}, {1, 2, 3}))
    assert (found.threads, found.ranks, found.cpus) == (2, (0, 1), frozenset({0}))
    found = oversubscription(of({4, 5}, {0, 1}, {1, 0}, {0}, {4, 5}))
    assert (found.threads, found.ranks, found.cpus) == (3, (1, 2, 3), frozenset({0, 1}))


def test_every_oversubscription_is_one_and_everybody_else_can_be_placed():
    chance = random.Random(4)
    for _ in range(500):
        wanted = of(*(chance.sample(range(5), chance.randint(1, 3)) for _ in range(chance.randint(1, 6))))
        found = oversubscription(wanted)
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


def test_the_threads_that_compute_are_looked_at_and_idle_threads_are_not():
    rank = {"cpus": "0-7", "thread_cpus": ["0", "1", "0-7", "0-7"]}
    assert masks(rank, 2) == [{0}, {1}]
    assert masks({"cpus": "0-2,8", "thread_cpus": None}, 2) == [{0, 1, 2, 8}] * 2
    assert numbers_in("0-2,8") == {0, 1, 2, 8}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_thread_that_was_not_seen_may_run_where_its_process_may(threads):
    assert masks({"cpus": "3", "thread_cpus": ["3"]}, threads) == [{3}] * threads
