"""Samples from nothing but the seed: random tokens, and a regression that a block can learn.

Each is drawn from its place in the global batch, whatever rank that belongs to. Drawing in every step would
take longer than some models do, so a few global batches are drawn once and come again in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pscale.config import Model, Train
from pscale.data.placement import Slots
from pscale.data.streams import Stream, generator
from pscale.mesh.axis import Array
from pscale.number import number

TOKEN_BATCHES = 16
REGRESSION_BATCHES = 4  # each as large as the activations between two layers

_Draw = Callable[[np.random.Generator], tuple[Array, Array]]


class Pool:
    """Samples of this rank for a few steps; what `fill` returns is a part of them, and not to be changed."""

    unigram_nats: float | None = None

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

    def close(self) -> None:
        """Leave all to the garbage collector."""


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
        return x.astype(number(model.dtype)), answer.astype(number(model.dtype))

    return Pool(draw, REGRESSION_BATCHES, train.seed, slots, rank)
