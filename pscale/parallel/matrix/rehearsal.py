"""A step on a grid on paper: what the pool of activations of one rank will hold, exactly."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Case
from pscale.nn import rehearsal as nn
from pscale.nn.paper import Paper, Sheet
from pscale.nn.rehearsal import Chain, Step, Weight
from pscale.parallel.matrix.grid import Spread, count, scheme_of
from pscale.parallel.matrix.plan import multiplication
from pscale.parallel.matrix.rehearsal_products import PRODUCTS, Product
from pscale.parallel.rehearsal.exchanges import Moved
from pscale.parallel.rehearsal.units import Units
from pscale.parallel.replicas import TOKENS


class MatrixLinear:
    """A shared product."""

    def __init__(self, product: Product, bias: Weight | None):
        self.product, self.bias = product, bias

    def forward(self, x: Sheet) -> tuple[Sheet, Sheet]:
        """Keep the input."""
        return self.product.multiply(x), x

    def remember(self, x: Sheet) -> Sheet:
        """Keep the input."""
        return x

    def backward(self, dy: Sheet, x: Sheet) -> Sheet:
        """Differentiate."""
        if self.bias:
            self.bias.add_product()
        return self.product.differentiate(dy, x)


class ColumnNorm:
    """Two numbers for each of `rows`, of which this rank has `width` columns and `size` ranks have some."""

    def __init__(self, paper: Paper, rows: int, width: int, size: int):
        self.paper, self.rows, self.width, self.size = paper, rows, width, size

    def forward(self, x: Sheet) -> tuple[Sheet, tuple[Sheet, Sheet]]:
        """Keep the input and the numbers."""
        paper = self.paper
        y, statistics = paper.take(self.rows * self.width), paper.take(2 * self.rows, paper.wide)
        paper.give(paper.take_exchange(2 * self.size * self.rows, paper.wide))
        return y, (x, statistics)

    def backward(self, dy: Sheet, cache: tuple[Sheet, Sheet]) -> Sheet:
        """Put the gradient in the input's place."""
        x, statistics = cache
        dx = self.paper.reuse(x)
        self.paper.give(self.paper.take_exchange(2 * self.rows, self.paper.wide), statistics, dy)
        return dx


class MatrixUnits(Units):
    """The units of a rank of the grid, as `worker.matrix_units` has them."""

    def __init__(self, case: Case, rank: int, paper: Paper):
        super().__init__(case, rank, paper)
        self.scheme = scheme_of(case.plan)
        outside, inside, model = self.scheme.outside, self.scheme.inside, case.model
        self.cut, self.features = self._ranks(inside.columns), model.width // self._ranks(outside.columns)
        self.vocabulary = model.vocabulary // self.cut
        self.all_rows = self.sequences * model.sequence
        self.rows, self.rows_outside = (self.all_rows // self._ranks(each.rows) for each in (inside, outside))
        self.sequences //= self._ranks(inside.rows)

    def _embedding(self) -> Step:
        scheme, paper, features = self.scheme, self.paper, self.features
        looked_up = self.all_rows // self._ranks(scheme.looked_up)
        mine = self.rows_outside * features
        leave = [Moved(paper, mine, looked_up * features)] if looked_up > self.rows_outside else []
        tokens = nn.Tokens(paper, looked_up, features)
        return Chain(tokens, *leave, nn.Positions(paper, self.case.model.sequence, features))

    def _norm(self) -> Step:
        size = self._ranks(self.scheme.outside.columns)
        if size == 1:
            return nn.LayerNorm(self.paper, self.rows_outside, self.features)
        return ColumnNorm(self.paper, self.rows_outside, self.features, size)

    def _columns(self, columns: int, *, bias: bool = False) -> Step:
        sync = (*TOKENS, *self.scheme.inside.rows)
        inner = Weight(self.paper, columns, adds=self._adds(sync), later=None) if bias else None
        return self._product(self.scheme.into, self.width, columns * self.cut, inner)

    def _rows(self, inputs: int) -> Sequence[Step]:
        return (self._product(self.scheme.out_of, inputs * self.cut, self.width, None),)

    def _product(self, lying: Spread, inputs: int, outputs: int, bias: Weight | None) -> Step:
        one = multiplication(self.case, self.rank, lying, inputs, outputs)
        weight = Weight(self.paper, one.b, adds=self._adds(TOKENS), later=None)
        return MatrixLinear(PRODUCTS[self.case.plan.matrix.algorithm](self.paper, one, weight), bias)

    @property
    def _whole(self) -> tuple[str, ...]:
        return (*TOKENS, *self.scheme.outside.rows)

    def _ranks(self, dims: Sequence[str]) -> int:
        return count(dims, self.case.plan.sizes)
