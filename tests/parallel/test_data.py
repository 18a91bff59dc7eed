import numpy as np
import pytest
from thread_mesh import run_ranks

from pscale.config import Case, Model, Plan, Train
from pscale.parallel.reduction import buckets, make_reduction
from pscale.runs.schema import Kind
from pscale.worker.recorder import Recorder

REDUCTIONS = ["bucketed", "all-reduce", "gather-broadcast"]
MODEL = Model(layers=3, width=16, heads=2, sequence=8, dtype="float64")


def case_of(reduction, dp, bucket_bytes=1 << 12, batch=8):
    plan = Plan(dp=dp, reduction=reduction, bucket_bytes=bucket_bytes)
    return Case(suite="s", label="l", ranks=dp, plan=plan, model=MODEL, train=Train(batch=batch))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dp", [1, 2, 3, 8])
def test_every_rank_ends_with_the_sum_of_all_gradients(reduction, dp):
    units = {0: slice(0, 700), 1: slice(700, 750), 2: slice(750, 2000)}

    def one(mesh):
        grad = np.random.default_rng(mesh.world.rank).integers(-9, 9, 2000).astype(float)
        exchange = make_reduction(case_of(reduction, dp).plan, grad, units, mesh.axis("dp"))
        for unit in reversed(units):
            exchange.ready(unit)
        exchange.finish()
        return grad

    expected = sum(np.random.default_rng(rank).integers(-9, 9, 2000) for rank in range(dp))
    for grad in run_ranks(dp, one):
        assert np.array_equal(grad, expected)


def test_buckets_cover_every_unit_once_from_the_last_and_are_no_larger_than_needed():
    assert buckets([5, 1, 1, 1, 8], 3) == [range(4, 5), range(1, 4), range(1)]
    assert buckets([1, 1], 100) == [range(2)]
    assert buckets([4], 0) == [range(1)]


def test_bucketed_exchangestarts_before_the_backward_pass_is_over():
    recorder = Recorder(["dp"])

    def one(mesh):
        grad, units = np.ones(200), {0: slice(0, 100), 1: slice(100, 200)}
        strategy = make_reduction(Plan(dp=2, bucket_bytes=800), grad, units, mesh.axis("dp"))
        strategy.ready(1)
        started = np.count_nonzero(recorder.rows()["kind"] == Kind.POSTED) if mesh.world.rank == 0 else None
        strategy.ready(0)
        strategy.finish()
        return started

    recorder.enabled = True
    assert run_ranks(2, one, [recorder, Recorder(["dp"])])[0] == 1
