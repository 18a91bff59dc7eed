"""From a model to this rank's stage: which units it has, and what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pscale.config import Model, Plan
from pscale.mesh.axis import Mesh
from pscale.nn.buffers import Buffers
from pscale.nn.layer import Layer
from pscale.nn.loss import Loss
from pscale.nn.param import Deferred
from pscale.nn.routing import Tally
from pscale.parallel.pipeline import stage_units, timetable
from pscale.parallel.recompute import Segment, segments
from pscale.training.units import Units


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of the model whose gradients become final together."""

    name: str
    layer: Layer


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one rank trains: units in forward order, with the memory they share.

    `parts` says which of `units` make up each part of the model that the rank holds, `segments` which of
    these backward computes again together, `deferred` where products for gradients of matrices are deferred.
    """

    units: Sequence[Unit]
    parts: Mapping[int, range]
    segments: Mapping[int, Sequence[Segment]]
    loss: Loss
    buffers: Buffers
    deferred: Deferred
    tallies: Sequence[Tally] = ()  # of the routers, if there are any


def build(model: Model, plan: Plan, mesh: Mesh, sequences: int = 1) -> Stage:
    """Return this rank's stage of `model`, its parameters still without memory.

    The first unit takes the data (`gpt`: tokens (B, T); `block`: (B, T, C); `linear`: (B, width)); its
    backward returns None. Targets are tokens (B, T) for `gpt`, else of the output's shape. `sequences` are
    those of a step on all ranks, over which the auxiliary loss of routers is a mean.
    """
    buffers = Buffers()
    made = _kind(plan)(model, plan, mesh, buffers, sequences)
    makers = list(made.makers().items())
    units: list[Unit] = []
    parts: dict[int, range] = {}
    of_parts: dict[int, Sequence[Segment]] = {}
    for part, numbers in stage_units(model, plan, mesh.axis("pp").rank).items():
        parts[part] = range(len(units), len(units) + len(numbers))
        for number in numbers:
            name, make = makers[number]
            units.append(Unit(name=name, layer=make(number)))
        names = [makers[number][0] for number in numbers]
        of_parts[part] = segments(plan, names, parts[part].start)
    return Stage(
        units=tuple(units),
        parts=parts,
        segments=of_parts,
        loss=made.loss(),
        buffers=buffers,
        deferred=_deferred(plan, units),
        tallies=made.tallies,
    )


def _kind(plan: Plan) -> type[Units]:
    if plan.matrix.ranks == 1:
        return Units
    from pscale.training.grid_units import GridUnits  # noqa: PLC0415 - a dozen modules that few plans use

    return GridUnits


def _deferred(plan: Plan, units: Sequence[Unit]) -> Deferred:
    """Put off the products of matrices if the plan says so; sums for biases and gains cost too little."""
    deferred = Deferred()
    if timetable(plan, micro_batches=1).splits:
        for unit in units:
            for param in unit.layer.params:
                if len(param.shape) > 1:
                    param.deferred = deferred
    return deferred
