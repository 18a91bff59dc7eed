import numpy as np
import pytest

from pscale.config import Data, Model, Train
from pscale.data import prepare
from pscale.mesh.solo import Solo

GPT = Model(kind="gpt", sequence=12, vocabulary=300)
BLOCK = Model(kind="block", sequence=12, width=6, dtype="float32")
SYNTHETIC = Data(kind="synthetic")


class Place(Solo):
    """Where a rank stands on an axis; nothing is exchanged."""

    def __init__(self, size, rank):
        super().__init__("dp")
        self.size, self.rank = size, rank


def global_batch(model, tmp_path, step, *, ranks=1, micro_batches=1, seed=1):
    train = Train(batch=8, micro_batches=micro_batches, seed=seed)
    parts = [
        prepare(SYNTHETIC, model, train, Place(ranks, rank), tmp_path).fill(step, micro)
        for rank in range(ranks)
        for micro in range(micro_batches)
    ]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


@pytest.mark.parametrize("model", [GPT, BLOCK])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 8), (2, 1), (4, 2), (8, 1)])
def test_samples_belong_to_their_place_in_the_global_batch(model, tmp_path, ranks, micro_batches):
    for step in (0, 5):
        whole = global_batch(model, tmp_path, step)
        cut = global_batch(model, tmp_path, step, ranks=ranks, micro_batches=micro_batches)
        assert all(np.array_equal(a, b) for a, b in zip(whole, cut, strict=True))


@pytest.mark.parametrize("model", [GPT, BLOCK])
def test_samples_differ_within_a_batch_between_steps_and_between_seeds(model, tmp_path):
    batches = [global_batch(model, tmp_path, step, seed=seed)[0] for step, seed in ((0, 1), (1, 1), (0, 2))]
    samples = np.concatenate(batches).reshape(24, -1)
    assert len(np.unique(samples, axis=0)) == 24


def test_random_tokens_cover_the_vocabulary_and_targets_are_inputs_shifted_by_one(tmp_path):
    batches = prepare(SYNTHETIC, GPT, Train(batch=64), Solo("dp"), tmp_path)
    inputs, targets = (np.stack(x) for x in zip(*(batches.fill(step, 0) for step in range(16)), strict=True))
    assert np.array_equal(inputs[..., 1:], targets[..., :-1])
    assert inputs.dtype == targets.dtype == np.intp
    assert set(np.unique(inputs)) == set(range(GPT.vocabulary))
    assert batches.unigram_nats is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_regression_is_learnt_from_this_and_the_previous_position_and_not_from_this_alone(
    tmp_path, dtype
):
    model = Model(kind="block", sequence=32, width=6, dtype=dtype)
    x, y = prepare(SYNTHETIC, model, Train(batch=8), Solo("dp"), tmp_path).fill(0, 0)
    assert x.dtype == y.dtype == dtype
    here, before, answer = (a.reshape(-1, 6).astype(float) for a in (x[:, 1:], x[:, :-1], y[:, 1:]))
    assert 0.9 < x.std() < 1.1
    assert _unexplained(np.hstack([here, before]), answer) < 1e-12
    assert _unexplained(here, answer) > 0.2


def _unexplained(features, answer):
    solution = np.linalg.lstsq(features, answer, rcond=None)[0]
    return np.square(answer - features @ solution).sum() / np.square(answer).sum()


@pytest.mark.parametrize("model", [GPT, BLOCK])
def test_what_fill_returns_is_a_contiguous_part_of_the_pool_that_nobody_may_change(model, tmp_path):
    batches = prepare(SYNTHETIC, model, Train(batch=8, micro_batches=2), Solo("dp"), tmp_path)
    arrays = batches.fill(3, 1)
    for array, again in zip(arrays, batches.fill(3, 1), strict=True):
        assert np.shares_memory(array, again)
        assert array.flags.c_contiguous
        assert not array.flags.writeable
