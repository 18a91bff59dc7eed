"""What a grid asks of a model, and the calls that it costs, in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

from pscale.config import Case
from pscale.config.choices import MatrixAlgorithm
from pscale.mesh.grid import coordinates
from pscale.nn.dtypes import compute_bytes
from pscale.parallel import sharding
from pscale.parallel.matrix import agarwal, axonn, cannon, summa
from pscale.parallel.matrix.grid import Exchanged, Multiplication, Partition, count, scheme_of
from pscale.parallel.replicas import Call

# Each module has `forward` and `backward`, the calls of a product and of its two gradients.
_ALGORITHMS: dict[MatrixAlgorithm, ModuleType] = {
    "axonn": axonn,
    "agarwal": agarwal,
    "summa": summa,
    "cannon": cannon,
}


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
