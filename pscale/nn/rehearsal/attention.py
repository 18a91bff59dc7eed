"""Causal attention."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.nn.paper import Paper, Sheet


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Sizes of an attention: `sequences` of `tokens`, `heads` of `width` features."""

    sequences: int
    tokens: int
    heads: int
    width: int

    @property
    def output(self) -> int:
        """Elements of the output, and of q, k and v each."""
        return self.sequences * self.tokens * self.heads * self.width

    @property
    def queries(self) -> int:
        """Rows of all heads."""
        return self.sequences * self.tokens * self.heads


class Attention:
    """Causal attention of whole sequences."""

    def __init__(self, paper: Paper, sizes: Heads, scores: int | None):
        self.paper, self.sizes, self.scores = paper, sizes, scores

    def forward(self, qkv: Sheet) -> tuple[Sheet, tuple[Sheet, ...]]:
        """Keep q, k and v, the output, exponentials and their factors, or levels alone."""
        paper, sizes = self.paper, self.sizes
        y, level, total = (paper.take(size, paper.wide) for size in (sizes.output, *[sizes.queries] * 2))
        kept = [level]
        if self.scores is not None:
            scores = paper.take(sizes.sequences * sizes.heads * self.scores)
            kept = [scores, paper.take(sizes.queries, paper.wide)]
            paper.give(level)
        paper.give(total)
        y = paper.round(y)
        paper.share(y)
        return y, (qkv, y, *kept)

    def backward(self, dy: Sheet, cache: tuple[Sheet, ...]) -> Sheet:
        """Write the gradients of q, k and v."""
        dqkv = self.paper.take(3 * self.sizes.output)
        self.paper.give(dy, *cache)
        return dqkv
