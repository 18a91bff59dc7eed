"""Which part of a case one rank has, in closed form: units, tokens, parameters.

These formulas know nothing of the layers; tests hold the layers to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pscale.config import Case
from pscale.mesh.grid import spanned
from pscale.nn import counts
from pscale.nn.routing import has_experts
from pscale.parallel.replicas import TOKENS


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


def units(case: Case, rank: int) -> list[str]:  # noqa: ARG001 - every rank has all
    """Return the names of the units of `rank`, in forward order."""
    return [name for name, _ in counts.unit_parameters(case.model)]


def with_experts(case: Case, name: str) -> bool:
    """Tell whether the unit `name` is a block that has experts."""
    kind, _, index = name.partition(".")
    return kind == "block" and has_experts(case.model, int(index))


def parts(case: Case, rank: int) -> list[Part]:
    """Return what `rank` holds, sorted as the job sorts its parameters."""
    sizes, totals = case.plan.sizes, dict(counts.unit_parameters(case.model))
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Part] = {}
    for number, name in enumerate(units(case, rank)):
        for sync, cut, size in _pieces(name, totals[name], case):
            key = spanned(sizes, sync), spanned(sizes, cut)
            part = found.setdefault(key, Part(sync=key[0], cut=key[1], units={}))
            part.units[number] = part.units.get(number, 0) + size
    return list(found.values())


def parameters(case: Case, rank: int) -> int:
    """Return how many parameters `rank` holds."""
    return sum(part.parameters for part in parts(case, rank))


def _pieces(name: str, total: int, case: Case) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], int]]:
    """Yield dims of sync and cut, and number of parameters."""
    experts = 0
    if with_experts(case, name):
        experts = counts.expert_parameters(case.model)
        yield tuple(dim for dim in TOKENS if dim != "ep"), ("ep",), experts // case.plan.ep
    yield TOKENS, (), total - experts
