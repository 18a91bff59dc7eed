import numpy as np
import pytest
from thread_mesh import run_ranks

from pscale.config import Data, Model, Train
from pscale.data import prepare
from pscale.mesh.alone import SelfMesh
from pscale.mesh.dry import DryMesh

GPT = Model(kind="gpt", sequence=12, vocabulary=300)
BLOCK = Model(kind="block", sequence=12, width=6, dtype="float32")
SYNTHETIC = Data(kind="synthetic")
LINEAR = Model(kind="linear", width=5, dtype="float64")
W = [0.500593, -0.0807231, 1.17474, -1.45482, -0.629856]


def global_batch(model, tmp_path, step, *, ranks=1, micro_batches=1, seed=1):
    train = Train(batch=8, micro_batches=micro_batches, seed=seed)
    parts = [
        prepare(SYNTHETIC, model, train, DryMesh({"dp": ranks}, rank, print), tmp_path).fill(step, micro)
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
    batches = prepare(SYNTHETIC, GPT, Train(batch=64), SelfMesh(), tmp_path)
    inputs, targets = (np.stack(x) for x in zip(*(batches.fill(step, 0) for step in range(16)), strict=True))
    assert np.array_equal(inputs[..., 1:], targets[..., :-1])
    assert inputs.dtype == targets.dtype == np.intp
    assert set(np.unique(inputs)) == set(range(GPT.vocabulary))
    assert batches.columns == {}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_regression_is_learnt_from_this_and_the_previous_position_and_not_from_this_alone(
    tmp_path, dtype
):
    model = Model(kind="block", sequence=32, width=6, dtype=dtype)
    x, y = prepare(SYNTHETIC, model, Train(batch=8), SelfMesh(), tmp_path).fill(0, 0)
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
    batches = prepare(SYNTHETIC, model, Train(batch=8, micro_batches=2), SelfMesh(), tmp_path)
    arrays = batches.fill(3, 1)
    for array, again in zip(arrays, batches.fill(3, 1), strict=True):
        assert np.shares_memory(array, again)
        assert array.flags.c_contiguous
        assert not array.flags.writeable


def epoch(tmp_path, ranks, *, samples=0, batch=10_000, micro_batches=1, steps=1):
    """Features and answers of all ranks in slot order, step after step."""

    def one(mesh):
        train = Train(batch=batch, micro_batches=micro_batches)
        batches = prepare(Data(kind="linear", samples=samples), LINEAR, train, mesh, tmp_path)
        return [[batches.fill(step, m) for m in range(micro_batches)] for step in range(steps)]

    ranks_parts = run_ranks(ranks, one)
    parts = [part for step in range(steps) for rank in ranks_parts for part in rank[step]]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def test_the_answers_are_the_features_times_the_weights_of_the_problem(tmp_path):
    features, answers = epoch(tmp_path, 1)
    assert features.shape == (10_000, 5)
    assert answers.shape == (10_000, 1)
    assert np.allclose(np.linalg.lstsq(features, answers, rcond=None)[0][:, 0], W, rtol=0, atol=1e-12)
    assert np.allclose(features.T @ features / len(features), np.eye(5), atol=0.06)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 4), (2, 2), (4, 1), (8, 5)])
def test_ranks_share_the_samples_and_together_have_them_all_in_order(tmp_path, ranks, micro_batches):
    whole = epoch(tmp_path, 1)
    cut = epoch(tmp_path, ranks, micro_batches=micro_batches)
    assert all(np.array_equal(a, b) for a, b in zip(whole, cut, strict=True))


@pytest.mark.parametrize("ranks", [1, 2])  # alone, a rank's third batch goes over the end
def test_batches_follow_each_other_round_the_samples(tmp_path, ranks):
    whole, _ = epoch(tmp_path, 1, samples=10, batch=10)
    features, _ = epoch(tmp_path, ranks, samples=10, batch=4, steps=5)
    assert np.array_equal(features, np.concatenate([whole, whole]))


def test_samples_have_the_type_of_the_model_and_are_not_copied(tmp_path):
    model = Model(kind="linear", width=5, dtype="float32")
    batches = prepare(Data(kind="linear"), model, Train(batch=10_000), SelfMesh(), tmp_path)
    for array, again in zip(batches.fill(0, 0), batches.fill(1, 0), strict=True):
        assert array.dtype == np.float32
        assert np.shares_memory(array, again)
        assert array.flags.c_contiguous
        assert not array.flags.writeable
