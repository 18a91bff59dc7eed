"""Layers that multiply, norm, look up and compare."""

from __future__ import annotations

from pscale.nn.paper import Paper, Sheet
from pscale.nn.rehearsal.step import Weight

INDEX_BYTES = 8


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


class Tokens:
    """The rows of `tokens`, of a table of `width`."""

    def __init__(self, paper: Paper, tokens: int, width: int):
        self.paper, self.tokens, self.width = paper, tokens, width

    def forward(self, x: None) -> tuple[Sheet, Sheet]:  # noqa: ARG002
        """Keep which rows."""
        rows = self.paper.take(self.tokens, INDEX_BYTES)
        return self.paper.take(self.tokens * self.width), rows

    def backward(self, dy: Sheet, rows: Sheet) -> None:
        """Add to the table's gradient."""
        self.paper.give(rows, dy)


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
