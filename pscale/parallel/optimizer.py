"""What optimizers that look at whole tensors exchange, and what any keeps, before a process starts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pscale.config import Case, Train
from pscale.errors import PlanError
from pscale.mesh.grid import axis_name
from pscale.nn.masters import MASTER, needs_masters
from pscale.parallel import division, zero_plan
from pscale.parallel.division import Tensor
from pscale.parallel.replicas import SETS, Call

_SUM_BYTES = 8  # sums of squares are in float64
_STATES = {"adam": 2, "adamw": 2, "lamb": 2}  # arrays of the parameters' size that an optimizer keeps


def check(case: Case) -> None:
    """Raise PlanError if the learning rate would never be what was asked for."""
    train = case.train
    total = train.warmup + train.steps
    if train.lr_warmup >= total:
        raise PlanError(
            f"lr_warmup {train.lr_warmup} leaves none of the {total} steps (warmup {train.warmup} + steps "
            f"{train.steps}) at the full rate; lr_warmup {total - 1} or less would"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the sums over tensors that ranks share: over shards in flat memory, and over parts of a cut.

    lamb: two numbers a tensor. adafactor: one a tensor, twice; the first time with the sums of rows and of
    columns, over the parts of a cut of those that it divides.
    """
    if case.train.optimizer not in ("lamb", "adafactor"):
        return []
    return [call for part in division.parts(case, rank) for call in _sums(case, part)]


def _sums(case: Case, part: division.Part) -> Iterator[Call]:
    tensors = [tensor for unit in part.tensors.values() for tensor in unit]
    shards = tuple(dim for dim in part.sync if dim != SETS) if case.plan.zero else ()
    for dims, of_matrices in ((shards, _vectors(tensors)), (part.cut, _vectors(tensors, partial=True))):
        if not dims:
            continue
        if case.train.optimizer == "lamb":
            numbers = [2 * len(tensors)]
        else:
            numbers = [len(tensors) + of_matrices, len(tensors)]
        for number in numbers:
            yield Call(axis=axis_name(dims), verb="all_reduce", sent_bytes=number * _SUM_BYTES, wide=True)


def _vectors(tensors: Sequence[Tensor], *, partial: bool = False) -> int:
    """Return the length of rows and columns of all matrices here; `partial`, of those that a cut divides.

    What is divided is kept for the whole matrix, also where rows are cut and columns too.
    """
    found = 0
    for tensor in tensors:
        if len(tensor.shape) > 1:
            *outer, rows, columns = tensor.shape
            for length, whole, divided in (
                (rows, tensor.whole[-2], columns != tensor.whole[-1]),
                (columns, tensor.whole[-1], rows != tensor.whole[-2]),
            ):
                if divided or not partial:
                    found += math.prod(outer) * (whole if divided else length)
    return found


def state_bytes(case: Case, rank: int) -> int:
    """Predict what the optimizer of `rank` keeps, with the copies of weights that have too few bits."""
    train, item, copies = case.train, state_item_bytes(case), copies_bytes(case, rank)
    if train.optimizer == "adafactor":
        return copies + _factored_bytes(case, rank, item)
    return copies + zero_plan.model_state(case, rank)["updated"] * item * state_arrays(train)


def copies_bytes(case: Case, rank: int) -> int:
    """Predict the copies of weights that have too few bits."""
    updated = zero_plan.model_state(case, rank)["updated"]
    return updated * MASTER.itemsize if needs_masters(division.item_bytes(case)) else 0


def state_item_bytes(case: Case) -> int:
    """Return the size of a number of the state."""
    return max(division.item_bytes(case), MASTER.itemsize)


def state_arrays(train: Train) -> int:
    """Return how many arrays of the parameters' size an optimizer other than adafactor keeps."""
    return _STATES.get(train.optimizer, 1 if train.momentum else 0)


def _factored_bytes(case: Case, rank: int, item: int) -> int:
    """Return the bytes of rows and columns of matrices, whole, and of what is here of vectors."""
    parts, total = division.parts(case, rank), 0
    for part, owned in zip(parts, zero_plan.owned(case, rank), strict=True):
        for unit, tensors in part.tensors.items():
            total += _vectors(tensors) * _SUM_BYTES
            start = 0
            for tensor in tensors:
                stop = start + tensor.size
                if len(tensor.shape) == 1:
                    total += max(0, min(stop, owned[unit].stop) - max(start, owned[unit].start)) * item
                start = stop
    return total
