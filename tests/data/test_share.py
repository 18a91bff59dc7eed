import numpy as np
import pytest

from pscale.data.share import sequence_share


class Numbered:
    """Batches (2, 8) whose values tell step, micro-batch, sequence and position."""

    unigram_nats = 5.0
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
    assert share.unigram_nats == 5
    share.close()
    assert whole.closed


def test_whoever_has_all_tokens_gets_the_batches_as_they_are():
    whole = Numbered()
    assert sequence_share(whole, (slice(0, 8),), 8) is whole
