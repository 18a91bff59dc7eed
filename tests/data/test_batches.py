from typing import ClassVar

import numpy as np
import pytest

from pscale.config import Data, Model, Train
from pscale.data import check, find_corpus
from pscale.data.batches import sequence_share
from pscale.errors import UsageError

GPT, BLOCK, LINEAR = Model(), Model(kind="block"), Model(kind="linear", width=5)


@pytest.mark.parametrize(
    ("data", "model", "train"),
    [
        (Data(), GPT, Train()),
        (Data(split="sample", loading="scatter"), GPT, Train()),
        (Data(loading="files"), GPT, Train()),
        (Data(kind="synthetic"), Model(vocabulary=7), Train()),
        (Data(kind="synthetic"), BLOCK, Train()),
        (Data(kind="linear"), LINEAR, Train(batch=10_000)),
        (Data(kind="linear", samples=20_000), LINEAR, Train(batch=20_000)),
    ],
)
def test_what_fits_is_let_through(data, model, train):
    check(data, model, train)


@pytest.mark.parametrize(
    ("data", "model", "train", "message"),
    [
        (Data(), BLOCK, Train(), "data.kind 'text' does not fit model.kind 'block'; use synthetic"),
        (Data(kind="linear"), GPT, Train(), "does not fit model.kind 'gpt'; use text or synthetic"),
        (Data(kind="synthetic"), LINEAR, Train(), "does not fit model.kind 'linear'; use linear"),
        (
            Data(),
            Model(vocabulary=255),
            Train(),
            "model.vocabulary 255 is too small for text: bytes need 256",
        ),
        (Data(loading="files", split="sample"), GPT, Train(), "use split: partition, or loading: memory"),
        (
            Data(prefetch=True),
            GPT,
            Train(),
            "loading 'memory' reads none in a step; use loading: mpi-io or files",
        ),
        (
            Data(loading="files", hints={"cb_nodes": "1"}),
            GPT,
            Train(),
            "data.hints are for MPI-IO; use loading: mpi-io",
        ),
        (
            Data(kind="synthetic", loading="scatter"),
            GPT,
            Train(),
            "data.loading 'scatter' needs data.kind text",
        ),
        (Data(kind="linear", split="sample"), LINEAR, Train(), "data.split 'sample' needs data.kind text"),
        (Data(kind="linear"), Model(kind="linear"), Train(), "the linear problem has 5 weights"),
        (
            Data(kind="linear"),
            LINEAR,
            Train(batch=10_001),
            "data.samples 10000 is not enough: one step of all ranks takes 10001",
        ),
        (Data(source="/nowhere/text"), GPT, Train(), "no file '/nowhere/text'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(data, model, train, message):
    with pytest.raises(UsageError) as error:
        check(data, model, train)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_text_needs_a_window_for_every_place_of_the_batch(tmp_path):
    path = tmp_path / "short text"
    model, train = Model(sequence=9), Train(batch=4)
    for split in ("partition", "sample"):
        path.write_bytes(bytes(40))
        find_corpus.cache_clear()  # as before every suite
        check(Data(source=str(path), split=split), model, train)
        path.write_bytes(bytes(39))
        find_corpus.cache_clear()
        with pytest.raises(
            UsageError, match=r"has 39 bytes, but a batch of 4 windows of 10 bytes .* needs 40"
        ):
            check(Data(source=str(path), split=split), model, train)


class Numbered:
    """Batches (2, 8) whose values tell step, micro-batch, sequence and position."""

    columns: ClassVar = {"loss_unigram": 5.0}
    closed = False

    def fill(self, step, micro):
        inputs = np.arange(8) + 10 * np.arange(2)[:, None] + 100 * micro + 1000 * step
        return inputs, np.stack([inputs, -inputs], axis=2)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("runs", [(slice(2, 4),), (slice(0, 2), slice(6, 8))])
def test_a_share_has_the_tokens_of_its_runs_until_the_same_micro_batch_comes_again(runs):
    whole = Numbered()
    share = sequence_share(whole, runs, 8)
    first, second = share.fill(3, 0), share.fill(3, 1)
    places = np.concatenate([np.arange(8)[run] for run in runs])
    for micro, (inputs, targets) in enumerate((first, second)):
        expected = whole.fill(3, micro)
        np.testing.assert_array_equal(inputs, expected[0][:, places])
        np.testing.assert_array_equal(targets, expected[1][:, places])
        assert inputs.flags.c_contiguous
        assert targets.flags.c_contiguous
    assert share.fill(4, 0)[0] is first[0]
    assert share.columns == {"loss_unigram": 5.0}
    share.close()
    assert whole.closed


def test_whoever_has_all_tokens_gets_the_batches_as_they_are():
    whole = Numbered()
    assert sequence_share(whole, (slice(0, 8),), 8) is whole
