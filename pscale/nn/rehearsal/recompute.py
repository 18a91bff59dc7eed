"""What is computed again, and how much of it."""

from __future__ import annotations

from typing import Any

from pscale.nn.paper import Paper, Sheet
from pscale.nn.rehearsal.experts import Mixture
from pscale.nn.rehearsal.layers import Linear
from pscale.nn.rehearsal.step import Chain, Forgetful, Residual, Step


def remember(step: Step, x: Any, paper: Paper) -> Any:
    """Take and give as `layer.remember` does."""
    if isinstance(step, Chain):
        last = max(place for place, each in enumerate(step.steps) if not isinstance(each, Forgetful))
        caches = []
        for each in step.steps[:last]:
            x, cache = each.forward(x)
            caches.append(cache)
        return [*caches, remember(step.steps[last], x, paper), *[None] * (len(step.steps) - last - 1)]
    if isinstance(step, Residual):
        return remember(step.branch, x, paper)
    if isinstance(step, Linear):
        return x
    if isinstance(step, Mixture):
        return step.remember(x)
    y, cache = step.forward(x)
    paper.give(y)
    return cache


class Recomputed:
    """A layer of which its input alone is kept."""

    def __init__(self, paper: Paper, step: Step):
        self.paper, self.step = paper, step

    def forward(self, x: Sheet) -> tuple[Sheet, Sheet]:
        """Keep the input."""
        mark = self.paper.holdings()
        self.paper.share(x)
        y, _ = self.step.forward(x)
        self.paper.forget_since(mark, y)
        return y, x

    def backward(self, dy: Sheet, x: Sheet) -> Any:
        """Do forward again."""
        y, cache = self.step.forward(x)
        self.paper.give(y)
        return self.step.backward(dy, cache)
