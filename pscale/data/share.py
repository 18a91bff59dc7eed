"""The part of every sequence that a rank has when ranks share sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.data.batches import Batches
from pscale.mesh.axis import Array


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
        """Give back files; every rank calls it, after the last step."""
        self._batches.close()

    def _empty(self, whole: Array) -> Array:
        tokens = sum(run.stop - run.start for run in self._runs)
        return np.empty((whole.shape[0], tokens, *whole.shape[2:]), whole.dtype)


def sequence_share(batches: Batches, runs: Sequence[slice], sequence: int) -> Batches:
    """Return batches of the tokens at `runs` of a sequence: as they are if that is all of it."""
    return batches if tuple(runs) == (slice(0, sequence),) else SequenceShare(batches, runs)
