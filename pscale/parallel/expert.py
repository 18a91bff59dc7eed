"""Expert parallelism: every rank of the axis has a share of the experts, and tokens travel to theirs.

The ranks split the batch as well. Routing is decided where a token is, from whole router weights, and the
number of slots is fixed, so every exchange moves the same: experts x sequences x room vectors, room for as
many tokens of a sequence as a rank may have to send to one expert.
Tensor ranks do not cut experts: they route, exchange and multiply alike or, with sequence parallelism, each
the tokens of its slice.
A token's place in the queue of an expert is the number of those before it in the sequence, wherever they
are. Ranks that share sequences have runs of consecutive tokens, so they tell each other how many of each run
choose each expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pscale.config import Model, Plan
from pscale.config.axes import SEQUENCE_AXES
from pscale.mesh.axis import Array, Axis
from pscale.nn.buffers import Buffers
from pscale.nn.layer import Layer
from pscale.nn.param import Param
from pscale.nn.routing import ExpertPositions
from pscale.parallel.context.form import layout_of
from pscale.parallel.context.layout import runs_of


class Exchange:
    """The experts of all ranks of `axis`, as one layer on all slots: (experts, rows, C) to the same.

    `experts` is this rank's share of them, (experts / size, size x rows, C).
    """

    def __init__(self, experts: Layer, axis: Axis, *, buffers: Buffers):
        self.experts, self.axis, self.buffers = experts, axis, buffers
        self.params: Sequence[Param] = experts.params

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Send slots to their experts and bring the outputs home."""
        x = self._send(x)
        y, cache = self.experts.forward(x)
        return self._return(y), cache

    def backward(self, dy: Array, cache: Any) -> Array:
        """Do the same with gradients: the exchange home is the adjoint of that away."""
        dx = self.experts.backward(self._send(dy), cache)
        assert dx is not None
        return self._return(dx)

    def _send(self, x: Array) -> Array:
        E, rows, C = x.shape
        size = self.axis.size
        arrived = self.buffers.take_exchange((size, E // size, rows, C), x.dtype)
        self.axis.all_to_all(x.reshape(arrived.shape), arrived)
        return self._swapped(self.buffers.end_exchange(arrived), out=x).reshape(E // size, size * rows, C)

    def _return(self, y: Array) -> Array:
        mine, rows, C = y.shape
        size = self.axis.size
        other = self.buffers.take(y.shape, y.dtype)
        sent = self._swapped(y.reshape(mine, size, rows // size, C), out=other)
        home = self.buffers.begin_exchange(other if mine == 1 else y).reshape(sent.shape)
        self.axis.all_to_all(sent, home)
        return self.buffers.end_exchange(home).reshape(mine * size, rows // size, C)

    def _swapped(self, x: Array, out: Array) -> Array:
        """Return `x` with its first two dims swapped, in `out` or itself if either is 1.

        So the rows of an expert lie together.
        """
        first, second, *rest = x.shape
        if first == 1 or second == 1:
            return x.reshape(second, first, *rest)
        self.axis.copy(x.swapaxes(0, 1), out.reshape(second, first, *rest))
        return out.reshape(second, first, *rest)


_NUMBER = np.dtype(np.int64)


class SharedPositions(ExpertPositions):
    """Sequences of which the ranks of `axis` have parts; `everyone` are the runs of each rank, in order."""

    def __init__(self, axis: Axis, everyone: Sequence[Sequence[slice]]):
        self._axis, self._most = axis, max(len(runs) for runs in everyone)
        mine = everyone[axis.rank]
        self.runs: Sequence[int] = [run.stop - run.start for run in mine]
        self._before = np.zeros((len(mine), axis.size, self._most), _NUMBER)
        for place, run in enumerate(mine):
            for rank, theirs in enumerate(everyone):
                for number, other in enumerate(theirs):
                    self._before[place, rank, number] = rank != axis.rank and other.start < run.start

    def exchange(self, counts: Array) -> tuple[Array, Array]:
        """Gather the numbers of all ranks; those of runs that a rank does not have are 0."""
        top_k, runs, sequences, experts = counts.shape
        sent = np.zeros((top_k, self._most, sequences, experts), _NUMBER)
        sent[:, :runs] = counts
        every = np.empty((self._axis.size * top_k, *sent.shape[1:]), _NUMBER)
        self._axis.all_gather(sent, every)
        of_ranks = every.reshape(self._axis.size, *sent.shape)
        ahead = np.tensordot(self._before, of_ranks.sum(1), axes=2)
        return ahead, of_ranks[:, 0].sum((0, 1))


def runs_of_all(model: Model, plan: Plan) -> list[list[slice]]:
    """Return the runs of every rank that shares a sequence, in the order of the axis."""
    slices, layout = plan.tp if plan.sp else 1, layout_of(model, plan)
    return [runs_of(layout.runs(rank), slices, part) for rank in range(plan.cp) for part in range(slices)]


def sequence_axes(plan: Plan) -> tuple[str, ...]:
    """Return the axes of the ranks that share a sequence."""
    return (*SEQUENCE_AXES, "tp") if plan.sp else SEQUENCE_AXES
