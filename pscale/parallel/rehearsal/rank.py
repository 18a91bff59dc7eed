"""The order of a step, as `worker.trainer` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pscale.mesh.axis import Axis
from pscale.nn import rehearsal as nn
from pscale.nn.buffers import Buffers
from pscale.nn.offload.keeping import Keeping
from pscale.nn.offload.rehearsal import OnPaper
from pscale.nn.paper import Sheet
from pscale.nn.rehearsal import Step
from pscale.parallel import division, pipeline
from pscale.parallel.pipeline import Boundary
from pscale.parallel.recompute import Segment, stage_segments
from pscale.parallel.rehearsal.messages import Edge
from pscale.parallel.rehearsal.units import Units
from pscale.parallel.schedule import Action


class Rank:
    """The rank that has `units`, and what of them is away in a file."""

    def __init__(self, units: Units):
        self.units = units
        self._case, self._rank, self._paper = units.case, units.rank, units.paper
        plan = self._case.plan
        self._stage = pipeline.stage_of(plan, self._rank)
        self._table = pipeline.timetable(plan, self._case.train.micro_batches)
        self._steps: dict[int, Step] = {}
        self._blocks: set[int] = set()
        self.away = OnPaper(self._paper) if plan.offloads_activations else None
        self._keeping: Keeping[Sheet] = Keeping(self.away)

    def step(self) -> None:
        """Do what the trainer does."""
        names = division.units(self._case, self._rank)
        numbers = pipeline.held_units(self._case, self._rank)
        self._steps = {number: self.units.made(name) for number, name in zip(numbers, names, strict=True)}
        self._blocks = {
            number for number, name in zip(numbers, names, strict=True) if name.startswith("block.")
        }
        edge = Edge(self._paper, self._stage)
        boundary = Boundary(
            cast(Axis, edge), self._table, (self.units.stream,), dtype="", buffers=cast(Buffers, edge)
        )
        parts = stage_segments(self._case, self._stage)
        under_way: dict[tuple[int, int], list[Any]] = {}
        boundary.start_step()
        for action in boundary.actions:
            key = action.micro, action.part
            if action.kind == "forward":
                under_way[key] = self._forward(boundary, action, parts[action.part])
            elif action.kind == "weight":
                for multiply in under_way.pop(key):
                    multiply()
            else:
                self._backward(boundary, action, parts[action.part], under_way.pop(key))
                if self.units.later is not None:
                    under_way[key], self.units.later[:] = list(self.units.later), []
        boundary.finish()

    def _forward(self, boundary: Boundary, action: Action, parts: Sequence[Segment]) -> list[Any]:
        x: Any = cast(Any, boundary).receive(action) if boundary.receives(action) else None
        kept = []
        for segment in parts:
            goes = self._keeping.moves and segment.units[0] in self._blocks
            mark, taken_over = self._paper.holdings() if goes else {}, x
            x, cache = self._forgetting(segment, x) if segment.recomputed else self._one(segment.units[0], x)
            kept.append(self._keeping.put(cache, mark, taken_over, x, goes=goes))
        if boundary.sends(action):
            boundary.send(action, x)
        else:
            kept.append(self.units.loss().forward(x))
        return kept

    def _backward(
        self, boundary: Boundary, action: Action, parts: Sequence[Segment], kept: list[Any]
    ) -> None:
        begins = not boundary.receives(action)
        of_loss = kept.pop() if begins else None
        self._keeping.begin(kept)
        dx: Any = of_loss if begins else cast(Any, boundary).receive(action)
        for segment in reversed(parts):
            cache = self._keeping.get(kept)
            caches = self._again(segment, cache) if segment.recomputed else [cache]
            for unit in reversed(segment.units):
                dx = self._steps[unit].backward(dx, caches.pop())
        if dx is not None:
            boundary.send(action, dx)

    def _one(self, unit: int, x: Any) -> tuple[Any, Any]:
        return self._steps[unit].forward(x)

    def _forgetting(self, segment: Segment, x: Sheet) -> tuple[Sheet, Sheet]:
        first, mark = x, self._paper.holdings()
        self._paper.share(first)
        for unit in segment.units:
            x, _ = self._one(unit, x)
            self._paper.forget_since(mark, x)
        return x, first

    def _again(self, segment: Segment, x: Sheet) -> list[Any]:
        *before, last = segment.units
        caches = []
        for unit in before:
            x, cache = self._one(unit, x)
            caches.append(cache)
        return [*caches, nn.remember(self._steps[last], x, self._paper)]
