"""Which part of a case one rank has, in closed form: units, tokens, parameters.

These formulas know nothing of the layers; tests hold the layers to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pscale.config import Case
from pscale.mesh.grid import coordinates, spanned
from pscale.nn import counts
from pscale.nn.param import share
from pscale.nn.routing import has_experts
from pscale.parallel import pipeline
from pscale.parallel.matrix import parameters as matrix_parameters
from pscale.parallel.replicas import TOKENS, Call


@dataclass(frozen=True, kw_only=True)
class Part:
    """Numbers of parameters, by number of the unit, that are summed and cut over the same dims."""

    sync: tuple[str, ...]
    cut: tuple[str, ...]
    units: dict[int, int]

    @property
    def parameters(self) -> int:
        """Parameters of all units."""
        return sum(self.units.values())


def item_bytes(case: Case) -> int:
    """Return the size of a number."""
    return np.dtype(case.model.dtype).itemsize


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
    return _share(case.model.vocabulary, case, rank)


def parts(case: Case, rank: int) -> list[Part]:
    """Return what `rank` holds, sorted as the job sorts its parameters."""
    sizes = case.plan.sizes
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Part] = {}
    for number, name in enumerate(units(case, rank)):
        pieces = _pieces(name, case, rank) if case.plan.matrix.ranks == 1 else _blocks(name, case)
        for sync, cut, size in pieces:
            key = spanned(sizes, sync), spanned(sizes, cut)
            part = found.setdefault(key, Part(sync=key[0], cut=key[1], units={}))
            part.units[number] = part.units.get(number, 0) + size
    return list(found.values())


def parameters(case: Case, rank: int) -> int:
    """Return how many parameters `rank` holds."""
    return sum(part.parameters for part in parts(case, rank))


def _pieces(name: str, case: Case, rank: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], int]]:
    """Yield dims of sync and cut, and number of parameters: of a block 12 h^2 + 7 h are cut, 6 h are not."""
    model, h, columns = case.model, case.model.width, _share(case.model.width, case, rank)
    whole = (*TOKENS, "tp") if case.plan.sp else TOKENS  # sequence parallel: they see a part of the tokens
    match name.partition(".")[0]:
        case "linear":
            yield whole, (), h
        case "embedding":
            by_rows = case.plan.embedding == "row"
            held = vocabulary(case, rank) * h if by_rows else model.vocabulary * columns
            yield TOKENS, ("tp",), held
            yield whole, (), model.sequence * h
        case "block" if with_experts(case, name):
            yield whole, (), 5 * h + h * model.experts
            yield TOKENS, ("tp",), columns * (4 * h + 3)
            experts = counts.expert_parameters(model) // case.plan.ep
            yield tuple(dim for dim in whole if dim != "ep"), ("ep",), experts
        case "block":
            yield whole, (), 6 * h
            yield TOKENS, ("tp",), columns * (12 * h + 7)
        case "head":
            yield whole, (), 2 * h
            yield TOKENS, ("tp",), h * vocabulary(case, rank)


def _blocks(name: str, case: Case) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], int]]:
    """Yield the same where matrices lie in blocks on a grid."""
    for block in matrix_parameters.blocks(name, case):
        yield (*TOKENS, *block.seen), block.cut, block.size


def _share(total: int, case: Case, rank: int) -> int:
    mine = share(total, case.plan.tp, coordinates(case.plan.sizes, rank)["tp"])
    return len(range(total)[mine])
