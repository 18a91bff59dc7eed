"""Every strategy in 16 bits over messages that come as late as MPI allows, in any order that it allows."""

from dataclasses import replace

import numpy as np
import pytest
import thread_mesh
from late_mesh import LateMesh
from plans import TEXT, name, on_plan, train

from pscale.config import Matrix, Model, Plan, Precision
from pscale.nn import kernels
from pscale.nn.kernels.sixteen_bit import HalfKernels

SMALL = replace(
    TEXT,
    model=Model(layers=2, width=24, heads=6, sequence=12, dtype="bf16"),
    precision=Precision(initial_scale=256.0),
    train=replace(TEXT.train, batch=12, steps=2),
)
MOE = replace(SMALL, model=replace(SMALL.model, kind="moe", experts=4, top_k=2, every=1))
PLANS = [
    (SMALL, 1, Plan(dp=3)),
    (SMALL, 1, Plan(dp=2, reduction="gather-broadcast")),
    (SMALL, 2, Plan(dp=3, zero=1)),
    (SMALL, 1, Plan(dp=4, zero=3, shard=2)),
    (SMALL, 2, Plan(dp=2, tp=2, sp=True, zero=2)),
    (SMALL, 1, Plan(tp=3, embedding="column")),
    (SMALL, 1, Plan(cp=3)),
    (SMALL, 1, Plan(cp=3, placement="contiguous", zero=1)),
    (SMALL, 1, Plan(cp=2, tp=2)),
    (SMALL, 2, Plan(cp=2, pp=2)),
    (SMALL, 3, Plan(dp=2, cp=2, pp=2, schedule="zero-bubble")),
    (SMALL, 2, Plan(pp=2, dp=2, zero=3, schedule="gpipe")),
    (SMALL, 2, Plan(pp=2, tp=2, sp=True)),
    (SMALL, 1, Plan(cp=3, context="ulysses")),
    (SMALL, 1, Plan(cp=3, context="all-gather")),
    (SMALL, 1, Plan(cp=6, context="unified", ulysses=2)),
    (MOE, 2, Plan(ep=2, pp=2, zero=1)),
    (MOE, 1, Plan(cp=2, ep=2, tp=2, sp=True)),
    (SMALL, 1, Plan(dp=2, matrix=Matrix(tx=2, ty=2, algorithm="cannon"), zero=1)),
    (SMALL, 1, Plan(matrix=Matrix(tx=3, ty=3, algorithm="cannon"))),
    (SMALL, 1, Plan(matrix=Matrix(tx=3, ty=2, algorithm="summa"))),
    (SMALL, 1, Plan(matrix=Matrix(tx=2, tz=2, algorithm="agarwal"))),
    (SMALL, 1, Plan(dp=2, matrix=Matrix(ty=2, tz=2, algorithm="axonn"))),
]


@pytest.fixture(autouse=True)
def _narrow():
    before = kernels.current()
    kernels.use(HalfKernels())
    yield
    kernels.use(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "micro_batches", "plan", "dtype"),
    [(*each, ("bf16", "fp16")[number % 2]) for number, each in enumerate(PLANS)],
    ids=name,
)
def test_every_strategy_computes_the_same_to_the_last_bit(case, micro_batches, plan, dtype, tmp_path):
    plan = replace(plan, bucket_bytes=1000)  # sums begin while others are under way
    case = on_plan(replace(case, model=replace(case.model, dtype=dtype)), plan, micro_batches)
    expected = train(case, plan, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_mesh, "ThreadMesh", LateMesh)
        found = train(case, plan, tmp_path)
    np.testing.assert_array_equal(found.losses, expected.losses)
    for tensor, whole in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[tensor], whole, err_msg=str(tensor))
    assert found.counted == expected.counted
