"""The seam between data and trainer: what is asked for, what can be had, and who delivers it.

Of text, bytes are tokens, and the target of a byte is the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pscale.config import Data, Model, Train
from pscale.config.axes import BATCH_AXES
from pscale.data.corpus import Corpus, byte_counts, find_corpus, unigram_nats
from pscale.data.loading import FROM_FILES, MemoryReader, PrefetchReader, Reader, open_reader
from pscale.data.placement import Partition, Sample, Slots
from pscale.data.synthetic import WEIGHTS, Batches, LinearBatches, random_tokens, regression, samples_of
from pscale.errors import UsageError
from pscale.mesh.axis import Array, Axis, Mesh
from pscale.runs.schema import IoRecorder

HELD_OUT = 10  # one part in so many is for evaluation
_FITTING = {
    "gpt": ("text", "synthetic"),
    "moe": ("text", "synthetic"),
    "block": ("synthetic",),
    "linear": ("linear",),
    "collectives": ("synthetic",),
}


def prepare(
    case_data: Data,
    model: Model,
    train: Train,
    mesh: Mesh,
    folder: Path,
    *,
    recorder: IoRecorder | None = None,
) -> Batches:
    """Return the batches of this rank; all ranks of `mesh` call it.

    `recorder` is told of what is read ahead. Files that a loading mode needs go to `folder` until `close`.
    Raises UsageError as `check` does: the machine that runs may see other files than the one that asked.
    """
    check(case_data, model, train)
    axis, slots = mesh.axis(*BATCH_AXES), _slots(train, mesh)
    if case_data.kind == "linear":
        return LinearBatches(case_data, model, train, slots, axis.rank)
    if case_data.kind != "text":
        draw = regression if model.kind in ("block", "collectives") else random_tokens
        return draw(model, train, slots, axis.rank)
    whole = find_corpus(case_data.source)
    _agree_on_size(whole, axis)
    corpus, _ = _held_out(whole, train)
    placed = Partition if case_data.split == "partition" else partial(Sample, seed=train.seed)
    placement = placed(corpus_bytes=corpus.size, sequence=model.sequence, slots=slots)
    shape = (slots.per_micro, model.sequence + 1)
    reader = open_reader(case_data, corpus, placement, mesh, shape=shape, folder=folder)
    hints = "; ".join(f"{name}={value}" for name, value in sorted(reader.hints.items()))
    columns = {"loss_unigram": _shared_unigram_nats(corpus, axis), "file_hints": hints or None}
    if case_data.prefetch:
        assert recorder is not None, "how long reading takes is recorded"
        reader = PrefetchReader(reader, slots.micro_batches, shape, recorder)
    return TextBatches(reader, slots.micro_batches, shape, columns)


def prepare_validation(case_data: Data, model: Model, train: Train, mesh: Mesh) -> Batches | None:
    """Return the batches that this rank evaluates, if the case does; every rank keeps its part in memory."""
    if not train.evaluate.every:
        return None
    slots, (_, corpus) = _slots(train, mesh), _held_out(find_corpus(case_data.source), train)
    placement = Partition(corpus_bytes=corpus.size, sequence=model.sequence, slots=slots)
    reader = MemoryReader(corpus, placement, mesh.axis(*BATCH_AXES).rank)
    return TextBatches(reader, slots.micro_batches, (slots.per_micro, model.sequence + 1), {})


def _slots(train: Train, mesh: Mesh) -> Slots:
    ranks = mesh.axis(*BATCH_AXES).size
    return Slots(batch=train.batch, ranks=ranks, micro_batches=train.micro_batches)


def _held_out(corpus: Corpus, train: Train) -> tuple[Corpus, Corpus]:
    """Return what is trained on, and what is held out for evaluation if the case evaluates."""
    first = corpus.size - corpus.size // HELD_OUT if train.evaluate.every else corpus.size
    return replace(corpus, after=corpus.size - first), replace(corpus, first=first)


def check(data: Data, model: Model, train: Train) -> None:
    """Raise UsageError for data that cannot be had or does not fit; looks at files' names and sizes only."""
    fitting = _FITTING[model.kind]
    if data.kind not in fitting:
        raise UsageError(
            f"data.kind {data.kind!r} does not fit model.kind {model.kind!r}; use {' or '.join(fitting)}"
        )
    if data.kind == "text":
        _check_text(data, model, train)
        return
    if train.evaluate.every:
        raise UsageError("train.evaluate needs data.kind text, of which a part is held out; every 0 works")
    if data.loading != "memory":
        raise UsageError(
            f"data.loading {data.loading!r} needs data.kind text; {data.kind} samples are made in memory"
        )
    if data.split != "partition":
        raise UsageError(f"data.split {data.split!r} needs data.kind text; {data.kind} samples come in order")
    if data.kind == "linear":
        _check_linear(data, model, train)


def _check_text(data: Data, model: Model, train: Train) -> None:
    if model.vocabulary < 256:
        raise UsageError(f"model.vocabulary {model.vocabulary} is too small for text: bytes need 256")
    if data.loading == "files" and data.split == "sample":
        raise UsageError(
            "data.loading 'files' gives a rank one part of the corpus, data.split 'sample' windows from all "
            "of it; use split: partition, or loading: memory, mpi-io or scatter"
        )
    if data.prefetch and data.loading not in FROM_FILES:
        raise UsageError(
            f"data.prefetch reads ahead from a file, and loading {data.loading!r} reads none in a step; use "
            "loading: mpi-io or files, or prefetch: false"
        )
    if data.hints and data.loading != "mpi-io":
        raise UsageError("data.hints are for MPI-IO; use loading: mpi-io, or leave them out")
    check_size(data.source, train, model.sequence)


def _check_linear(data: Data, model: Model, train: Train) -> None:
    if model.width != len(WEIGHTS):
        raise UsageError(f"model.width {model.width}: the linear problem has {len(WEIGHTS)} weights")
    if samples_of(data) < train.batch:
        raise UsageError(
            f"data.samples {samples_of(data)} is not enough: one step of all ranks takes {train.batch}"
        )


class SequenceShare(Batches):
    """Batches cut down to some runs of positions, one after another in memory of their own."""

    def __init__(self, batches: Batches, runs: Sequence[slice]):
        self.columns = batches.columns
        self._batches, self._runs = batches, runs
        self._shares: dict[int, tuple[Array, Array]] = {}  # by micro-batch

    def fill(self, step: int, micro: int) -> tuple[Array, Array]:
        """Return the runs' inputs and targets, valid until this micro-batch of the next step."""
        wholes = self._batches.fill(step, micro)
        if micro not in self._shares:
            inputs, targets = (self._empty(whole) for whole in wholes)
            self._shares[micro] = inputs, targets
        for whole, share in zip(wholes, self._shares[micro], strict=True):
            np.concatenate([whole[:, run] for run in self._runs], axis=1, out=share)
        return self._shares[micro]

    def close(self) -> None:
        """Release files; every rank calls it, after the last step."""
        self._batches.close()

    def _empty(self, whole: Array) -> Array:
        tokens = sum(run.stop - run.start for run in self._runs)
        return np.empty_like(whole, shape=(whole.shape[0], tokens, *whole.shape[2:]))


def sequence_share(batches: Batches, runs: Sequence[slice], sequence: int) -> Batches:
    """Return batches of the tokens at `runs` of a sequence: as they are if that is all of it."""
    return batches if tuple(runs) == (slice(0, sequence),) else SequenceShare(batches, runs)


class TextBatches(Batches):
    """Windows of the corpus, widened to the type that indexes fastest."""

    def __init__(
        self, reader: Reader, micro_batches: int, shape: tuple[int, int], columns: Mapping[str, Any]
    ):
        self._reader, self.columns = reader, columns
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


def check_size(source: str, train: Train, sequence: int) -> None:
    """Raise UsageError unless the corpus, and what is held out of it, has a window for every sequence."""
    corpus, needed = find_corpus(source), train.batch * (sequence + 1)
    share = HELD_OUT if train.evaluate.every else 1
    if corpus.size // share < needed:
        windows = f"a batch of {train.batch} windows of {sequence + 1} bytes (sequence {sequence} + 1)"
        of = f", of which train.evaluate holds out 1/{share}" if share > 1 else ""
        raise UsageError(f"data.source {source!r} has {corpus.size} bytes{of}, but {windows} needs {needed}")


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
