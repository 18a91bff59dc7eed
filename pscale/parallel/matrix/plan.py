"""What a grid asks of a model, and the calls that it costs, in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from pscale.config import Case
from pscale.config.axes import WITHIN_LAYERS
from pscale.config.choices import MatrixAlgorithm
from pscale.errors import PlanError
from pscale.mesh.grid import coordinates
from pscale.nn.dtypes import compute_bytes
from pscale.parallel import sharding, suggestions
from pscale.parallel.matrix import agarwal, axonn, cannon, summa
from pscale.parallel.matrix.grid import Exchanged, Multiplication, Partition, batch_divisor, count, scheme_of
from pscale.parallel.replicas import Call
from pscale.parallel.suggestions import multiples


class Exchanges(Protocol):
    """What the module of an algorithm knows of its calls."""

    def forward(self, one: Multiplication) -> list[Exchanged]:
        """Return those of a product."""
        ...

    def backward(self, one: Multiplication) -> list[Exchanged]:
        """Return those of its two gradients."""
        ...


_ALGORITHMS: dict[MatrixAlgorithm, Exchanges] = {
    "axonn": axonn,
    "agarwal": agarwal,
    "summa": summa,
    "cannon": cannon,
}


def check(case: Case) -> None:
    """Raise PlanError for what does not go with a grid, and for numbers that do not divide by it."""
    if case.plan.matrix.ranks == 1:
        return
    _check_plan(case)
    _check_grid(case)
    _check_sizes(case)


def _check_plan(case: Case) -> None:
    """Refuse what cuts the same layers in another way."""
    plan, kind, grid = case.plan, case.model.kind, f"matrix {case.plan.matrix.product}"
    if kind == "linear":
        raise PlanError(
            f"{grid} cuts the layers of a transformer; kind linear has none, use dp {plan.matrix.ranks}"
        )
    if kind == "moe":
        raise PlanError(f"{grid} cuts whole MLPs, and kind moe has experts instead; kind gpt would work")
    if case.model.tied:
        raise PlanError(
            f"{grid} has the blocks of the table on other ranks than those of the head; tied false would work"
        )
    for axis in WITHIN_LAYERS:
        if (degree := plan.degrees[axis]) > 1:
            raise PlanError(
                f"{axis} {degree} and {grid} would both cut the same layers; "
                f"{axis} 1 would work, with dp {plan.dp * degree}"
            )
    if plan.sp:
        raise PlanError(
            f"sp needs tensor ranks, which {grid} does not have; sp false works, and algorithm agarwal cuts "
            "what axonn repeats"
        )
    if plan.pp > 1 and plan.schedule == "zero-bubble":
        raise PlanError(
            f"schedule zero-bubble delays the products of weight gradients, which {grid} communicates too; "
            "schedule 1f1b would work"
        )


def _check_grid(case: Case) -> None:
    """Refuse a grid on which the algorithm does not work."""
    grid = case.plan.matrix
    if grid.algorithm in ("cannon", "summa") and grid.tz > 1:
        raise PlanError(
            f"algorithm {grid.algorithm} has two axes, tz {grid.tz} is for axonn and agarwal; "
            f"tz 1 would work, with dp {case.plan.dp * grid.tz}"
        )
    if grid.algorithm == "cannon" and grid.tx != grid.ty:
        sides = dict.fromkeys((max(min(grid.tx, grid.ty), 2), max(grid.tx, grid.ty)))
        room = case.plan.dp * grid.ranks
        fits = [f"tx {size} and ty {size} with dp rest" for size in sides if room % size**2 == 0]
        raise PlanError(
            f"algorithm cannon needs a square, and tx {grid.tx} is not ty {grid.ty}; "
            f"{', or '.join([*fits, 'algorithm summa'])} would work"
        )
    panels = math.lcm(grid.tx, grid.ty)
    for name in ("width", "mlp_width") if grid.algorithm == "summa" else ():
        if (value := getattr(case.model, name)) % panels:
            raise PlanError(
                f"{name} {value} does not divide by the {panels} panels of summa on tx {grid.tx} and "
                f"ty {grid.ty}; {_fitting(case, name)} would"
            )


def _check_sizes(case: Case) -> None:
    """Refuse sizes of the model or the batch that ranks cannot share evenly."""
    for name, axes in _cuts(case):
        value = getattr(case.model, name)
        if value % count(axes, case.plan.sizes):
            raise PlanError(f"{name} {value} {_split(case, axes)}; {_fitting(case, name)} would")
    scheme, sequences = scheme_of(case.plan), sharding.sequences(case)
    for axes in (scheme.outside.rows, scheme.inside.rows):
        if sequences % count(axes, case.plan.sizes):
            batch = case.train.batch // (case.plan.batch_parts if case.scaling == "weak" else 1)
            fits = multiples(sequences, batch_divisor(case.plan), batch // sequences)
            raise PlanError(
                f"batch {batch} gives a micro-batch {sequences} sequences, which "
                f"{_split(case, axes, verb='do')}; batch {fits} would"
            )


def _cuts(case: Case) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the sizes of the model that ranks share evenly, each with axes that cut it."""
    scheme = scheme_of(case.plan)
    yield "heads", scheme.inside.columns
    yield "kv_heads", scheme.inside.columns  # 0 divides, as heads do
    for partition in (scheme.into, scheme.out_of):
        yield "width", partition.rows
        yield "width", partition.columns
    yield "mlp_width", scheme.into.columns  # 0 divides, as four times the width does
    yield "mlp_width", scheme.out_of.rows
    if case.model.kind == "gpt":
        yield "vocabulary", scheme.into.columns
        yield "vocabulary", scheme.table.rows


def _parts(case: Case) -> dict[str, int]:
    """Return what sizes of the model have to divide by, all cuts of each together."""
    grid = case.plan.matrix
    parts = dict.fromkeys(
        ("width", "mlp_width"),
        math.lcm(grid.tx, grid.ty) if grid.algorithm == "summa" else 1,  # its panels
    )
    for name, axes in _cuts(case):
        parts[name] = math.lcm(parts.get(name, 1), count(axes, case.plan.sizes))
    return parts


def _split(case: Case, axes: Sequence[str], verb: str = "does") -> str:
    """Say by what something does not divide."""
    sizes = case.plan.sizes
    by = [f"{axis} {sizes[axis]}" for axis in axes if sizes[axis] > 1]
    total = f" = {count(axes, sizes)}" if len(by) > 1 else ""
    return f"{verb} not divide by {' × '.join(by)}{total} of matrix {case.plan.matrix.product}"


def _fitting(case: Case, name: str) -> str:
    """Return the nearest sizes of the model that divide, as a choice; heads still divide the width."""
    model, parts = case.model, _parts(case)
    if name == "heads":
        return suggestions.heads(model, parts["heads"], of_width=parts["width"])
    divisor = math.lcm(parts["width"], model.heads) if name == "width" else parts[name]
    return f"{name} {multiples(getattr(model, name), divisor)}"


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls of products, norms, embedding and loss that `rank` makes in one step."""
    if case.plan.matrix.ranks == 1:
        return []
    found = (call for name in sharding.units(case, rank) for call in _exchanged(name, case, rank))
    return sharding.per_step(case, _made(case, found))


def forward_calls(case: Case, rank: int, *, stops: bool) -> list[Call]:
    """Predict the calls of a block's forward for one micro-batch, which `stops` before its last product."""
    algorithm, products = _ALGORITHMS[case.plan.matrix.algorithm], _products("block", case, rank)
    found = [_normalised(case, 2)[0]]
    for one in products[:-1] if stops else products:
        found += algorithm.forward(one)
    return _made(case, found)


def _made(case: Case, found: Iterable[Exchanged]) -> list[Call]:
    item, sizes = sharding.item_bytes(case), case.plan.sizes
    of_wide = compute_bytes(case.model.dtype)
    return [
        Call(
            axis=one.axis,
            verb=one.verb,
            sent_bytes=one.elements * (of_wide if one.wide else item),
            count=one.times,
            wide=one.wide,
        )
        for one in found
        if sizes[one.axis] > 1
    ]


def multiplication(case: Case, rank: int, weight: Partition, inputs: int, outputs: int) -> Multiplication:
    """Return what `rank` has of a product of activations with weights of `inputs` x `outputs`."""
    sizes, scheme = case.plan.sizes, scheme_of(case.plan)
    before, after = (scheme.outside, scheme.inside)[:: 1 if weight == scheme.into else -1]
    rows = sharding.sequences(case) * case.model.sequence // sizes[before.rows[0]]
    (contraction, *_), (output,) = weight.rows, weight.columns
    return Multiplication(
        a=rows * (inputs // sizes[before.columns[0]]),
        b=(inputs // sizes[contraction]) * (outputs // sizes[output]),
        c=rows * (outputs // sizes[after.columns[0]]),
        contraction=contraction,
        output=output,
        depth="tz",
        sizes=sizes,
        place=coordinates(sizes, rank),
    )


def _exchanged(name: str, case: Case, rank: int) -> Iterator[Exchanged]:
    """Yield the calls of one unit and micro-batch."""
    algorithm = _ALGORITHMS[case.plan.matrix.algorithm]
    n = sharding.sequences(case) * case.model.sequence
    if name == "embedding":
        yield from _looked_up(case, n)
        return
    yield from _normalised(case, norms=1 if name == "head" else 2)
    for one in _products(name, case, rank):
        yield from algorithm.forward(one)
        yield from algorithm.backward(one)
    if name == "head":
        inside = scheme_of(case.plan).inside
        tokens = n // count(inside.rows, case.plan.sizes)
        yield Exchanged(inside.columns[0], "all_reduce", tokens, 3, wide=True)


def _normalised(case: Case, norms: int) -> list[Exchanged]:
    """Return the calls of norms, forward and backward."""
    outside, n = scheme_of(case.plan).outside, sharding.sequences(case) * case.model.sequence
    numbers = 2 if case.model.norm == "layernorm" else 1
    statistics = numbers * n // count(outside.rows, case.plan.sizes)
    (columns,) = outside.columns
    return [
        Exchanged(columns, "all_gather", statistics, norms, wide=True),
        Exchanged(columns, "all_reduce", statistics, norms, wide=True),
    ]


def _products(name: str, case: Case, rank: int) -> list[Multiplication]:
    """Return the products of a block or of the head."""
    scheme, model, h = scheme_of(case.plan), case.model, case.model.width
    if name == "head":
        return [multiplication(case, rank, scheme.into, h, model.vocabulary)]
    return [
        multiplication(case, rank, scheme.into, h, h + 2 * model.key_width),
        multiplication(case, rank, scheme.out_of, h, h),
        multiplication(case, rank, scheme.into, h, model.mlp_parts * model.mlp_features),
        multiplication(case, rank, scheme.out_of, model.mlp_features, h),
    ]


def _looked_up(case: Case, n: int) -> Iterator[Exchanged]:
    """Yield the calls that add up what ranks find in their parts of the table."""
    scheme, sizes = scheme_of(case.plan), case.plan.sizes
    (axis,) = scheme.table.rows
    columns = case.model.width // count(scheme.outside.columns, sizes)
    partial, mine = (n // count(rows, sizes) * columns for rows in (scheme.looked_up, scheme.outside.rows))
    if partial == mine:
        yield Exchanged(axis, "all_reduce", mine)
    else:
        yield Exchanged(axis, "reduce_scatter", partial)
        yield Exchanged(axis, "all_gather", mine)
