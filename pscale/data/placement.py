"""Who gets which part of the corpus: pure arithmetic of step, micro-batch and rank.

A window is `sequence + 1` bytes: inputs, and targets one byte further. The places (slots) of a global batch
are numbered once; ranks and micro-batches own consecutive ones, so what a step learns from does not depend
on how many there are. Nor does any random number: each is drawn from its own place in a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from pscale.mesh.axis import Array


class Stream(IntEnum):
    """What random numbers are drawn for."""

    ORDER = 0  # of windows, per epoch
    SAMPLES = 1  # per step and place in the global batch
    TEACHER = 2
    FEATURES = 3


def generator(seed: int, stream: Stream, *place: int) -> np.random.Generator:
    """Return the generator of one place in a stream.

    The place goes into the spawn key: as further words of entropy, (1,) and (1, 0) would draw alike.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, *place)))


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The places of a global batch, cut over ranks and, within a rank, over micro-batches."""

    batch: int
    ranks: int
    micro_batches: int

    def __post_init__(self) -> None:
        assert self.batch % (self.ranks * self.micro_batches) == 0

    @property
    def per_rank(self) -> int:
        """Slots of one rank in a step."""
        return self.batch // self.ranks

    @property
    def per_micro(self) -> int:
        """Slots of one rank in a micro-batch."""
        return self.per_rank // self.micro_batches

    def of(self, rank: int, micro: int) -> range:
        """Return the slots of one micro-batch of one rank."""
        first = rank * self.per_rank + micro * self.per_micro
        return range(first, first + self.per_micro)

    def of_rank(self, rank: int) -> range:
        """Return the slots of one rank."""
        return range(rank * self.per_rank, (rank + 1) * self.per_rank)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Slot i reads region i of `batch` equal regions of the corpus, window after window, and begins again.

    Consecutive windows of a region share one byte: the last target of one is the first input of the next.
    """

    corpus_bytes: int
    sequence: int
    slots: Slots

    @property
    def region_bytes(self) -> int:
        """Size of a region; less than `batch` bytes at the end of the corpus belong to none."""
        return self.corpus_bytes // self.slots.batch

    @property
    def windows(self) -> int:
        """Windows of a region: the steps of an epoch."""
        return (self.region_bytes - 1) // self.sequence

    def offsets(self, step: int, micro: int, rank: int) -> Array:
        """Return where the windows begin, in bytes; int64 of shape (slots of the micro-batch,)."""
        slots = self.slots.of(rank, micro)
        regions = np.arange(slots.start, slots.stop, dtype=np.int64)
        return regions * self.region_bytes + step % self.windows * self.sequence

    def span(self, rank: int) -> tuple[int, int]:
        """Return the first byte that the rank may ever read, and the one after the last."""
        slots = self.slots.of_rank(rank)
        return slots.start * self.region_bytes, slots.stop * self.region_bytes


@dataclass(frozen=True, kw_only=True)
class Sample:
    """All windows of the corpus in a new random order every epoch; each batch takes the next ones.

    Windows share no byte. An epoch is as many whole batches as there are windows for.
    """

    corpus_bytes: int
    sequence: int
    seed: int
    slots: Slots

    @property
    def windows(self) -> int:
        """Windows of the corpus."""
        return self.corpus_bytes // (self.sequence + 1)

    def offsets(self, step: int, micro: int, rank: int) -> Array:
        """Return where the windows begin, in bytes; int64 of shape (slots of the micro-batch,)."""
        epoch, batch = divmod(step, self.windows // self.slots.batch)
        slots = self.slots.of(rank, micro)
        first = batch * self.slots.batch + slots.start
        order = _order(self.windows, self.seed, epoch)
        return order[first : first + len(slots)] * (self.sequence + 1)

    def span(self, rank: int) -> tuple[int, int]:  # noqa: ARG002 - any window any rank may read
        """Return the whole corpus."""
        return 0, self.corpus_bytes


Placement = Partition | Sample  # gives every slot of every step its window of the corpus


@lru_cache(maxsize=1)
def _order(windows: int, seed: int, epoch: int) -> Array:
    return generator(seed, Stream.ORDER, epoch).permutation(windows)
