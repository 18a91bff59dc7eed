"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pscale.nn.paper import Paper, Sheet
from pscale.nn.rehearsal.layers import INDEX_BYTES
from pscale.nn.rehearsal.step import Step, Weight

_TRUTH_BYTES = 1


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Sizes of a mixture: `tokens`, of all `sequences`, with `top_k` choices each; slots of all experts."""

    tokens: int
    sequences: int
    width: int
    experts: int
    top_k: int
    slots: int


class Mixture:
    """Routing to experts and back; its router included."""

    def __init__(self, paper: Paper, sizes: Experts, router: Weight, experts: Step):
        self.paper, self.sizes, self.router, self.experts = paper, sizes, router, experts

    def forward(self, x: Sheet) -> tuple[Sheet, Any]:
        """Keep the input, where tokens go, and what comes of them."""
        cache = self.remember(x)
        return self.paper.take(self.sizes.tokens * self.sizes.width), cache

    def remember(self, x: Sheet) -> Any:
        """Keep the same, without the sum."""
        routing = self._routing()
        rows, cache = self.experts.forward(self.paper.take(self.sizes.slots * self.sizes.width))
        return x, routing, rows, cache

    def backward(self, dy: Sheet, cache: Any) -> Sheet:
        """Through the experts, then through the router."""
        sizes, paper = self.sizes, self.paper
        x, routing, rows, inner = cache
        drows = paper.reuse(rows)
        paper.give(dy)
        drows_in = self.experts.backward(drows, inner)
        dlogits = paper.take(sizes.tokens * sizes.experts, paper.wide)
        self.router.add_product(x, dlogits)
        dx = paper.reuse(x)
        paper.give(dlogits, drows_in, *routing)
        return dx

    def _routing(self) -> Sequence[Sheet]:
        sizes, take, choices = self.sizes, self.paper.take, self.sizes.tokens * self.sizes.top_k
        return (
            take(sizes.tokens * sizes.experts, self.paper.wide),
            take(choices, INDEX_BYTES),
            take(choices, self.paper.wide),
            take(choices, _TRUTH_BYTES),
            take(choices, INDEX_BYTES),
            take(sizes.slots, INDEX_BYTES),
            take(sizes.slots, _TRUTH_BYTES),
            take(sizes.sequences * sizes.experts, self.paper.wide),
        )
