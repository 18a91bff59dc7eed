"""The stage of one rank: which units it has, what they share, and the way forward and back through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pscale.config import Model, Plan
from pscale.mesh.axis import Mesh
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import Draws
from pscale.nn.layer import Layer, remember
from pscale.nn.loss import Loss
from pscale.nn.offload.activations import ActivationOffloader
from pscale.nn.routing import RouterStats
from pscale.parallel.pipeline import stage_units, timetable
from pscale.parallel.recompute import Segment, segments
from pscale.parallel.zero import Replicas
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
    deferred: list[Callable[[], None]]
    draws: Draws
    routers: Sequence[RouterStats] = ()


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
        draws=made.draws,
        routers=made.routers,
    )


def _kind(plan: Plan) -> type[Units]:
    if plan.matrix.ranks == 1:
        return Units
    from pscale.training.grid_units import GridUnits  # noqa: PLC0415 - a dozen modules that few plans use

    return GridUnits


def _deferred(plan: Plan, units: Sequence[Unit]) -> list[Callable[[], None]]:
    """Put off the products of matrices if the plan says so; sums for biases and gains cost too little."""
    deferred: list[Callable[[], None]] = []
    if timetable(plan, micro_batches=1).splits:
        for unit in units:
            for param in unit.layer.params:
                if len(param.shape) > 1:
                    param.deferred = deferred
    return deferred


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The way through the units of a stage, whose weights are gathered for each use."""

    stage: Stage
    replicas: Replicas
    offloader: ActivationOffloader

    def forward(self, part: int, x: Array) -> tuple[Array, list[Any]]:
        """Return the output of a part, and for each of its segments what backward needs."""
        kept: list[Any] = []
        for segment in self.stage.segments[part]:
            goes = self.offloader.moves and self.stage.units[segment.units[0]].name.startswith("block.")
            x, cache = self._forgetting(segment, x) if segment.recomputed else self._one(segment.units[0], x)
            kept.append(self.offloader.put(cache, x, goes=goes))
        return x, kept

    def backward(self, part: int, dy: Array, kept: list[Any], done: Callable[[int], None]) -> Array | None:
        """Return the gradient of the part's input; `done` is told of every unit that has its own."""
        flow: list[Any] = [dy]  # from which a unit takes what it alone is to hold
        del dy
        for segment in reversed(self.stage.segments[part]):
            cache = self.offloader.get(kept)
            caches = self._again(segment, cache) if segment.recomputed else [cache]
            for number in reversed(segment.units):
                if not segment.recomputed or number != segment.units[-1]:
                    self.replicas.gather(number)
                flow.append(self.stage.units[number].layer.backward(flow.pop(), caches.pop()))
                self.replicas.drop(number)
                done(number)
        dx: Array | None = flow.pop()
        return dx

    def _one(self, number: int, x: Array, *, again: bool = False) -> tuple[Array, Any]:
        self.replicas.gather(number)
        x, cache = self.stage.units[number].layer.forward(x)
        self.replicas.release(number, again=again)
        return x, cache

    def _forgetting(self, segment: Segment, x: Array) -> tuple[Array, Array]:
        """Return the output of a segment and its input, of all that units keep."""
        first = x
        for number in segment.units:
            x = self._one(number, x)[0]
        return x, first

    def _again(self, segment: Segment, x: Array) -> list[Any]:
        """Return what the units of a segment keep; the weights of the last stay for its backward."""
        *before, last = segment.units
        caches = []
        with paused(*self.stage.routers):
            for number in before:
                x, cache = self._one(number, x, again=True)
                caches.append(cache)
            self.replicas.gather(last)
            caches.append(remember(self.stage.units[last].layer, x))
        return caches


@contextmanager
def paused(*pausing: RouterStats | Draws) -> Iterator[None]:
    """Let routers decide again what has been counted, or nothing be dropped."""
    for each in pausing:
        each.paused = True
    yield
    for each in pausing:
        each.paused = False
