"""Where every sum is exact, in whatever order, a plan gives the serial results to the last bit.

Weights are small integers, embeddings and biases such times 2^12: the differences of scores and of logits
are then so large that every softmax is 0 or 1, and GELU is 0 or its input. Norms, which take a root, are
stood in for by their gains and biases; all else is as it is. Numbers stay within the 53 bits of a double.
"""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from plans import TEXT, name, on_plan, train

from pscale.config import Data, Matrix, Model, Plan, Train
from pscale.nn.kernels.tiles import rows_of
from pscale.nn.param import Param
from pscale.training import grid_units, units

pytestmark = pytest.mark.slow

GPT = replace(
    TEXT,
    model=Model(layers=2, width=16, heads=4, sequence=8, vocabulary=19, dtype="float64"),
    data=Data(kind="synthetic"),
    train=Train(batch=8, steps=1, warmup=0, optimizer="sgd", lr=2.0**-10, clip=None),
)
MIXED = {"kind": "moe", "experts": 4, "capacity_factor": 0.75, "every": 1, "balance_weight": 0.5}
CASES = {
    "gpt": GPT,
    "moe": replace(GPT, model=replace(GPT.model, **MIXED)),
    "even": replace(GPT, model=replace(GPT.model, vocabulary=18)),
}

PLANS = [
    ("gpt", 2, Plan(dp=4, bucket_bytes=4096)),
    ("gpt", 1, Plan(dp=8, zero=3)),
    ("gpt", 1, Plan(dp=4, shard=2, zero=2)),
    ("gpt", 1, Plan(tp=4)),
    ("gpt", 2, Plan(tp=2, sp=True, embedding="column")),
    ("gpt", 1, Plan(cp=4)),
    ("gpt", 1, Plan(cp=2, context="ulysses", placement="contiguous")),
    ("gpt", 1, Plan(cp=2, context="all-gather")),
    ("gpt", 4, Plan(pp=2, dp=2, schedule="zero-bubble", zero=3)),
    ("gpt", 4, Plan(pp=2, tp=2, cp=2, sp=True)),
    ("moe", 1, Plan(ep=4, reduction="gather-broadcast")),
    ("moe", 2, Plan(ep=2, cp=2, tp=2, sp=True, zero=1)),
    ("even", 2, Plan(pp=2, matrix=Matrix(tx=2, ty=2, algorithm="cannon"))),
    ("even", 2, Plan(dp=2, matrix=Matrix(tx=2, ty=2, algorithm="summa"))),
    ("even", 1, Plan(matrix=Matrix(tx=2, ty=2, tz=2, algorithm="agarwal"))),
    ("even", 2, Plan(matrix=Matrix(tx=2, ty=2, tz=2, algorithm="axonn"))),
]


class Gains:
    """gain x + bias, with the parameters of a norm."""

    def __init__(self, gain, bias, *_, buffers, **__):
        self.gain, self.bias, self.buffers, self.params = gain, bias, buffers, (gain, bias)

    def forward(self, x):
        y = self.buffers.take(x.shape, x.dtype)
        np.add(x * self.gain.data, self.bias.data, out=y)
        return y, x

    def backward(self, dy, x):
        self.gain.add_grad(np.sum(rows_of(dy) * rows_of(x), axis=0))
        self.bias.add_grad(np.sum(rows_of(dy), axis=0))
        return np.multiply(dy, self.gain.data, out=x)


def integers(param, seed):
    random = np.random.default_rng([seed, param.layer, zlib.crc32(param.name.encode())])
    whole = random.integers(-2, 3, param.cut.whole if param.cut else param.shape).astype(float)
    if param.name.endswith("gain"):
        whole = 1 + np.abs(whole)
    elif param.layer == 0 or param.name.endswith("bias"):
        whole *= 2**12
    return param.cut.take(whole).reshape(param.shape) if param.cut else whole


@pytest.fixture(scope="module")
def exact(folder):
    """Return what runs a case with integers on a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "LayerNorm", Gains)
        patch.setattr(grid_units, "ColumnNorm", Gains)
        patch.setattr(Param, "initial", integers)
        yield lambda case, plan, micro_batches: train(on_plan(case, plan, micro_batches), plan, folder)


@pytest.fixture(scope="module")
def serial(exact):
    return {kind: exact(case, Plan(), 1) for kind, case in CASES.items()}


@pytest.mark.parametrize(("kind", "micro_batches", "plan"), PLANS, ids=name)
def test_every_bit_is_that_of_the_serial_run(kind, micro_batches, plan, exact, serial):
    run, expected = exact(CASES[kind], plan, micro_batches), serial[kind]
    np.testing.assert_array_equal(run.losses, expected.losses)
    assert run.tensors.keys() == expected.tensors.keys()
    for key, tensor in expected.tensors.items():
        np.testing.assert_array_equal(run.tensors[key], tensor, err_msg=str(key))


@pytest.mark.parametrize("kind", CASES)
def test_the_integers_reach_every_parameter(kind, serial):
    gradients = {key: tensor for key, tensor in serial[kind].tensors.items() if key[0] == "gradients"}
    idle = {name for (_, _, name), tensor in gradients.items() if not tensor.any()}
    assert idle <= {"router.weight"}  # softmax does not move where it is 0 or 1
