"""Routing replay: the experts that the tokens of a step went to, so that two programs choose the same.

A choice does not depend continuously on what it is made by: a token that two experts suit alike goes to one
here and to the other where sums are rounded otherwise, and its gradient is another one altogether. So the
serial program sends every token where the plan has sent it, and what is compared in place of choices is by
how much they were the worse ones: no more than rounding moves a probability, if the plan computes rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np

from pscale.config import Case
from pscale.config.axes import BATCH_AXES
from pscale.data.placement import Slots
from pscale.mesh.axis import Array, Mesh
from pscale.nn.routing import RouterStats
from pscale.parallel import expert

_ELSEWHERE = -1  # less than every expert


class RoutingRecord:
    """Records what the routers of all ranks choose in a step."""

    def __init__(self, case: Case, mesh: Mesh):
        model = case.model
        shape = (model.layers, case.train.batch, model.sequence, model.top_k)
        self.experts = np.full(shape, _ELSEWHERE, np.int64)  # of every token of the batch, in each block
        self._tokens, self._world = _Tokens(case, mesh), mesh.world

    @contextmanager
    def __call__(self, routers: Sequence[RouterStats]) -> Iterator[None]:
        """Record the choices of the block of code, then gather those of other ranks; collective."""
        with _reviewed(routers, self._record):
            yield
        self._world.all_reduce(self.experts, "max")

    def _record(self, block: int, micro: int, _: Array, chosen: Array) -> None:
        here = self._tokens.of(micro)
        self.experts[block][here] = chosen.reshape(self.experts[block][here].shape)


class RoutingReplay:
    """Makes the routers of a rank choose what was recorded, and compares it with their own choice."""

    def __init__(self, record: RoutingRecord, case: Case, mesh: Mesh):
        self._experts, self._tokens = record.experts, _Tokens(case, mesh)
        self._changes: dict[int, float] = {}
        self._largest: dict[int, float] = {}

    @contextmanager
    def __call__(self, routers: Sequence[RouterStats]) -> Iterator[None]:
        """Choose as recorded in the block of code."""
        with _reviewed(routers, self._replay):
            yield

    def errors(self) -> list[tuple[str, float]]:
        """Return how far from each block's own choices these are in probability, relative to the largest."""
        changes = ((block, change / self._largest[block]) for block, change in self._changes.items())
        return sorted(((f"block.{block}", error) for block, error in changes), key=lambda row: -row[1])

    def _replay(self, block: int, micro: int, p: Array, chosen: Array) -> None:
        others = self._experts[block][self._tokens.of(micro)].reshape(chosen.shape)
        mine, theirs = (np.take_along_axis(p, experts, axis=1) for experts in (chosen, others))
        for found, value in ((self._changes, np.abs(mine - theirs)), (self._largest, mine)):
            found[block] = max(found.get(block, 0.0), float(value.max()))
        chosen[...] = others


class _Tokens:
    """Where the tokens of the micro-batches of a rank are in the batch."""

    def __init__(self, case: Case, mesh: Mesh):
        axis = mesh.axis(*BATCH_AXES)
        runs = expert.runs_of_all(case.model, case.plan)
        mine = runs[mesh.axis(*expert.sequence_axes(case.plan)).rank]
        self._slots = Slots(batch=case.train.batch, ranks=axis.size, micro_batches=case.train.micro_batches)
        self._rank = axis.rank
        self._positions = np.concatenate([np.arange(run.start, run.stop) for run in mine])

    def of(self, micro: int) -> tuple[Array, ...]:
        """Return the index of the tokens of a micro-batch."""
        return np.ix_(np.array(self._slots.of(self._rank, micro)), self._positions)


@contextmanager
def _reviewed(
    routers: Sequence[RouterStats], review: Callable[[int, int, Array, Array], None]
) -> Iterator[None]:
    """Pass what routers choose to `review`, with the numbers of block and micro-batch."""
    for stats in routers:
        micro_batches = count()
        stats.review = lambda p, chosen, b=stats.block, m=micro_batches: review(b, next(m), p, chosen)
    try:
        yield
    finally:
        for stats in routers:
            stats.review = None
