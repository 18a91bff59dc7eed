"""Calls as they are predicted, and parameters in groups that are summed and cut alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis, Mesh
from pscale.mesh.grid import spanned
from pscale.nn import kernels
from pscale.nn.param import Param


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
    """Parameters that are summed over the same axis and cut by the same axes, unit by unit.

    Those that are `tied` make a group of their own, which is dealt out alike at both ends.
    """

    sync: tuple[str, ...]
    cut: tuple[str, ...]
    tied: bool
    units: dict[int, list[Param]]

    @property
    def params(self) -> list[Param]:
        """All parameters, in forward order."""
        return [param for unit in self.units.values() for param in unit]

    @property
    def slices(self) -> dict[int, slice]:
        """Where each unit lies in flat memory of all parameters."""
        slices, start = {}, 0
        for unit, params in self.units.items():
            stop = start + sum(param.size for param in params)
            slices[unit] = slice(start, stop)
            start = stop
        return slices


def square_norm(held: Iterable[tuple[NDArray[np.floating], int]], axis: Axis) -> float:
    """Sum squares of gradients over an axis; each comes with how many of its ranks hold the same."""
    squares = (kernels.current().square_norm(grad) / copies for grad, copies in held)
    total = np.array([sum(squares)], np.float64)
    if axis.size > 1:
        axis.all_reduce(total)
    return float(total[0])


def grouped(units: Sequence[Sequence[Param]], mesh: Mesh) -> list[Group]:
    """Sort the parameters of this rank's units into groups, in one order on every rank of an axis."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], bool], Group] = {}
    span = cache(partial(spanned, mesh.sizes))  # axes are few, parameters very many
    for number, params in enumerate(units):
        for param in params:
            sync, cut = span(param.sync), span(param.cut.axes if param.cut else ())
            key, new = (sync, cut, param.tied), Group(sync=sync, cut=cut, tied=param.tied, units={})
            group = groups.setdefault(key, new)
            group.units.setdefault(number, []).append(param)
    return list(groups.values())
