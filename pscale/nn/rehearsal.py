"""A step on paper: what layers take from the pool of activations and give back, without doing anything.

Each class has the name of the layer that it stands for and moves sheets as that one moves arrays; tests hold
the one to the other. Sizes are numbers of elements, of one micro-batch and one rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

INDEX_BYTES, TRUTH_BYTES = 8, 1


@dataclass(eq=False)
class Sheet:
    """An array without memory."""

    size_bytes: int
    holders: int = 1
    under_way: bool = False


class Paper:
    """A pool without memory: the account of `Buffers`, for elements of `item` bytes."""

    def __init__(self, item: int):
        self.item = item
        self.total_bytes = self.exchange_bytes = 0  # as those of `Buffers`
        self._exchanged_bytes = 0
        self._free: Counter[int] = Counter()

    def take(self, elements: int, item: int = 0) -> Sheet:
        """Return a sheet for `elements` of the pool's size or of `item` bytes."""
        return self._take(max(elements, 1) * (item or self.item))

    def take_exchange(self, elements: int) -> Sheet:
        """Return a sheet that is for an exchange alone."""
        return self.begin_exchange(self.take(elements))

    def share(self, sheet: Sheet) -> None:
        """Note one more holder."""
        sheet.holders += 1

    def give(self, *sheets: Sheet) -> None:
        """End one holding of each."""
        for sheet in sheets:
            sheet.holders -= 1
            if not sheet.holders:
                self.end_exchange(sheet)
                self._free[sheet.size_bytes] += 1

    def reuse(self, sheet: Sheet) -> Sheet:
        """Give a sheet for one of its size: itself where nobody else holds it."""
        if sheet.holders == 1:
            return sheet
        sheet.holders -= 1
        return self._take(sheet.size_bytes)

    def begin_exchange(self, sheet: Sheet) -> Sheet:
        """Count a sheet among those of exchanges."""
        sheet.under_way = True
        self._exchanged_bytes += sheet.size_bytes
        self.exchange_bytes = max(self.exchange_bytes, self._exchanged_bytes)
        return sheet

    def end_exchange(self, sheet: Sheet) -> None:
        """Count it no longer."""
        self._exchanged_bytes -= sheet.size_bytes * sheet.under_way
        sheet.under_way = False

    def use(self, elements: int) -> None:
        """Take and give at once."""
        self.give(self.take(elements))

    def _take(self, size_bytes: int) -> Sheet:
        if self._free[size_bytes]:
            self._free[size_bytes] -= 1
        else:
            self.total_bytes += size_bytes
        return Sheet(size_bytes)


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
        y = self.paper.take(self.rows * self.width)
        return y, (x, self.paper.take(self.rows), self.paper.take(self.rows))

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
        y, level, total = paper.take(sizes.output), paper.take(sizes.queries), paper.take(sizes.queries)
        kept = [level]
        if self.scores is not None:
            kept = [paper.take(sizes.sequences * sizes.heads * self.scores), paper.take(sizes.queries)]
            paper.give(level)
        paper.give(total)
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
        sizes, paper = self.sizes, self.paper
        routing = self._routing()
        rows, cache = self.experts.forward(paper.take(sizes.slots * sizes.width))
        y = paper.take(sizes.tokens * sizes.width)
        return y, (x, routing, rows, cache)

    def backward(self, dy: Sheet, cache: Any) -> Sheet:
        """Through the experts, then through the router."""
        sizes, paper = self.sizes, self.paper
        x, routing, rows, inner = cache
        drows = paper.reuse(rows)
        paper.give(dy)
        drows_in = self.experts.backward(drows, inner)
        dlogits = paper.take(sizes.tokens * sizes.experts)
        self.router.add_product(x, dlogits)
        dx = paper.reuse(x)
        paper.give(dlogits, drows_in, *routing)
        return dx

    def _routing(self) -> Sequence[Sheet]:
        sizes, take, choices = self.sizes, self.paper.take, self.sizes.tokens * self.sizes.top_k
        return (
            take(sizes.tokens * sizes.experts),
            take(choices, INDEX_BYTES),
            take(choices),
            take(choices, TRUTH_BYTES),
            take(choices, INDEX_BYTES),
            take(sizes.slots, INDEX_BYTES),
            take(sizes.slots, TRUTH_BYTES),
            take(sizes.sequences * sizes.experts),
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
        self.paper.give(take(self.tokens * self.width), take(table), take(table), rows, dy)


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
        dy = self.paper.reuse(y)
        if self.statistics:
            self.paper.use(self.statistics)
        return dy
