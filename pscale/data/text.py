"""Batches of real text: bytes are tokens, and the target of a byte is the next one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pscale.config import Data, Model, Train
from pscale.data.corpus import Corpus, byte_counts, find_corpus, unigram_nats
from pscale.data.loading import Reader, open_reader
from pscale.data.placement import Partition, Placement, Sample, Slots
from pscale.errors import UsageError
from pscale.mesh.axis import Array, Axis


class TextBatches:
    """Windows of the corpus, widened to the type that indexes fastest."""

    def __init__(self, reader: Reader, micro_batches: int, shape: tuple[int, int], unigram: float):
        self.unigram_nats: float | None = unigram
        self._reader = reader
        self._windows = np.empty(shape, np.uint8)
        batch, length = shape
        self._inputs = np.empty((micro_batches, batch, length - 1), np.intp)
        self._targets = np.empty_like(self._inputs)

    def fill(self, step: int, micro: int) -> tuple[Array, Array]:
        """Return inputs and targets, intp of shape (B, T), valid until this micro-batch of the next step."""
        self._reader.read(step, micro, self._windows)
        inputs, targets = self._inputs[micro], self._targets[micro]
        inputs[...] = self._windows[:, :-1]
        targets[...] = self._windows[:, 1:]
        return inputs, targets

    def close(self) -> None:
        """Release files; every rank calls it, after the last step."""
        self._reader.close()


def prepare_text(
    data: Data, model: Model, train: Train, slots: Slots, *, axis: Axis, folder: Path
) -> TextBatches:
    """Place and open the corpus that `data.source` names; all ranks call it."""
    corpus = find_corpus(data.source)
    _agree_on_size(corpus, axis)
    shape = (slots.per_micro, model.sequence + 1)
    placement = _placement(data, model, train, slots, corpus)
    reader = open_reader(data.loading, corpus, placement, axis, shape=shape, folder=folder)
    return TextBatches(reader, slots.micro_batches, shape, _shared_unigram_nats(corpus, axis))


def check_size(source: str, batch: int, sequence: int) -> None:
    """Raise UsageError unless the corpus has a window for every place of a batch."""
    found, needed = find_corpus(source).size, batch * (sequence + 1)
    if found < needed:
        windows = f"a batch of {batch} windows of {sequence + 1} bytes (sequence {sequence} + 1)"
        raise UsageError(f"data.source {source!r} has {found} bytes, but {windows} needs {needed}")


def _placement(data: Data, model: Model, train: Train, slots: Slots, corpus: Corpus) -> Placement:
    if data.split == "partition":
        return Partition(corpus_bytes=corpus.size, sequence=model.sequence, slots=slots)
    return Sample(corpus_bytes=corpus.size, sequence=model.sequence, seed=train.seed, slots=slots)


def _agree_on_size(corpus: Corpus, axis: Axis) -> None:
    """Refuse files that differ between machines: the parts of the ranks would overlap unnoticed."""
    extremes = np.array([corpus.size, -corpus.size])
    axis.all_reduce(extremes, "max")
    largest, smallest = int(extremes[0]), -int(extremes[1])
    if largest != smallest:
        raise UsageError(
            f"data.source differs between ranks: {smallest} to {largest} bytes; name a file that they share"
        )


def _shared_unigram_nats(corpus: Corpus, axis: Axis) -> float:
    """Count the bytes of the whole corpus, each rank an equal part of it."""
    start, stop = (corpus.size * rank // axis.size for rank in (axis.rank, axis.rank + 1))
    counts = byte_counts(corpus.blocks(start, stop))
    axis.all_reduce(counts)
    return unigram_nats(counts)
