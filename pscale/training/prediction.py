"""What a case will cost on one rank, before a process starts: parameters, FLOPs, calls, memory."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import lru_cache

from pscale.config import Case, Data, Model, Plan, Precision, Train
from pscale.config.axes import UNEVEN_AXES
from pscale.mesh.grid import coordinates, spanned
from pscale.nn import counts
from pscale.nn.offload.scratch import folder_of
from pscale.parallel import recompute, saved_state
from pscale.parallel.recompute import executed_flops


@dataclass(frozen=True, kw_only=True)
class Offloaded:
    """What one rank has in its file, and moves in a step."""

    file_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Exact counts for one rank and step.

    `memory_bytes` is by kind, as the job lays it out. Of its activations, `kept_bytes` lie between forward
    and backward; the rest is for gradients on their way and scratch. What is `offloaded` is in none of them.
    """

    rank: int
    parameters: int  # all ranks
    model_flops: int  # all ranks
    executed_flops: int  # all ranks
    recomputed_flops: int  # of these: done again in backward, to keep less
    memory_bytes: dict[str, int]
    kept_bytes: int
    offloaded: Offloaded

    @property
    def total_bytes(self) -> int:
        """Memory of all kinds."""
        return sum(self.memory_bytes.values())


def predict(case: Case, rank: int = 0) -> Prediction:
    """Count what `rank` computes, sends and holds; remembered by what that depends on."""
    return _predict(case.model, case.data, case.train, case.plan, case.precision, rank=rank)


@lru_cache(maxsize=1024)
def _predict(
    model: Model, data: Data, train: Train, plan: Plan, precision: Precision, *, rank: int
) -> Prediction:
    from pscale.training.dry_run import pool_use  # noqa: PLC0415 - what is remembered needs none

    case = Case(
        suite="",
        label="",
        ranks=plan.ranks,
        model=model,
        data=data,
        train=train,
        plan=plan,
        precision=precision,
    )
    return Prediction(
        rank=rank,
        parameters=counts.parameters(case.model),
        model_flops=counts.model_flops(case.model, case.train.batch),
        executed_flops=executed_flops(case),
        recomputed_flops=recompute.flops(case),
        memory_bytes=memory_bytes(case, rank),
        kept_bytes=pool_use(case, rank).kept_bytes,
        offloaded=offloaded(case, rank),
    )


def memory_bytes(case: Case, rank: int) -> dict[str, int]:
    """Predict the memory of `rank` by kind.

    Activations: the pool in which they, their gradients and scratch lie. Exchange: what is arranged, leaves
    or arrives, in that pool and beside it.
    """
    from pscale.training.dry_run import pool_use, scratch_bytes, state_use  # noqa: PLC0415

    state, pool = state_use(case, rank).memory_bytes, pool_use(case, rank)
    return {
        **state,
        "activations": pool.total_bytes - pool.exchange_bytes,
        "exchange": state["exchange"] + pool.exchange_bytes + scratch_bytes(case, rank),
    }


def fullest_rank(case: Case) -> int:
    """Return the rank that needs the most memory.

    Where parameters or tokens do not divide, the first rank of an axis has more of them; stages of a pipeline
    and places in a sequence differ in what they keep, and those on a square in what passes through them.
    """
    places = [coordinates(case.plan.sizes, rank) for rank in range(case.ranks)]
    uneven = spanned(case.plan.sizes, UNEVEN_AXES)
    candidates = [
        rank
        for rank, place in enumerate(places)
        if not any(at for axis, at in place.items() if axis not in uneven)
    ]
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda rank: (predict(case, rank).total_bytes, -rank))


def offloaded(case: Case, rank: int) -> Offloaded:
    """Predict what `rank` has in its file and moves in a step."""
    if case.plan.offload == "none":
        return Offloaded()
    from pscale.training.dry_run import pool_use, state_use  # noqa: PLC0415

    state, pool = state_use(case, rank), pool_use(case, rank)
    return Offloaded(
        file_bytes=state.file_bytes + pool.file_bytes,
        read_bytes=state.read_bytes + pool.moved_bytes,
        written_bytes=state.written_bytes + pool.moved_bytes,
    )


def prefetched_bytes(case: Case, rank: int) -> int:
    """Predict what `rank` reads of its samples in a step ahead of their use: the first and last stage do."""
    stage = coordinates(case.plan.sizes, rank).get("pp", 0)
    if not case.data.prefetch or 0 < stage < case.plan.pp - 1:
        return 0
    return case.train.batch // case.plan.batch_parts * (case.model.sequence + 1)


def saved_bytes(case: Case, rank: int) -> int:
    """Predict what `rank` writes of a saved state."""
    from pscale.training.dry_run import dry_trainer  # noqa: PLC0415

    tensors = saved_state.owned(dry_trainer(case, rank).replicas)
    return sum(tensor.memory.nbytes for tensor in tensors)


def free_bytes(case: Case) -> int | None:
    """Return what is free in the folder for the file, on this machine; None where it cannot be asked."""
    try:
        return shutil.disk_usage(folder_of(case.plan.offload_folder)).free
    except OSError:
        return None
