"""The optimizers, a module each by the name that a suite gives it, and how one is made.

To add one: its name in `pscale.config.choices.Optimizer`, and here a module of that name with its `RULE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np

from pscale.config import Train
from pscale.nn.buffers import Array, zeros
from pscale.nn.offload.storage import Storage
from pscale.nn.optimizers.base import ALONE, Optimizer, ProcessGroups, Rule
from pscale.nn.optimizers.state import Flat, Kept, State

MASTER = np.dtype(np.float32)
WEIGHT = "weight"  # among what an optimizer keeps


@cache
def rule_of(name: str) -> Rule:
    """Return what an optimizer declares of itself; loads no other."""
    rule: Rule = import_module(f"{__name__}.{name}").RULE
    return rule


def make_optimizer(
    train: Train, flats: Sequence[Flat], groups: ProcessGroups = ALONE, storage: Storage | None = None
) -> Optimizer:
    """Return the optimizer that `train` names, for tensors of which `groups` has the rest.

    Its state is in memory, or in chunks in `storage`; master weights stay in memory.
    """
    rule = rule_of(train.optimizer)

    def make(flats: Sequence[Flat]) -> Optimizer:
        states = [State(flats, slots, storage) for slots in rule.slots(train)]
        return rule.make(train, flats, states, groups)

    if any(flat.data.itemsize < MASTER.itemsize for flat in flats):  # too coarse to add updates to
        return MasterWeights(flats, make)
    return make(flats)


class MasterWeights(Optimizer):
    """Any optimizer on float32 copies of weights of 16 bits: small updates are not rounded away.

    The copies (Micikevicius et al., 2018) are part of its state; so are its moments. Gradients stay as they
    are stored: kernels upcast them a piece at a time.
    """

    def __init__(self, flats: Sequence[Flat], make: Callable[[Sequence[Flat]], Optimizer]):
        self._flats = flats
        copies = zeros([flat.data.size for flat in flats], MASTER)
        self._copies = [replace(flat, data=copy) for flat, copy in zip(flats, copies, strict=True)]
        self._optimizer = make(self._copies)
        self.state: Sequence[Array] = [*(copy.data for copy in self._copies), *self._optimizer.state]
        self._copied = False

    def begin(self, lr: float, scale: float, number: int) -> None:
        """Begin a step; the first one begins with the weights that are stored."""
        self._copy()
        self._optimizer.begin(lr, scale, number)

    def apply(self, part: int) -> None:
        """Update the copies and round them to what is stored."""
        self._optimizer.apply(part)
        self._flats[part].data[...] = self._copies[part].data

    def kept(self, *, changes: bool) -> Iterator[Kept]:
        """Yield the copies as the weights, then the state; changed copies are rounded to what is stored."""
        self._copy()
        for part, copy in enumerate(self._copies):
            for run in copy.runs:
                yield Kept(run.param, WEIGHT, run.param.elements(run.first, run.size), copy.data[run.place])
            if changes:
                self._flats[part].data[...] = copy.data
        yield from self._optimizer.kept(changes=changes)

    def _copy(self) -> None:
        if not self._copied:
            for flat, copy in zip(self._flats, self._copies, strict=True):
                copy.data[...] = flat.data
            self._copied = True


def learning_rate(train: Train, step: int, replicas: int) -> float:
    """Return the rate of step `step`, counted from 0, on `replicas` that share the batch.

    It grows to `lr`, scaled by the batch, over the first `lr_warmup` steps; along a cosine it then falls to
    the share `lr_final` in the last step, where it stays.
    """
    reference = train.lr_batch or train.batch / replicas
    factor = train.batch / reference
    peak = train.lr * {"none": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[train.lr_scaling]
    if step < train.lr_warmup:
        return peak * (step + 1) / train.lr_warmup
    if train.lr_schedule == "constant":
        return peak
    last = train.warmup + train.steps - 1 - train.lr_warmup
    gone = min(1.0, (step - train.lr_warmup) / last) if last else 1.0
    return peak * (train.lr_final + (1 - train.lr_final) * (1 + math.cos(math.pi * gone)) / 2)
