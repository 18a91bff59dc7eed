"""Ranks that share sequences tell each other which experts their tokens choose.

A token's place in the queue of an expert is the number of those before it in the sequence, wherever they
are. Ranks have runs of consecutive tokens, so numbers of choices, one for each run, sequence and expert, are
all that others need to know.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.config import Case, Model, Plan
from pscale.mesh.axis import Array, Axis
from pscale.mesh.grid import axis_name, spanned
from pscale.parallel import division
from pscale.parallel.layout import layout_of, runs_of
from pscale.parallel.replicas import Call

_NUMBER = np.dtype(np.int64)


class Shared:
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

    def tell(self, counts: Array) -> tuple[Array, Array]:
        """Gather the numbers of all ranks; those of runs that a rank does not have are 0."""
        top_k, runs, sequences, experts = counts.shape
        sent = np.zeros((top_k, self._most, sequences, experts), _NUMBER)
        sent[:, :runs] = counts
        every = np.empty((self._axis.size * top_k, *sent.shape[1:]), _NUMBER)
        self._axis.all_gather(sent, every)
        of_ranks = every.reshape(self._axis.size, *sent.shape)
        ahead = np.tensordot(self._before, of_ranks.sum(1), axes=2)
        return ahead, of_ranks[:, 0].sum((0, 1))


def runs_of_everyone(model: Model, plan: Plan) -> list[list[slice]]:
    """Return the runs of every rank that shares a sequence, in the order of the axis."""
    slices, layout = plan.tp if plan.sp else 1, layout_of(model, plan)
    return [runs_of(layout.runs(rank), slices, part) for rank in range(plan.cp) for part in range(slices)]


def dims(plan: Plan) -> tuple[str, ...]:
    """Return the dims of the ranks that share a sequence."""
    return ("cp", "tp") if plan.sp else ("cp",)


def call(case: Case, mixtures: int) -> Call:
    """Predict the news of choices of a micro-batch."""
    model, plan = case.model, case.plan
    runs = max(len(runs) for runs in runs_of_everyone(model, plan))
    numbers = model.top_k * runs * division.sequences(case) * model.experts
    axis = axis_name(spanned(plan.sizes, dims(plan)))
    return Call(axis=axis, verb="all_gather", sent_bytes=numbers * _NUMBER.itemsize, count=mixtures)
