"""The units of a model whose products are shared by the ranks of a grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from pscale.config import Model, Plan
from pscale.config.axes import GRID_AXES, TOKEN_AXES
from pscale.mesh.axis import Array, Axis, Mesh
from pscale.nn.attention import ScoreDropout
from pscale.nn.buffers import Buffers
from pscale.nn.common_layers import Dropout, Tokens
from pscale.nn.layer import First, Layer
from pscale.nn.loss import CrossEntropy, Loss, MeanSquare
from pscale.nn.param import Draw, Param, normal
from pscale.parallel import sequence, tensor
from pscale.parallel.matrix.grid import Partition, count, cut, scheme_of, share_of
from pscale.parallel.matrix.layers import ColumnNorm, MatrixLinear, make_product
from pscale.parallel.sequence import SlicedInput, SlicedTargets
from pscale.parallel.tensor import ParallelCrossEntropy
from pscale.training.parameters import DEVIATION, Parameters
from pscale.training.units import Units


@dataclass(frozen=True, kw_only=True)
class GridParameters(Parameters):
    """Makes parameters that lie in blocks on the grid."""

    def norm(self, name: str, size: int, buffers: Buffers) -> Layer:
        """Return a norm of rows whose columns may lie on several ranks."""
        axis = self.mesh.axis(*scheme_of(self.plan).outside.columns)
        if axis.size == 1:
            return super().norm(name, size, buffers)
        return ColumnNorm(*self._of_norm(name, size), axis, centred=self.centred, buffers=buffers)

    def make(
        self,
        name: str,
        shape: tuple[int, ...],
        draw: Draw,
        *,
        decay: bool = False,
        split: int | None = None,
        groups: int = 1,
    ) -> Param:
        """Make a parameter: a matrix leads into a pair (`split` 1) or out of it, a vector lies in or out."""
        scheme = scheme_of(self.plan)
        if len(shape) == 1:
            partition = scheme.outside if split is None else scheme.inside
            return self.lying(name, shape, draw, partition, partition.rows, decay=decay, groups=groups)
        partition, rows = (scheme.into, scheme.outside.rows) if split else (scheme.out_of, scheme.inside.rows)
        return self.lying(name, shape, draw, partition, rows, decay=decay, groups=groups)

    def lying(
        self,
        name: str,
        shape: tuple[int, ...],
        draw: Draw,
        partition: Partition,
        seen: tuple[str, ...],
        *,
        decay: bool = False,
        groups: int = 1,
    ) -> Param:
        """Make a parameter that lies as `partition` says, in a layer that sees sequences cut over `seen`."""
        part, mine = cut(shape, partition, self.mesh, groups=groups)
        sync = (*TOKEN_AXES, *(axis for axis in seen if axis not in part.axes))
        return Param(name, mine, layer=self.unit, draw=draw, sync=sync, decay=decay, cut=part)


class GridUnits(Units):
    """Makes the units of a model as a rank of the grid has them."""

    def __init__(self, model: Model, plan: Plan, mesh: Mesh, buffers: Buffers, sequences: int):
        super().__init__(model, plan, mesh, buffers, sequences)
        self.scheme = scheme_of(plan)

    def only_block(self, number: int) -> Layer:
        """Return a block that takes data."""
        return SlicedInput(First(self.block(number), self.buffers), self._outside)

    def _looked_up(self) -> tuple[Layer, Layer]:
        """Return what finds rows of the table that this rank has a block of, and adds them up."""
        scheme = self.scheme
        first = self._share(self.model.vocabulary, scheme.table.rows).start
        tokens = Tokens(self._table(), first=first, buffers=self.buffers)
        repeated = scheme.looked_up == scheme.outside.rows
        leave = tensor.ReduceFromTensorAxis if repeated else sequence.ReduceScatterToSlices
        axis = self.mesh.axis(*scheme.table.rows)
        here = SlicedInput(tokens, partial(self._part, rows=scheme.looked_up))
        return here, leave(axis, buffers=self.buffers)

    def loss(self) -> Loss:
        """Return the loss of this rank's outputs; where several compute the same, each reports its share."""
        scheme, buffers = self.scheme, self.buffers
        if self.model.kind == "block":
            mean = MeanSquare(ranks=count(scheme.outside.columns, self.mesh.sizes))
            return tensor.ReplicatedLoss(
                SlicedTargets(mean, self._outside), self._repeating(scheme.outside.axes)
            )
        axis = self.mesh.axis(*scheme.inside.columns)
        first = self._share(self.model.vocabulary, scheme.inside.columns).start
        entropy: Loss = CrossEntropy()
        if axis.size > 1:
            entropy = ParallelCrossEntropy(axis, first=first, buffers=buffers)
        mine = SlicedTargets(entropy, partial(self._part, rows=scheme.inside.rows))
        return tensor.ReplicatedLoss(mine, self._repeating(scheme.inside.rows))

    def _dropout(self, number: int, site: int) -> Dropout | None:
        """Return what drops features of this rank's columns and sequences."""
        dropout, outside = super()._dropout(number, site), self.scheme.outside
        if dropout is not None:
            dropout.column = self._share(self.model.width, outside.columns).start
            dropout.offset = self._share(count(outside.rows, self.mesh.sizes), outside.rows).start
        return dropout

    def _score_dropout(self, number: int) -> ScoreDropout | None:
        """Return what drops probabilities of this rank's heads and sequences."""
        dropout, inside = super()._score_dropout(number), self.scheme.inside
        if dropout is None:
            return None
        first = self._share(self.model.key_heads, inside.columns).start
        offset = self._share(count(inside.rows, self.mesh.sizes), inside.rows).start
        return replace(dropout, first=first, offset=offset)

    def _repeating(self, axes: tuple[str, ...]) -> Axis:
        """Return the ranks of the grid that compute the same where those along `axes` do not."""
        return self.mesh.axis(*(axis for axis in GRID_AXES if axis not in axes))

    def _parameters(self, number: int) -> GridParameters:
        return GridParameters(model=self.model, plan=self.plan, mesh=self.mesh, unit=number)

    def _column_parallel(self, weight: Param, bias: Param | None = None) -> Layer:
        """Return a product that leads into a pair."""
        product = make_product(self.plan, self.mesh, self.scheme.into, buffers=self.buffers)
        return MatrixLinear(weight, bias, product)

    def _row_parallel(self, weight: Param) -> tuple[Layer]:
        """Return a product that leads out of a pair."""
        product = make_product(self.plan, self.mesh, self.scheme.out_of, buffers=self.buffers)
        return (MatrixLinear(weight, None, product),)

    def _features(self, table: str, rows: int) -> Param:
        """Return this rank's block of the table of tokens, or its columns of that of positions."""
        partition = self.scheme.table if table == "token" else self.scheme.positions
        shape, seen = (rows, self.model.width), self.scheme.outside.rows
        return self._parameters(0).lying(table, shape, normal(DEVIATION), partition, seen)

    def _tied(self) -> tuple[Layer]:
        """Return the product with the transpose of the table, which leads into a pair."""
        into = self.scheme.into
        product = make_product(self.plan, self.mesh, into, transposed=True, buffers=self.buffers)
        return (MatrixLinear(self._table(), None, product),)

    @property
    def _heads(self) -> int:
        """How many heads of keys this rank has."""
        return self.model.key_heads // count(self.scheme.inside.columns, self.mesh.sizes)

    def _outside(self, x: Array) -> Array:
        """View this rank's rows and columns of data (B, T, C)."""
        rows, columns = self.scheme.outside.rows, self._share(x.shape[-1], self.scheme.outside.columns)
        return self._part(x, rows)[..., columns]

    def _part(self, x: Array, rows: tuple[str, ...]) -> Array:
        """View this rank's sequences of `x`."""
        return x[self._share(len(x), rows)]

    def _share(self, total: int, axes: tuple[str, ...]) -> slice:
        return share_of(total, axes, self.mesh.sizes, self.mesh.coordinates)
