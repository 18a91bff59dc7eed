"""A mixture of experts: every token goes through a few of many MLPs, multiplied expert by expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels import scratch
from pscale.nn.kernels.tiles import Copies, ones, rows_of, tile_shape, tiles
from pscale.nn.layer import Layer
from pscale.nn.param import Param
from pscale.nn.routing import Router, Routing


class ExpertLinear:
    """x[e] @ weight[e] + bias[e] for every expert e: (experts, rows, inputs) to (experts, rows, outputs)."""

    def __init__(self, weight: Param, bias: Param | None = None, *, buffers: Buffers):
        self.weight, self.bias, self.buffers = weight, bias, buffers
        self.params: Sequence[Param] = (weight,) if bias is None else (weight, bias)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the products; keeps the input."""
        y = self.buffers.take((*x.shape[:-1], self.weight.shape[-1]), x.dtype)
        kernels.current().multiply(x, self.weight.data, y)
        if self.bias is not None:
            for rows, bias in zip(y, self.bias.data, strict=True):
                for tile in tiles(rows):
                    rows[tile] += bias
        return y, x

    def backward(self, dy: Array, x: Array) -> Array:
        """Add to the gradients of weights and biases."""
        self.weight.add_product(x.swapaxes(1, 2), dy)
        if self.bias is not None:
            sums = np.empty(self.bias.shape, dy.dtype)
            kernels.current().multiply(ones(dy.shape[1], dy.dtype), dy, sums)
            self.bias.add_grad(sums)
        shape = x.shape
        del x  # its memory is that of the result, unless somebody else keeps it
        dx = self.buffers.take(shape, dy.dtype)
        kernels.current().multiply(dy, self.weight.data.swapaxes(1, 2), dx)
        return dx


@dataclass(frozen=True)
class Cache:
    """What backward needs; `rows` are the outputs of the experts."""

    x: Array
    routing: Routing
    rows: Array
    experts: Any


class Mixture:
    """Sum over a token's choices of gate times expert: (B, T, C) to (B, T, C).

    `experts` maps the slots of all experts, (experts, sequences room, C), to their outputs; that empty
    slots are computed too, from zeros, makes all sizes constant. Nobody reads what comes of them.
    """

    def __init__(self, router: Router, experts: Layer, *, buffers: Buffers):
        self.router, self.experts, self.buffers = router, experts, buffers
        self.params: Sequence[Param] = (router.weight, *experts.params)

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """Route, let the experts work, bring their outputs home; 0 for a token that has been dropped."""
        cache = self.remember(x)
        routing, y = cache.routing, self.buffers.take(x.shape, x.dtype)
        self._from_slots(cache.rows, routing, routing.gates * routing.kept, rows_of(y), add=False)
        return y, cache

    def remember(self, x: Array) -> Cache:
        """Return what backward needs, the experts' outputs before they are added up."""
        routing = self.router.forward(x)
        rows, cache = self.experts.forward(self._to_slots(x, routing))
        return Cache(x, routing, rows, cache)

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Send the gradient to the experts and, through the gates, to the router."""
        routing = cache.routing
        dgates = self._gate(dy, cache.rows, routing)
        drows = self.experts.backward(cache.rows, cache.experts)
        assert drows is not None
        dlogits = self.router.backward(dgates, routing, cache.x)
        del cache  # the memory of its input is that of the result, unless somebody else keeps it
        dx = self.buffers.take(dy.shape, dy.dtype)
        kernels.current().multiply(dlogits, self.router.weight.data.T, rows_of(dx))
        self._from_slots(drows, routing, routing.kept.astype(dx.dtype), rows_of(dx), add=True)
        return dx

    def _to_slots(self, x: Array, routing: Routing) -> Array:
        """Copy every token to its slots; empty ones are 0."""
        experts, C = self.router.experts, x.shape[-1]
        slots = self.buffers.take((experts, len(routing.tokens) // experts, C), x.dtype)
        rows, slot_rows = rows_of(x), rows_of(slots)
        filled = routing.filled.astype(x.dtype)
        for tile in tiles(slot_rows):
            part = slot_rows[tile]
            np.take(rows, routing.tokens[tile], axis=0, out=part, mode="clip")
            part *= filled[tile, None]
        return slots

    def _from_slots(self, slots: Array, routing: Routing, weights: Array, out: Array, *, add: bool) -> None:
        """Write to, or add to, each token's row in `out` the weighted sum of its slots."""
        slot_rows = rows_of(slots)
        work = scratch().take(tile_shape(out), out.dtype)
        for tile in tiles(out):
            for choice in range(self.router.top_k):
                direct = choice == 0 and not add
                part = out[tile] if direct else work[: len(out[tile])]
                np.take(slot_rows, routing.slots[tile, choice], axis=0, out=part, mode="clip")
                part *= weights[tile, choice, None]
                if not direct:
                    out[tile] += part

    def _gate(self, dy: Array, rows: Array, routing: Routing) -> Array:
        """Return the gradient of the gates; put that of the experts' outputs in the place of these."""
        dy_rows, row_rows = rows_of(dy), rows_of(rows)
        gates = routing.slot_gates()
        slopes = np.empty_like(gates)
        work = scratch().take(tile_shape(row_rows), dy.dtype)
        for tile in tiles(row_rows):
            part = work[: len(row_rows[tile])]
            np.take(dy_rows, routing.tokens[tile], axis=0, out=part, mode="clip")
            with Copies() as copies:
                np.vecdot(copies.read(part), copies.read(row_rows[tile]), out=slopes[tile])
            np.multiply(part, gates[tile, None], out=row_rows[tile])
        return slopes[routing.slots] * routing.kept
