"""The seam between the training loop and the strategies that hold parameters on several ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis, Mesh
from pscale.mesh.grid import spanned
from pscale.nn import kernels
from pscale.nn.param import Param, Share


class Replicas(Protocol):
    """A rank's copy, or share, of the parameters: their memory, their exchange and their update."""

    def fill(self, seed: int, share: Share) -> None:
        """Give every parameter its initial value, and `share` it with the ranks that hold it too."""
        ...

    def gather(self, unit: int) -> None:
        """Make the weights of unit `unit` whole, before it runs forward or backward."""
        ...

    def release(self, unit: int, *, again: bool = False) -> None:
        """Be told that the weights of unit `unit` are not needed for now: its forward is done.

        `again`: that forward was one for a backward to come, which does again what was done before.
        """
        ...

    def drop(self, unit: int) -> None:
        """Be told that the micro-batch does not need the weights of unit `unit` again: backward used them."""
        ...

    def start_step(self) -> None:
        """Begin a step: gradients are those of earlier steps."""
        ...

    def ready(self, unit: int, *, last: bool) -> None:
        """Be told that gradients of unit `unit` are final for a micro-batch, the step's last if `last`."""
        ...

    def finish(self) -> None:
        """Return when every gradient is the sum over all that hold its parameter."""
        ...

    def square_norm(self) -> float:
        """Return the squared norm of the whole model's gradient."""
        ...

    def gradients(self) -> Iterator[tuple[Param, NDArray[np.floating]]]:
        """Yield every parameter of this rank with its summed gradient, between `finish` and `update`."""
        ...

    def update(self, lr: float, scale: float) -> None:
        """Do one optimizer step with the gradients times `scale`."""
        ...

    def weights(self) -> Iterator[tuple[Param, NDArray[np.floating]]]:
        """Yield every parameter with its value, which may last until the next; every rank has to iterate."""
        ...

    def memory_bytes(self) -> dict[str, int]:
        """Return what is held for `parameters`, `gradients`, `optimizer` and `exchange`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Call:
    """A communication call that a strategy makes: what to expect, and what to count."""

    axis: str
    verb: str
    sent_bytes: int  # payload handed to the call by one rank
    count: int = 1  # per step
    wide: bool = False  # numbers of more bits than the model's

    @property
    def step_bytes(self) -> int:
        """Payload of one step."""
        return self.sent_bytes * self.count


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters that are summed over the same axis and cut by the same axes, unit by unit."""

    sync: tuple[str, ...]
    cut: tuple[str, ...]
    units: dict[int, list[Param]]

    @property
    def params(self) -> list[Param]:
        """All parameters, in forward order."""
        return [param for unit in self.units.values() for param in unit]


def square_norm(held: Iterable[tuple[NDArray[np.floating], int]], axis: Axis) -> float:
    """Sum squares of gradients over an axis; each comes with how many of its ranks hold the same."""
    squares = (kernels.current().square_norm(grad) / copies for grad, copies in held)
    total = np.array([sum(squares)], np.float64)
    if axis.size > 1:
        axis.all_reduce(total)
    return float(total[0])


def grouped(units: Sequence[Sequence[Param]], mesh: Mesh) -> list[Group]:
    """Sort the parameters of this rank's units into groups, in one order on every rank of an axis."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], Group] = {}
    span = cache(partial(spanned, mesh.sizes))  # axes are few, parameters very many
    for number, params in enumerate(units):
        for param in params:
            sync, cut = span(param.sync), span(param.cut.axes if param.cut else ())
            group = groups.setdefault((sync, cut), Group(sync=sync, cut=cut, units={}))
            group.units.setdefault(number, []).append(param)
    return list(groups.values())
