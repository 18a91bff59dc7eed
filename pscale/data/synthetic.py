"""Samples from nothing but the seed: random tokens, a regression for a block, and the linear problem.

Each is drawn from its place in the global batch, whatever rank that belongs to. Drawing in every step would
take longer than some models do, so a few global batches are drawn once and repeated in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pscale.config import Data, Model, Train
from pscale.data.placement import Slots, Stream, generator
from pscale.mesh.axis import Array
from pscale.nn.dtypes import dtype_of

TOKEN_BATCHES = 16
REGRESSION_BATCHES = 4  # each as large as the activations between two layers

WEIGHTS = (0.500593, -0.0807231, 1.17474, -1.45482, -0.629856)
SAMPLES = 10_000

_Draw = Callable[["np.random.Generator"], tuple[Array, Array]]


class Batches:
    """The samples of one rank, step by step."""

    columns: Mapping[str, Any] = {}  # of the `cases` table, known when it is prepared

    def fill(self, step: int, micro: int) -> tuple[Array, Array]:
        """Return inputs and targets of this rank for one micro-batch of one global batch.

        They are C-contiguous, not to be written to, and valid until the same micro-batch of another step.
        Every rank calls it for the same steps in the same order.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release files; every rank calls it, after the last step."""


class Pool(Batches):
    """Samples of this rank for a few steps; what `fill` returns is a part of them, and not to be changed."""

    def __init__(self, draw: _Draw, steps: int, seed: int, slots: Slots, rank: int):
        samples = [
            draw(generator(seed, Stream.SAMPLES, step, slot))
            for step in range(steps)
            for slot in slots.of_rank(rank)
        ]
        self._per_micro = slots.per_micro
        self._inputs, self._targets = (
            np.stack(arrays).reshape(steps, slots.per_rank, *arrays[0].shape)
            for arrays in zip(*samples, strict=True)
        )
        self._inputs.flags.writeable = self._targets.flags.writeable = False

    def fill(self, step: int, micro: int) -> tuple[Array, Array]:
        """Return inputs and targets of one micro-batch of this rank, with the shapes of the samples."""
        turn = step % len(self._inputs)
        share = slice(micro * self._per_micro, (micro + 1) * self._per_micro)
        return self._inputs[turn, share], self._targets[turn, share]


def random_tokens(model: Model, train: Train, slots: Slots, rank: int) -> Pool:
    """Return batches of uniform tokens, intp of shape (B, T); targets are the inputs shifted by one."""

    def draw(random: np.random.Generator) -> tuple[Array, Array]:
        window = random.integers(model.vocabulary, size=model.sequence + 1, dtype=np.intp)
        return window[:-1], window[1:]

    return Pool(draw, TOKEN_BATCHES, train.seed, slots, rank)


def regression(model: Model, train: Train, slots: Slots, rank: int) -> Pool:
    """Return batches of x ~ N(0, 1) and a teacher's answer, both of shape (B, T, C) in the model's type.

    The answer at t is a fixed linear map of x at t plus x at t - 1: causal, and beyond what a layer without
    attention can learn.
    """
    width = model.width
    teacher = generator(train.seed, Stream.TEACHER).standard_normal((width, width)) / np.sqrt(width)

    def draw(random: np.random.Generator) -> tuple[Array, Array]:
        x = random.standard_normal((model.sequence, width))
        answer = x @ teacher
        answer[1:] += x[:-1]
        return x.astype(dtype_of(model.dtype)), answer.astype(dtype_of(model.dtype))

    return Pool(draw, REGRESSION_BATCHES, train.seed, slots, rank)


class LinearBatches(Batches):
    """The five-weight problem: find W from features and their weighted sums.

    Samples come in order, the first again after the last; what `fill` returns is not to be changed.
    """

    def __init__(self, data: Data, model: Model, train: Train, slots: Slots, rank: int):
        self._samples, self._slots, self._rank = samples_of(data), slots, rank
        features = generator(train.seed, Stream.FEATURES).standard_normal((self._samples, len(WEIGHTS)))
        answers = features @ np.array(WEIGHTS)[:, None]
        # With a head start repeated behind the end, every batch is one piece of memory.
        again = np.arange(self._samples + slots.per_micro) % self._samples
        self._features, self._answers = (x[again].astype(dtype_of(model.dtype)) for x in (features, answers))
        self._features.flags.writeable = self._answers.flags.writeable = False

    def fill(self, step: int, micro: int) -> tuple[Array, Array]:
        """Return features of shape (B, 5) and answers of shape (B, 1), in the model's type."""
        slots = self._slots.of(self._rank, micro)
        first = (step * self._slots.batch + slots.start) % self._samples
        part = slice(first, first + len(slots))
        return self._features[part], self._answers[part]


def samples_of(data: Data) -> int:
    """Return the size of the data set: as given, else that of the original problem."""
    return data.samples or SAMPLES
