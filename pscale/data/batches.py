"""The seam between data and trainer: what is asked for, what can be had, and who delivers it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from pscale.config import Data, Model, Train
from pscale.data.placement import Slots
from pscale.data.synthetic import WEIGHTS, LinearBatches, random_tokens, regression, samples_of
from pscale.data.text import check_size, prepare_text
from pscale.errors import UsageError
from pscale.mesh.axis import Array, Axis

_FITTING = {
    "gpt": ("text", "synthetic"),
    "moe": ("text", "synthetic"),
    "block": ("synthetic",),
    "linear": ("linear",),
    "collectives": ("synthetic",),
}


class Batches(Protocol):
    """The samples of one rank, step by step."""

    unigram_nats: float | None  # loss of guessing by byte frequency; text only

    def fill(self, step: int, micro: int) -> tuple[Array, Array]:
        """Return inputs and targets of this rank for one micro-batch of one global batch.

        They are C-contiguous, not to be written to, and valid until the same micro-batch of another step.
        Every rank calls it for the same steps in the same order.
        """
        ...

    def close(self) -> None:
        """Release files; every rank calls it, after the last step."""
        ...


def prepare(case_data: Data, model: Model, train: Train, axis: Axis, folder: Path) -> Batches:
    """Return the batches of this rank of the data-parallel `axis`; all ranks call it.

    Files that a loading mode needs go to `folder` until `close`. Raises UsageError as `check` does, since
    the machine that runs may see other files than the one that asked.
    """
    check(case_data, model, train)
    slots = Slots(batch=train.batch, ranks=axis.size, micro_batches=train.micro_batches)
    if case_data.kind == "text":
        return prepare_text(case_data, model, train, slots, axis=axis, folder=folder)
    if case_data.kind == "linear":
        return LinearBatches(case_data, model, train, slots, axis.rank)
    draw = regression if model.kind in ("block", "collectives") else random_tokens
    return draw(model, train, slots, axis.rank)


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
    check_size(data.source, train.batch, model.sequence)


def _check_linear(data: Data, model: Model, train: Train) -> None:
    if model.width != len(WEIGHTS):
        raise UsageError(f"model.width {model.width}: the linear problem has {len(WEIGHTS)} weights")
    if samples_of(data) < train.batch:
        raise UsageError(
            f"data.samples {samples_of(data)} is not enough: one step of all ranks takes {train.batch}"
        )


class SequenceShare:
    """Batches cut down to some runs of positions, one after another in memory of their own."""

    def __init__(self, batches: Batches, runs: Sequence[slice]):
        self.unigram_nats = batches.unigram_nats
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
