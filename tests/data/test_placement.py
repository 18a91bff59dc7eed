import numpy as np
import pytest

from pscale.data.placement import Partition, Sample, Slots

BATCH, SEQUENCE, CORPUS_BYTES = 8, 10, 1286  # regions of 160 bytes: 15 windows, not 16, and 6 bytes over


def placement(kind, ranks=1, micro_batches=1, seed=1):
    slots = Slots(batch=BATCH, ranks=ranks, micro_batches=micro_batches)
    if kind is Partition:
        return Partition(corpus_bytes=CORPUS_BYTES, sequence=SEQUENCE, slots=slots)
    return Sample(corpus_bytes=CORPUS_BYTES, sequence=SEQUENCE, seed=seed, slots=slots)


def steps_of_an_epoch(kind):
    windows = placement(kind).windows
    return range(windows if kind is Partition else windows // BATCH)


def bytes_read(placed, rank, steps):
    offsets = np.concatenate([placed.offsets(step, 0, rank) for step in steps])
    return set((offsets[:, None] + np.arange(SEQUENCE + 1)).ravel().tolist())


@pytest.mark.parametrize("kind", [Partition, Sample])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_within_an_epoch_no_byte_reaches_two_ranks(kind, ranks):
    steps = steps_of_an_epoch(kind)
    parts = [bytes_read(placement(kind, ranks), rank, steps) for rank in range(ranks)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert set.union(*parts) == bytes_read(placement(kind), 0, steps)
    assert max(set.union(*parts)) < CORPUS_BYTES


@pytest.mark.parametrize("kind", [Partition, Sample])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 8), (2, 1), (2, 4), (4, 2), (8, 1)])
def test_the_global_batch_is_the_same_for_any_number_of_ranks_and_micro_batches(kind, ranks, micro_batches):
    whole, cut = placement(kind), placement(kind, ranks, micro_batches)
    for step in range(2 * len(steps_of_an_epoch(kind)) + 1):
        parts = [cut.offsets(step, micro, rank) for rank in range(ranks) for micro in range(micro_batches)]
        assert np.array_equal(np.concatenate(parts), whole.offsets(step, 0, 0))


@pytest.mark.parametrize("kind", [Partition, Sample])
def test_a_rank_reads_within_its_span_alone(kind):
    placed = placement(kind, ranks=4)
    for rank in range(4):
        first, stop = placed.span(rank)
        read = bytes_read(placed, rank, range(100))
        assert first <= min(read)
        assert max(read) < stop


def test_a_slot_reads_its_region_window_after_window_and_begins_again():
    placed = placement(Partition)
    region_bytes = CORPUS_BYTES // BATCH
    offsets = np.array([placed.offsets(step, 0, 0) for step in range(placed.windows)])
    starts = np.arange(BATCH) * region_bytes
    assert np.array_equal(
        offsets - starts, np.repeat(np.arange(placed.windows)[:, None], BATCH, 1) * SEQUENCE
    )
    last_byte = offsets[-1] + SEQUENCE
    assert (last_byte < starts + region_bytes).all()
    assert (last_byte + SEQUENCE >= starts + region_bytes).all()
    assert np.array_equal(placed.offsets(placed.windows, 0, 0), starts)


def test_an_epoch_of_samples_draws_every_window_once_and_the_next_one_in_another_order():
    placed = placement(Sample)
    steps = len(steps_of_an_epoch(Sample))
    first = np.concatenate([placed.offsets(step, 0, 0) for step in range(steps)])
    second = np.concatenate([placed.offsets(steps + step, 0, 0) for step in range(steps)])
    for epoch in (first, second):
        assert len(set(epoch.tolist())) == steps * BATCH == placed.windows // BATCH * BATCH
        assert (epoch % (SEQUENCE + 1) == 0).all()
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, np.sort(first))


def test_the_order_of_samples_is_that_of_the_seed():
    def epoch(seed):
        return [placement(Sample, seed=seed).offsets(step, 0, 0).tolist() for step in range(5)]

    assert epoch(1) == epoch(1) != epoch(2)
