"""Forward and backward through a part of the model, unit by unit, some of it once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pscale.nn.buffers import Array
from pscale.nn.layer import remember
from pscale.nn.offload.activations import ActivationOffloader
from pscale.nn.routing import Tally
from pscale.parallel.recompute import Segment
from pscale.parallel.replicas import Replicas
from pscale.training.build import Stage


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
            mark, taken_over = self.stage.buffers.holdings() if goes else {}, x
            x, cache = self._forgetting(segment, x) if segment.recomputed else self._one(segment.units[0], x)
            kept.append(self.offloader.put(cache, mark, taken_over, x, goes=goes))
        return x, kept

    def backward(self, part: int, dx: Array, kept: list[Any], done: Callable[[int], None]) -> Array | None:
        """Return the gradient of the part's input; `done` is told of every unit that has its own."""
        found: Array | None = dx
        for segment in reversed(self.stage.segments[part]):
            cache = self.offloader.get(kept)
            caches = self._again(segment, cache) if segment.recomputed else [cache]
            for number in reversed(segment.units):
                assert found is not None, "only the first unit ends the backward pass"
                if not segment.recomputed or number != segment.units[-1]:
                    self.replicas.gather(number)
                found = self.stage.units[number].layer.backward(found, caches.pop())
                self.replicas.drop(number)
                done(number)
        return found

    def _one(self, number: int, x: Array, *, again: bool = False) -> tuple[Array, Any]:
        self.replicas.gather(number)
        x, cache = self.stage.units[number].layer.forward(x)
        self.replicas.release(number, again=again)
        return x, cache

    def _forgetting(self, segment: Segment, x: Array) -> tuple[Array, Array]:
        """Return the output of a segment and its input, of all that units keep."""
        buffers, first = self.stage.buffers, x
        mark = buffers.holdings()
        buffers.share(first)
        for number in segment.units:
            x, _ = self._one(number, x)
            buffers.forget_since(mark, x)
        return x, first

    def _again(self, segment: Segment, x: Array) -> list[Any]:
        """Return what the units of a segment keep; the weights of the last stay for its backward."""
        *before, last = segment.units
        caches = []
        with _paused(self.stage.tallies):
            for number in before:
                x, cache = self._one(number, x, again=True)
                caches.append(cache)
            self.replicas.gather(last)
            caches.append(remember(self.stage.units[last].layer, x, self.stage.buffers))
        return caches


@contextmanager
def _paused(tallies: Sequence[Tally]) -> Iterator[None]:
    """Let routers decide again what has been counted."""
    for tally in tallies:
        tally.paused = True
    yield
    for tally in tallies:
        tally.paused = False
