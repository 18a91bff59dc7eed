"""A step on paper: what layers take from the pool of activations and give back, without doing anything.

Each class has the name of the layer that it stands for and moves sheets as that one moves arrays; tests hold
the one to the other. Sizes are numbers of elements, of one micro-batch and one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pscale.nn.paper import Paper, Sheet

INDEX_BYTES, TRUTH_BYTES = 8, 1


class Step(Protocol):
    """What stands for a layer; data that come from outside of the pool are None."""

    def forward(self, x: Any) -> tuple[Sheet, Any]:
        """Take and give as forward does."""
        ...

    def backward(self, dy: Sheet, cache: Any) -> Any:
        """Take and give as backward does."""
        ...


class Weight:
    """A gradient: the first product of a step is written in place, others need memory; some are put off."""

    def __init__(self, paper: Paper, size: int, *, adds: bool = True, later: list[Callable[[], None]] | None):
        self._paper, self._size, self._adds, self._later = paper, size, adds, later
        self._fresh = True

    def add_product(self, *factors: Sheet) -> None:
        """Multiply now or, where there is a list for it, later."""
        if self._later is None:
            self._multiply()
            return
        for factor in factors:
            self._paper.share(factor)

        def multiply() -> None:
            self._multiply()
            self._paper.give(*factors)

        self._later.append(multiply)

    def _multiply(self) -> None:
        if not self._fresh and self._adds:
            self._paper.use(self._size)
        self._fresh = False


class Forgetful:
    """A layer that keeps nothing."""


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


class Chain:
    """Layers one after another."""

    def __init__(self, *steps: Step):
        self.steps = steps

    def forward(self, x: Any) -> tuple[Any, list[Any]]:
        """In order."""
        caches = []
        for step in self.steps:
            x, cache = step.forward(x)
            caches.append(cache)
        return x, caches

    def backward(self, dy: Sheet, caches: list[Any]) -> Any:
        """In reverse."""
        dx: Any = dy
        for step in reversed(self.steps):
            dx = step.backward(dx, caches.pop())
        return dx


class Residual:
    """A branch and what goes past it."""

    def __init__(self, paper: Paper, bias: Weight | None, *branch: Step):
        self.paper, self.bias, self.branch = paper, bias, Chain(*branch)

    def forward(self, x: Sheet) -> tuple[Sheet, Any]:
        """Add in place of the branch's output."""
        self.paper.share(x)
        branch, caches = self.branch.forward(x)
        y = self.paper.reuse(branch)
        self.paper.give(x)
        return y, caches

    def backward(self, dy: Sheet, caches: Any) -> Sheet:
        """Send the gradient both ways."""
        if self.bias:
            self.bias.add_product()
        self.paper.share(dy)
        dx = self.paper.reuse(self.branch.backward(dy, caches))
        self.paper.give(dy)
        return dx


class First:
    """A layer of data: `size` elements are copied in."""

    def __init__(self, paper: Paper, size: int, step: Step):
        self.paper, self.size, self.step = paper, size, step

    def forward(self, x: None) -> tuple[Sheet, Any]:  # noqa: ARG002
        """Copy."""
        return self.step.forward(self.paper.take(self.size))

    def backward(self, dy: Sheet, cache: Any) -> None:
        """Drop the gradient of the data."""
        self.paper.give(self.step.backward(dy, cache))


class Linear:
    """A product, also of several experts at once."""

    def __init__(self, paper: Paper, outputs: int, weight: Weight, bias: Weight | None = None):
        self.paper, self.outputs, self.weight, self.bias = paper, outputs, weight, bias

    def forward(self, x: Sheet) -> tuple[Sheet, Sheet]:
        """Keep the input."""
        return self.paper.take(self.outputs), x

    def backward(self, dy: Sheet, x: Sheet) -> Sheet:
        """Put the gradient in the input's place."""
        self.weight.add_product(x, dy)
        if self.bias:
            self.bias.add_product()
        dx = self.paper.reuse(x)
        self.paper.give(dy)
        return dx


class LayerNorm:
    """Two numbers for each of `rows`."""

    def __init__(self, paper: Paper, rows: int, width: int):
        self.paper, self.rows, self.width = paper, rows, width

    def forward(self, x: Sheet) -> tuple[Sheet, tuple[Sheet, ...]]:
        """Keep the input and the numbers."""
        paper = self.paper
        y = paper.take(self.rows * self.width)
        return y, (x, paper.take(self.rows, paper.wide), paper.take(self.rows, paper.wide))

    def backward(self, dy: Sheet, cache: tuple[Sheet, ...]) -> Sheet:
        """Put the gradient in the input's place."""
        x, *numbers = cache
        dx = self.paper.reuse(x)
        self.paper.give(*numbers, dy)
        return dx


class BiasGelu:
    """The activation of `rows`, of each expert if there are several."""

    def __init__(self, paper: Paper, rows: int, width: int, experts: int = 1):
        self.paper, self.rows, self.width, self.experts = paper, rows, width, experts

    def forward(self, x: Sheet) -> tuple[Sheet, Sheet]:
        """Put the slope in the input's place."""
        y = self.paper.take(self.experts * self.rows * self.width)
        slope = self.paper.reuse(x)
        return y, slope

    def backward(self, dy: Sheet, slope: Sheet) -> Sheet:
        """Multiply in place."""
        dx = self.paper.reuse(dy)
        self.paper.give(slope)
        return dx


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
            take(choices, TRUTH_BYTES),
            take(choices, INDEX_BYTES),
            take(sizes.slots, INDEX_BYTES),
            take(sizes.slots, TRUTH_BYTES),
            take(sizes.sequences * sizes.experts, self.paper.wide),
        )


class Tokens:
    """The rows of `tokens`, of a table of `rows` and `width`."""

    def __init__(self, paper: Paper, tokens: int, rows: int, width: int):
        self.paper, self.tokens, self.rows, self.width = paper, tokens, rows, width

    def forward(self, x: None) -> tuple[Sheet, Sheet]:  # noqa: ARG002
        """Keep which rows."""
        rows = self.paper.take(self.tokens, INDEX_BYTES)
        return self.paper.take(self.tokens * self.width), rows

    def backward(self, dy: Sheet, rows: Sheet) -> None:
        """Sum up in arrays of the table's size."""
        table, take = self.rows * self.width, self.paper.take
        by_row, before, sums = take(self.tokens * self.width), take(table), take(table, self.paper.wide)
        self.paper.give(by_row, sums, before, rows, dy)


class Positions:
    """The sum over sequences of what `tokens` of each want."""

    def __init__(self, paper: Paper, tokens: int, width: int):
        self.paper, self.size = paper, tokens * width

    def forward(self, x: Sheet) -> tuple[Sheet, None]:
        """Add in place."""
        return self.paper.reuse(x), None

    def backward(self, dy: Sheet, cache: None) -> Sheet:  # noqa: ARG002
        """Sum up."""
        self.paper.use(self.size)
        return dy


class Loss:
    """A gradient in place of the outputs; `statistics` are what tensor ranks exchange of all tokens."""

    def __init__(self, paper: Paper, statistics: int = 0):
        self.paper, self.statistics = paper, statistics

    def forward(self, y: Sheet) -> Sheet:
        """Return what backward begins with."""
        dy = self.paper.reuse(self.paper.widen(y))
        if self.statistics:
            self.paper.use(self.statistics, self.paper.wide)
        return self.paper.round(dy)
