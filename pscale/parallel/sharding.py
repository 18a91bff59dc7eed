"""Which part of a case one rank has, in closed form: units, tokens, parameters.

These formulas know nothing of the layers; tests hold the layers to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial

from pscale.config import Case, Model, Plan
from pscale.config.axes import SETS, TOKEN_AXES
from pscale.mesh.grid import coordinates, place, spanned
from pscale.nn import counts
from pscale.nn.dtypes import BYTES, COMPUTE_BYTES
from pscale.nn.param import share
from pscale.nn.routing import has_experts
from pscale.parallel import pipeline
from pscale.parallel.matrix.grid import Partition, Scheme, scheme_of, share_of
from pscale.parallel.replicas import Call


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """What a rank has of a parameter, `shape`, with the axes of its sync and of its cut.

    `matrices` counts those of a hidden layer that lie side by side in its columns.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    sync: tuple[str, ...]
    cut: tuple[str, ...]
    matrices: int = 0
    tied: bool = False

    @property
    def size(self) -> int:
        """Number of elements here."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Tensors, by number of the unit, that are summed and cut over the same axes."""

    sync: tuple[str, ...]
    cut: tuple[str, ...]
    tied: bool
    tensors: dict[int, list[Tensor]]

    @cached_property
    def units(self) -> dict[int, int]:
        """Numbers of parameters, by number of the unit."""
        return {unit: sum(tensor.size for tensor in tensors) for unit, tensors in self.tensors.items()}

    @property
    def parameters(self) -> int:
        """Parameters of all units."""
        return sum(self.units.values())

    def sharing(self, plan: Plan) -> tuple[str, ...]:
        """Return the axes whose ranks share the units, if the plan shards them."""
        return tuple(axis for axis in self.sync if axis != SETS) if plan.zero else ()


def item_bytes(case: Case) -> int:
    """Return the size of a number."""
    return BYTES[case.model.dtype]


def upcasts(case: Case) -> bool:
    """Tell whether gradients are of more bits than the weights."""
    return case.precision.reduce == "float32" and item_bytes(case) < COMPUTE_BYTES


def gradient_bytes(case: Case) -> int:
    """Return the size of a gradient, at rest and on its way to a sum."""
    return COMPUTE_BYTES if upcasts(case) else item_bytes(case)


def sequences(case: Case) -> int:
    """Return the sequences of a rank in one micro-batch."""
    return case.train.batch // case.plan.batch_parts // case.train.micro_batches


def activation_bytes(case: Case) -> int:
    """Return the size of the activations between two layers, before tensor ranks cut them: b s h numbers."""
    return sequences(case) * (case.model.sequence // case.plan.cp) * case.model.width * item_bytes(case)


def units(case: Case, rank: int) -> list[str]:
    """Return the names of the units of `rank`, in forward order."""
    names = [name for name, _ in counts.unit_parameters(case.model)]
    return [names[number] for number in pipeline.held_units(case, rank)]


def with_experts(case: Case, name: str) -> bool:
    """Tell whether the unit `name` is a block that has experts."""
    kind, _, index = name.partition(".")
    return kind == "block" and has_experts(case.model, int(index))


def per_step(case: Case, calls: Iterable[Call]) -> list[Call]:
    """Return the calls of a step from those of a micro-batch, without what is never called."""
    micro_batches = case.train.micro_batches
    return [replace(call, count=call.count * micro_batches) for call in calls if call.count]


def vocabulary(case: Case, rank: int) -> int:
    """Return the tokens of the vocabulary that `rank` has."""
    mine = share(case.model.vocabulary, case.plan.tp, place(case.plan.sizes, rank, "tp"))
    return len(range(case.model.vocabulary)[mine])


def tensor_groups(case: Case, rank: int) -> Sequence[TensorGroup]:
    """Return what `rank` holds, sorted as the job sorts its parameters; not to be changed."""
    return _tensor_groups(case.model, case.plan, rank)


@lru_cache(maxsize=16)  # every strategy asks the same of a case
def _tensor_groups(model: Model, plan: Plan, rank: int) -> Sequence[TensorGroup]:
    case, sizes = Case(suite="", label="", ranks=plan.ranks, model=model, plan=plan), plan.sizes
    found: dict[tuple[tuple[str, ...], tuple[str, ...], bool], TensorGroup] = {}
    span = cache(partial(spanned, sizes))  # axes are few, tensors very many
    for number, name in enumerate(units(case, rank)):
        for tensor in tensors(name, case, rank):
            sync, cut = span(tensor.sync), span(tensor.cut)
            new = TensorGroup(sync=sync, cut=cut, tied=tensor.tied, tensors={})
            part = found.setdefault((sync, cut, tensor.tied), new)
            part.tensors.setdefault(number, []).append(tensor)
    return tuple(found.values())


def parameters(case: Case, rank: int) -> int:
    """Return how many parameters `rank` holds."""
    return sum(part.parameters for part in tensor_groups(case, rank))


def tensors(name: str, case: Case, rank: int) -> Iterator[Tensor]:
    """Yield the tensors of the unit `name`, in the order of its layers."""
    model, h, sizes, scheme = case.model, case.model.width, case.plan.sizes, _scheme(case.plan)
    wide, parts = model.mlp_parts * model.mlp_features, model.mlp_parts
    outside, inside = Partition(columns=scheme.outside.columns), Partition(columns=scheme.inside.columns)
    at = coordinates(sizes, rank)

    def tensor(partition: Partition, layer: Partition, *whole: int, matrices: int = 0) -> Tensor:
        over = (partition.rows, partition.columns)[-len(whole) :]
        mine = (share_of(total, axes, sizes, at) for total, axes in zip(whole, over, strict=True))
        seen = (axis for axis in layer.rows if axis not in partition.axes)  # split its sequences, and not it
        return Tensor(
            whole=whole,
            shape=tuple(part.stop - part.start for part in mine),
            sync=(*TOKEN_AXES, *seen),
            cut=partition.axes,
            matrices=matrices,
        )

    def vectors(count: int) -> Iterator[Tensor]:
        return (tensor(outside, scheme.outside, h) for _ in range(count))

    norm = 1 + counts.has_shifts(model)  # gain and bias

    match name.partition(".")[0]:
        case "linear":
            yield tensor(Partition(), scheme.outside, h, 1)
        case "embedding":
            table = tensor(scheme.table, scheme.outside, model.vocabulary, h)
            yield replace(table, tied=model.tied)
            if model.positions == "learned":
                yield tensor(scheme.positions, scheme.outside, model.sequence, h)
        case "block":
            yield from vectors(norm)
            kinds = model.queries + 2
            yield tensor(scheme.into, scheme.outside, h, kinds * model.key_width, matrices=kinds)
            if model.bias:
                yield tensor(inside, scheme.inside, kinds * model.key_width)
            yield tensor(scheme.out_of, scheme.inside, h, h, matrices=1)
            yield from vectors(model.bias + norm)
            if with_experts(case, name):
                yield tensor(Partition(), scheme.outside, h, model.experts, matrices=1)
                yield from _of_experts(case, scheme.outside)
                return
            yield tensor(scheme.into, scheme.outside, h, wide, matrices=parts)
            if model.bias:
                yield tensor(inside, scheme.inside, wide)
            yield tensor(scheme.out_of, scheme.inside, model.mlp_features, h, matrices=1)
            yield from vectors(int(model.bias))
        case "head":
            yield from vectors(norm)
            if model.tied:
                yield replace(tensor(scheme.table, scheme.outside, model.vocabulary, h), tied=True)
            else:
                yield tensor(scheme.into, scheme.outside, h, model.vocabulary)
        case "collectives":
            return
        case _:
            raise AssertionError(f"no unit is called {name}")


def _scheme(plan: Plan) -> Scheme:
    """Return where everything lies: on a grid, or on tensor ranks, which are one of a single axis."""
    if plan.matrix.ranks > 1:
        return scheme_of(plan)
    rows, columns = Partition(rows=("tp",)), Partition(columns=("tp",))
    return Scheme(
        outside=rows if plan.sp else Partition(),
        inside=columns,
        into=columns,
        out_of=rows,
        table=rows if plan.embedding == "row" else columns,
    )


def _of_experts(case: Case, layer: Partition) -> Iterator[Tensor]:
    """Yield the tensors of all experts of a block, of which ranks of the expert axis have a share."""
    model, experts = case.model, case.model.experts
    h, wide = model.width, model.mlp_parts * model.mlp_features
    weights = ((h, wide), model.mlp_parts), ((wide,), 0), ((model.mlp_features, h), 1), ((h,), 0)
    for shape, matrices in (each for each in weights if each[1] or model.bias):
        yield Tensor(
            whole=(experts, *shape),
            shape=(experts // case.plan.ep, *shape),
            sync=tuple(axis for axis in (*TOKEN_AXES, *layer.rows) if axis != "ep"),
            cut=("ep",),
            matrices=matrices,
        )
