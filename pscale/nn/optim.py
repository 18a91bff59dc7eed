"""Optimizers: in place on flat memory, a cache-sized chunk at a time, one pass over each array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.buffers import Array, aligned
from pscale.nn.kernels.tile import CHUNK, chunks
from pscale.nn.param import Arena, Param


@dataclass(frozen=True)
class Span:
    """A run of elements that are all decayed or all not."""

    start: int
    stop: int
    decay: bool


class Optimizer(Protocol):
    """Changes weights by their gradients."""

    state: Sequence[Array]

    def update(self, lr: float, scale: float = 1.0) -> None:
        """Do one step with the gradients times `scale`."""
        ...


def make_optimizer(train: Train, arena: Arena) -> Optimizer:
    """Return the optimizer that `train` names, on all of an arena."""
    return make_flat_optimizer(train, arena.data, arena.grad, decay_spans(arena.params))


def make_flat_optimizer(train: Train, data: Array, grad: Array, spans: Sequence[Span]) -> Optimizer:
    """Return the optimizer that `train` names, on flat memory of which `spans` says what is decayed."""
    if train.optimizer == "sgd":
        return Sgd(data, grad, train)
    return AdamW(data, grad, spans, train)


def decay_spans(params: Sequence[Param]) -> Sequence[Span]:
    """Return the flat layout of `params` as few runs of equal decay."""
    spans: list[Span] = []
    start = 0
    for param in params:
        stop = start + param.size
        if spans and spans[-1].decay == param.decay:
            spans[-1] = Span(spans[-1].start, stop, param.decay)
        else:
            spans.append(Span(start, stop, param.decay))
        start = stop
    return spans


def spans_within(spans: Sequence[Span], start: int, stop: int) -> Sequence[Span]:
    """Return the runs of the elements [start, stop), counted from `start`."""
    cut = (Span(max(span.start, start), min(span.stop, stop), span.decay) for span in spans)
    return [Span(span.start - start, span.stop - start, span.decay) for span in cut if span.start < span.stop]


class Sgd:
    """velocity = momentum velocity + g; w -= lr velocity. Weights are not decayed."""

    def __init__(self, data: Array, grad: Array, train: Train):
        self.data, self.grad, self.momentum = data, grad, train.momentum
        self.state: Sequence[Array] = (_zeros_like(data),) if train.momentum else ()
        self._scratch = np.empty(min(CHUNK, data.size), data.dtype)

    def update(self, lr: float, scale: float = 1.0) -> None:
        """Do one step with the gradients times `scale`."""
        for part in chunks(self.data.size):
            step = self._scratch[: part.stop - part.start]
            np.multiply(self.grad[part], scale, out=step)
            for velocity in self.state:
                velocity[part] *= self.momentum
                velocity[part] += step
                np.copyto(step, velocity[part])
            step *= lr
            self.data[part] -= step


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), decaying only the spans that say so.

    The state is the moments over (1 - beta), `m = beta1 m + g` and `v = beta2 v + g^2`, which saves two
    passes; the factors are put in with those of the bias correction.
    """

    def __init__(self, data: Array, grad: Array, spans: Sequence[Span], train: Train):
        self.data, self.grad, self.spans, self.train = data, grad, spans, train
        self.state: Sequence[Array] = (_zeros_like(data), _zeros_like(data))
        self.steps = 0

    def update(self, lr: float, scale: float = 1.0) -> None:
        """Do one step with the gradients times `scale`."""
        train = self.train
        self.steps += 1
        deviation = math.sqrt((1 - train.beta2) / (1 - train.beta2**self.steps))
        rate = lr * (1 - train.beta1) / (1 - train.beta1**self.steps) / deviation
        for span in self.spans:
            keep = 1 - lr * train.weight_decay if span.decay else 1.0
            run = slice(span.start, span.stop)
            kernels.current().adamw(
                self.data[run],
                self.grad[run],
                self.state[0][run],
                self.state[1][run],
                scale=scale,
                beta1=train.beta1,
                beta2=train.beta2,
                rate=rate,
                epsilon=train.epsilon / deviation,
                keep=keep,
            )


def _zeros_like(data: Array) -> Array:
    zeros: Array = aligned(data.nbytes).view(data.dtype)
    zeros.fill(0)
    return zeros
