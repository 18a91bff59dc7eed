"""Every plan that a model and a number of ranks allow, with its micro-batches; and leaner forms of one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_args

from pscale.config import Case, Matrix, Plan, Train
from pscale.config.axes import GRID_AXES, PLAN_AXES
from pscale.config.choices import Context, MatrixAlgorithm, Schedule
from pscale.nn.dtypes import dtype_of
from pscale.parallel.constraints import divisors
from pscale.parallel.strategies import TABLE

Fields = dict[str, Any]  # of a plan


def plans(case: Case) -> Iterator[Case]:
    """Yield the work of a case on its ranks by every plan that can run, each with its micro-batches.

    A pipeline has every number of them that its batch can have, another plan one. What is no matter of
    dividing the work stays as the case has it.
    """
    for plan, variants in _plans(case.plan, case.model.layers, case.ranks):
        if any(_running(case, plan)):  # what shards or cuts sequences besides, needs no less
            for fields in variants:
                yield from _running(case, replace(plan, **fields))


def _running(case: Case, plan: Plan) -> Iterator[Case]:
    cases = (_with(case, plan, micro_batches) for micro_batches in _micro_batches(case, plan))
    return filter(_runs, cases)


def leaner(case: Case) -> Iterator[Case]:
    """Yield forms of a case that need less memory and no less time: smaller micro-batches, or checkpoints.

    Not those of a pipeline with more micro-batches, which `plans` has.
    """
    if case.plan.pp == 1:
        more = [each for each in _divisors_of_batch(case, case.plan) if each > case.train.micro_batches][:1]
        found = [_with(case, case.plan, each) for each in more]
    if case.plan.pp > 1 or not found:
        stronger = {"none": "selective", "selective": "full"}.get(case.plan.checkpoint)
        plan = replace(case.plan, checkpoint=stronger or case.plan.checkpoint)
        found = [_with(case, plan, case.train.micro_batches)] if stronger else []
    yield from filter(_runs, found)


def least_bytes(case: Case, alone: Mapping[str, int]) -> float:
    """Return what the fullest rank holds at least, by kinds of memory that one rank `alone` would need.

    An even share of the model state, as far as the plan shards it; the inputs of the layers of a stage, of
    micro-batches on their way through the first, and logits in the last.
    """
    plan, model = case.plan, case.model
    if plan.offload != "none":
        return 0.0
    replicas, owners = plan.dp * plan.cp, (plan.shard or plan.dp) * plan.cp
    split = case.ranks // replicas
    shards = [owners if plan.zero >= level else 1 for level in (3, 2, 1)]
    kinds = ("parameters", "gradients", "optimizer")
    state = sum(alone[kind] / split / shard for kind, shard in zip(kinds, shards, strict=True))
    tokens = case.train.batch // plan.batch_parts // case.train.micro_batches * model.sequence
    inputs = tokens / plan.sequence_parts * model.width * (model.layers // plan.pp)
    logits = tokens / plan.cp * model.vocabulary / (split / plan.pp) if model.kind in ("gpt", "moe") else 0.0
    on_the_way = min(plan.pp, case.train.micro_batches)
    return state + dtype_of(model.dtype).itemsize * max(inputs * on_the_way, inputs + logits)


def _with(case: Case, plan: Plan, micro_batches: int) -> Case:
    return replace(case, plan=plan, train=_cut(case.train, micro_batches))


@lru_cache(maxsize=256)
def _cut(train: Train, micro_batches: int) -> Train:
    """Return a training in so many micro-batches; the same one for all of thousands of plans."""
    return replace(train, micro_batches=micro_batches)


def _runs(case: Case) -> bool:
    return TABLE.clash(case) is None


def _micro_batches(case: Case, plan: Plan) -> list[int]:
    return [each for each in _divisors_of_batch(case, plan) if each > 1] if plan.pp > 1 else [1]


def _divisors_of_batch(case: Case, plan: Plan) -> list[int]:
    """Return into how many micro-batches a replica's part of the batch can be cut."""
    sequences, left = divmod(case.train.batch, plan.batch_parts)
    return [] if left else divisors(sequences)


def _plans(given: Plan, layers: int, ranks: int) -> Iterator[tuple[Plan, list[Fields]]]:
    """Yield plans that shard nothing, each with the fields of those that do, itself among them."""
    for sizes in _products(ranks, len(PLAN_AXES + GRID_AXES)):
        degrees: Fields = dict(zip(PLAN_AXES, sizes, strict=False))
        if degrees["pp"] > layers:  # most of them, refused at once
            continue
        grid = dict(zip(GRID_AXES, sizes[len(PLAN_AXES) :], strict=True))
        sequence: list[Fields] = [{"sp": False}, {"sp": True}] if degrees["tp"] > 1 else [{}]
        variants = [sharded | cut for sharded in _sharded(degrees["dp"]) for cut in sequence]
        options: tuple[list[Fields], ...] = (
            _contexts(degrees["cp"]),
            _schedules(degrees["pp"], layers),
            _grids(grid),
        )
        for chosen in itertools.product(*options):
            fields = {name: value for each in chosen for name, value in each.items()}
            yield replace(given, **{**degrees, **fields, **variants[0]}), variants


def _products(product: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (product,)
        return
    for first in divisors(product):
        for rest in _products(product // first, count - 1):
            yield (first, *rest)


def _sharded(dp: int) -> list[Fields]:
    if dp == 1:
        return [{"zero": 0, "shard": 0}]
    sets = [0, *(size for size in divisors(dp, 2) if size < dp)]
    return [
        {"zero": 0, "shard": 0},
        *({"zero": zero, "shard": shard} for zero in (1, 2, 3) for shard in sets),
    ]


def _contexts(cp: int) -> list[Fields]:
    if cp == 1:
        return [{"ulysses": 0}]
    groups = [size for size in divisors(cp, 2) if size < cp]
    return [
        {"context": form, "ulysses": size}
        for form in get_args(Context)
        for size in (groups if form == "unified" else [0])
    ]


def _schedules(pp: int, layers: int) -> list[Fields]:
    if pp == 1:
        return [{"virtual_stages": 1}]
    parts = [count for count in divisors(layers // pp, 2) if layers % pp == 0]
    return [
        {"schedule": schedule, "virtual_stages": count}
        for schedule in get_args(Schedule)
        for count in (parts if schedule == "interleaved" else [1])
    ]


def _grids(sizes: dict[str, int]) -> list[Fields]:
    if all(size == 1 for size in sizes.values()):
        return [{"matrix": Matrix()}]
    return [{"matrix": Matrix(**sizes, algorithm=name)} for name in get_args(MatrixAlgorithm)]
