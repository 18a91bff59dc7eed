"""What an optimizer declares of itself, and what it may ask of other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pscale.config import Train
from pscale.nn.buffers import Array
from pscale.nn.optimizers.state import Flat, Kept, Slots, State


class Ranks(Protocol):
    """The exchanges of an axis that an optimizer may make."""

    size: int
    rank: int

    def all_reduce(self, x: Array) -> None:
        """Replace `x` by its sum over the ranks."""
        ...

    def all_gather(self, x: Array, out: Array) -> None:
        """Put `x` of every rank side by side along the first dim of `out`."""
        ...


class _Alone:
    """Ranks of which there is one."""

    size, rank = 1, 0

    def all_reduce(self, x: Array) -> None:
        """Leave `x` as it is."""

    def all_gather(self, x: Array, out: Array) -> None:
        """Copy `x`."""
        out[...] = x.reshape(out.shape)


@dataclass(frozen=True, kw_only=True)
class ProcessGroups:
    """Who has the rest of the tensors of which this rank has some elements.

    `shards`: ranks that have other elements of the same part of each tensor, in flat memory; `cuts`: ranks
    that have other parts, cut along a dim.
    """

    shards: Ranks = field(default_factory=_Alone)
    cuts: Ranks = field(default_factory=_Alone)


ALONE = ProcessGroups()


def shard_size(size: int, ranks: int) -> int:
    """Return how many of `size` elements each of the ranks owns that share them; the last may own fewer."""
    return -(-size // ranks)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """All that the rest of the program knows of an optimizer.

    `make(train, flats, states, groups)` returns it, with a `State` for each of `slots(train)`. The fields
    of `Train` that it reads are `hyperparameters`, with what they are. `factored`: it keeps sums of a matrix.
    """

    make: Callable[[Train, Sequence[Flat], Sequence[State], ProcessGroups], Optimizer]
    hyperparameters: Mapping[str, str]
    slots: Callable[[Train], Sequence[Slots]]
    factored: bool = False

    def keeps(self, train: Train) -> bool:
        """Tell whether there is any state of the parameters' size."""
        return any(slots.arrays for slots in self.slots(train))


class Optimizer:
    """Changes weights by their gradients; `state` is all the memory that it has beside them."""

    state: Sequence[Array]
    _state: State

    def begin(self, lr: float, scale: float, number: int) -> None:
        """Begin step `number`, the first is 1, with the gradients times `scale`.

        What depends on all weights of a tensor is found here.
        """
        raise NotImplementedError

    def apply(self, part: int) -> None:
        """End it for the flat memory number `part`; ranks that share tensors take the parts in one order."""
        raise NotImplementedError

    def kept(self, *, changes: bool) -> Iterator[Kept]:
        """Yield all that one step leaves for the next, each array until the next; `changes` are written."""
        return self._state.kept(changes=changes)


class Step(NamedTuple):
    """Hyperparameters of a step, counted from 1: gradients count `scale` times, weights `keep` times."""

    train: Train
    number: int
    lr: float
    scale: float
    keep: float


Change = Callable[[Array, Array, Sequence[Array], Step], None]  # of weights, by gradients and their state


class OnePass(Optimizer):
    """An optimizer whose function updates weight by weight, with one state; it needs no other ranks."""

    def __init__(
        self,
        change: Change,
        train: Train,
        _: Sequence[Flat],
        states: Sequence[State],
        __: ProcessGroups,
        *,
        decays: bool = False,
    ):
        self._change, self._train, [self._state], self._decays = change, train, states, decays
        self.state: Sequence[Array] = self._state.at_hand
        self._step = Step(train, 0, 0.0, 1.0, 1.0)

    def begin(self, lr: float, scale: float, number: int) -> None:
        """Remember all three."""
        keep = 1 - lr * self._train.weight_decay if self._decays else 1.0
        self._step = Step(self._train, number, lr, scale, keep)

    def apply(self, part: int) -> None:
        """Do all in one pass."""
        whole = self._step._replace(keep=1.0)
        for flat, state in self._state.pieces(part):
            for run, decays in flat.spans:
                step = self._step if decays else whole
                self._change(flat.data[run], flat.grad[run], [array[run] for array in state], step)


def update(optimizer: Optimizer, parts: int, lr: float, scale: float = 1.0, number: int = 1) -> None:
    """Do step `number` on all of an optimizer's `parts` flat memories."""
    optimizer.begin(lr, scale, number)
    for part in range(parts):
        optimizer.apply(part)
