import numpy as np
import pytest
from thread_mesh import run_ranks

from pscale.config import Data, Model, Train
from pscale.data import prepare
from pscale.mesh.solo import Solo

W = [0.500593, -0.0807231, 1.17474, -1.45482, -0.629856]
MODEL = Model(kind="linear", width=5, dtype="float64")


def epoch(tmp_path, ranks, *, samples=0, batch=10_000, micro_batches=1, steps=1):
    """Features and answers of all ranks in slot order, step after step."""

    def one(mesh):
        train = Train(batch=batch, micro_batches=micro_batches)
        batches = prepare(Data(kind="linear", samples=samples), MODEL, train, mesh.axis("dp"), tmp_path)
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
    batches = prepare(Data(kind="linear"), model, Train(batch=10_000), Solo("dp"), tmp_path)
    for array, again in zip(batches.fill(0, 0), batches.fill(1, 0), strict=True):
        assert array.dtype == np.float32
        assert np.shares_memory(array, again)
        assert array.flags.c_contiguous
        assert not array.flags.writeable
