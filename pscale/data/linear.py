"""The five-weight problem: find W from features and their weighted sums."""

from __future__ import annotations

import numpy as np

from pscale.config import Data, Model, Train
from pscale.data.placement import Slots
from pscale.data.streams import Stream, generator
from pscale.mesh.axis import Array
from pscale.number import number

WEIGHTS = (0.500593, -0.0807231, 1.17474, -1.45482, -0.629856)
SAMPLES = 10_000


class LinearBatches:
    """Samples in order, the first following the last; what `fill` returns is not to be changed."""

    unigram_nats: float | None = None

    def __init__(self, data: Data, model: Model, train: Train, slots: Slots, rank: int):
        self._samples, self._slots, self._rank = samples_of(data), slots, rank
        features = generator(train.seed, Stream.FEATURES).standard_normal((self._samples, len(WEIGHTS)))
        answers = features @ np.array(WEIGHTS)[:, None]
        # With a head start repeated behind the end, every batch is one piece of memory.
        again = np.arange(self._samples + slots.per_micro) % self._samples
        self._features, self._answers = (x[again].astype(number(model.dtype)) for x in (features, answers))
        self._features.flags.writeable = self._answers.flags.writeable = False

    def fill(self, step: int, micro: int) -> tuple[Array, Array]:
        """Return features of shape (B, 5) and answers of shape (B, 1), in the model's type."""
        slots = self._slots.of(self._rank, micro)
        first = (step * self._slots.batch + slots.start) % self._samples
        part = slice(first, first + len(slots))
        return self._features[part], self._answers[part]

    def close(self) -> None:
        """Leave all to the garbage collector."""


def samples_of(data: Data) -> int:
    """Return the size of the data set: as given, else that of the original problem."""
    return data.samples or SAMPLES
