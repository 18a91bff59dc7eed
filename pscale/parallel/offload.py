"""What of a rank lies in a file beside its memory, and how much of it moves in a step: exactly."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pscale.config import Case
from pscale.errors import PlanError
from pscale.nn.offload.chunks import Amounts, even, longest, of_tensors, whole_pages
from pscale.nn.offload.scratch import folder_of
from pscale.parallel import division, optimizer, zero_plan
from pscale.parallel.on_paper import on_paper
from pscale.parallel.replicas import Call


@dataclass(frozen=True, kw_only=True)
class Offloaded:
    """What one rank has in its file, and moves in a step."""

    file_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


def check(case: Case) -> None:
    """Raise PlanError where nothing would be saved."""
    plan, train = case.plan, case.train
    if plan.offload == "none":
        return
    if case.model.kind == "collectives":
        raise PlanError(
            f"model.kind collectives keeps nothing for offload {plan.offload}; offload none works"
        )
    if plan.offloads_activations and (case.model.kind in ("linear", "block") or case.model.layers == 1):
        blocks = "no block" if case.model.kind == "linear" else "one block"
        also = ", or optimizer," if optimizer.state_arrays(train) else ""
        raise PlanError(
            f"offload {plan.offload} would save nothing: of {blocks} nothing is kept while others compute; "
            f"offload none{also} would do"
        )
    if plan.offloads_state and train.optimizer == "adafactor":
        raise PlanError(
            f"offload {plan.offload} would save nothing: adafactor keeps of a matrix a number for each row "
            "and column; offload none, or optimizer adamw, would do"
        )
    if plan.offloads_state and not optimizer.state_arrays(train):
        raise PlanError(
            f"offload {plan.offload} finds nothing: {train.optimizer} without momentum keeps no state; "
            "offload none, or momentum 0.9, would do"
        )


def calls(case: Case, rank: int) -> list[Call]:  # noqa: ARG001
    """Return that nobody else is called."""
    return []


def offloaded(case: Case, rank: int) -> Offloaded:
    """Predict what `rank` has in its file and moves in a step; lamb looks at its state twice."""
    groups = _groups(case, rank) if case.plan.offloads_state else []
    looks = 2 if case.train.optimizer == "lamb" else 1
    moved = sum(amounts.moved_bytes for amounts in groups)
    kept = on_paper(case, rank) if case.plan.offloads_activations else None
    away_bytes = kept.moved_bytes if kept else 0
    return Offloaded(
        file_bytes=sum(amounts.file_bytes for amounts in groups)
        + whole_pages(kept.file_bytes if kept else 0),
        read_bytes=looks * moved + away_bytes,
        written_bytes=moved + away_bytes,
    )


def free_bytes(case: Case) -> int | None:
    """Return what is free in the folder for the file, on this machine; None where it cannot be asked."""
    try:
        return shutil.disk_usage(folder_of(case.plan.offload_folder)).free
    except OSError:
        return None


def resident_bytes(case: Case, rank: int) -> int:
    """Predict the memory of the chunks of state in use, or on their way, and of copies of weights."""
    at_hand_bytes = sum(amounts.resident_bytes for amounts in _groups(case, rank))
    return at_hand_bytes + optimizer.copies_bytes(case, rank)


def _groups(case: Case, rank: int) -> list[Amounts]:
    """Return the chunks of each group of parameters."""
    return [_amounts(case, flats) for flats in _flats(case, rank)]


def _flats(case: Case, rank: int) -> Iterator[list[list[int]]]:
    """Yield of each group its flat memories, as the sizes of what is here of each tensor."""
    for part, owned in zip(division.parts(case, rank), zero_plan.owned(case, rank), strict=True):
        units = [_here([tensor.size for tensor in part.tensors[unit]], mine) for unit, mine in owned.items()]
        yield units if case.plan.zero else [[size for unit in units for size in unit]]


def _here(sizes: Sequence[int], mine: slice) -> list[int]:
    found, start = [], 0
    for size in sizes:
        found.append(max(0, min(start + size, mine.stop) - max(start, mine.start)))
        start += size
    return found


def _amounts(case: Case, flats: Sequence[Sequence[int]]) -> Amounts:
    item = optimizer.state_item_bytes(case)
    sizes = [sum(tensors) for tensors in flats]
    most = longest(sum(sizes), item, case.plan.offload_chunk_bytes)
    if case.train.optimizer == "lamb":
        cuts = of_tensors(flats, most)
        chunks = [sum(tensors[each]) for tensors, slices in zip(flats, cuts, strict=True) for each in slices]
    else:
        chunks = [each.stop - each.start for slices in even(sizes, most) for each in slices]
    return Amounts(sizes=chunks, arrays=optimizer.state_arrays(case.train), item_bytes=item)
