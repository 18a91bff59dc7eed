"""Optimizers that work in place on flat memory, and those of which a weight needs to know but itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.offload.state import IN_MEMORY, StateMemory
from pscale.nn.param import Param

Sum = Callable[[Array], None]  # replaces an array by its sum over ranks


def _alone(_: Array) -> None:
    """Find that nobody has more."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """How sums over whole tensors come about of which this rank has some elements only.

    `shards` adds up over ranks that have other elements of the same part of each tensor, in flat memory;
    `cuts` over those that have other parts, cut along a dim. Both take float64.
    """

    shards: Sum = _alone
    cuts: Sum = _alone


ALONE = Elsewhere()


@dataclass(frozen=True)
class Run:
    """The elements of a parameter, from `first` on, that lie at `place` of flat memory; maybe none."""

    param: Param
    place: slice
    first: int

    @property
    def size(self) -> int:
        """How many."""
        size: int = self.place.stop - self.place.start
        return size


@dataclass(frozen=True)
class Flat:
    """Weights and gradients in flat memory: those of `params`, one after another, from element `start` on."""

    data: Array
    grad: Array
    params: Sequence[Param]
    start: int = 0

    def runs(self) -> list[Run]:
        """Return what is here of each parameter."""
        found, first = [], 0
        for param in self.params:
            low, high = (min(max(at - self.start, 0), self.data.size) for at in (first, first + param.size))
            found.append(Run(param, slice(low, high), max(self.start - first, 0)))
            first += param.size
        return found

    def spans(self) -> list[tuple[slice, bool]]:
        """Return the memory as few runs of equal decay."""
        found: list[tuple[slice, bool]] = []
        for run in self.runs():
            if found and found[-1][1] == run.param.decay:
                found[-1] = slice(found[-1][0].start, run.place.stop), run.param.decay
            elif run.size:
                found.append((run.place, run.param.decay))
        return found


class Optimizer(Protocol):
    """Changes weights by their gradients; `state` is what it remembers of each flat memory."""

    state: Sequence[Array]

    def begin(self, lr: float, scale: float) -> None:
        """Begin a step with the gradients times `scale`: find what depends on all weights of a tensor."""
        ...

    def apply(self, part: int) -> None:
        """End it for the flat memory number `part`."""
        ...


def update(optimizer: Optimizer, parts: int, lr: float, scale: float = 1.0) -> None:
    """Do a step on all of an optimizer's `parts` flat memories."""
    optimizer.begin(lr, scale)
    for part in range(parts):
        optimizer.apply(part)


class Sgd:
    """velocity = momentum velocity + g; w -= lr velocity. Weights are not decayed."""

    def __init__(self, flats: Sequence[Flat], train: Train, *, memory: StateMemory = IN_MEMORY):
        self._flats, self._momentum, self._memory = flats, train.momentum, memory
        self.state: Sequence[Array] = _like(flats, memory, 1)[0] if train.momentum else []
        self._lr, self._scale = 0.0, 1.0

    def begin(self, lr: float, scale: float) -> None:
        """Remember both."""
        self._lr, self._scale = lr, scale

    def apply(self, part: int) -> None:
        """Follow the velocity."""
        flat, velocity = self._flats[part], self.state[part] if self.state else None
        with self._memory.here(part):
            kernels.current().sgd(
                flat.data, flat.grad, velocity, scale=self._scale, momentum=self._momentum, rate=self._lr
            )


class Moments:
    """The state of Adam and what follows it, and the factors of its bias correction.

    The state is the moments over (1 - beta), `m = beta1 m + g` and `v = beta2 v + g^2`, which saves two
    passes; the factors are put in with those of the bias correction.
    """

    def __init__(self, flats: Sequence[Flat], train: Train, memory: StateMemory):
        self.train, self.memory = train, memory
        self.m, self.v = _like(flats, memory, 2)
        self.steps = 0
        self.rate = self.epsilon = 0.0  # of m / (sqrt(v) + epsilon), which times the rate is the update

    @property
    def state(self) -> list[Array]:
        """All of it."""
        return [*self.m, *self.v]

    def begin(self) -> None:
        """Count a step."""
        train = self.train
        self.steps += 1
        deviation = math.sqrt((1 - train.beta2) / (1 - train.beta2**self.steps))
        self.rate = (1 - train.beta1) / (1 - train.beta1**self.steps) / deviation
        self.epsilon = train.epsilon / deviation


class Adam:
    """Adam (Kingma and Ba, 2015) with a weight decay of its own (AdamW: Loshchilov and Hutter, 2019).

    Only those spans are decayed that say so.
    """

    def __init__(self, flats: Sequence[Flat], train: Train, *, decay: float, memory: StateMemory = IN_MEMORY):
        self._flats, self._train, self._decay = flats, train, decay
        self._spans = [flat.spans() for flat in flats]
        self._moments = Moments(flats, train, memory)
        self.state: Sequence[Array] = self._moments.state
        self._lr, self._scale = 0.0, 1.0

    def begin(self, lr: float, scale: float) -> None:
        """Find the factors of the step."""
        self._lr, self._scale = lr, scale
        self._moments.begin()

    def apply(self, part: int) -> None:
        """Do all in one pass."""
        flat, moments, train = self._flats[part], self._moments, self._train
        with moments.memory.here(part):
            for run, decays in self._spans[part]:
                kernels.current().adamw(
                    flat.data[run],
                    flat.grad[run],
                    moments.m[part][run],
                    moments.v[part][run],
                    scale=self._scale,
                    beta1=train.beta1,
                    beta2=train.beta2,
                    rate=self._lr * moments.rate,
                    epsilon=moments.epsilon,
                    keep=1 - self._lr * self._decay if decays else 1.0,
                )


def _like(flats: Sequence[Flat], memory: StateMemory, arrays: int) -> list[list[Array]]:
    """Return zeros for each of the flat memories, so many times."""
    return memory.zeros([flat.data for flat in flats], arrays)
