"""The units of a model whose products are shared by the ranks of a grid."""

from __future__ import annotations

from functools import partial

from pscale.config.axes import GRID_AXES
from pscale.mesh.axis import Array, Axis
from pscale.nn.layer import First, Layer
from pscale.nn.loss import Loss, MeanSquare
from pscale.nn.param import Param
from pscale.parallel import tensor
from pscale.parallel.matrix.grid import count
from pscale.parallel.matrix.layers import ColumnNorm, MatrixLinear, make_product
from pscale.parallel.tensor import SlicedInput, SlicedTargets
from pscale.training.parameters import Parameters
from pscale.training.units import Units


class GridUnits(Units):
    """Makes the units of a model as a rank of the grid has them."""

    def only_block(self, number: int) -> Layer:
        """Return a block that takes data."""
        return SlicedInput(First(self.block(number), self.buffers), self._outside)

    def _looked_up(self) -> tuple[Layer, Layer]:
        """Return what finds rows of the table that this rank has a block of, and adds them up."""
        scheme = self.scheme
        repeated = scheme.looked_up == scheme.outside.rows
        leave = tensor.ReduceFromTensorAxis if repeated else tensor.ReduceScatterToSlices
        here = SlicedInput(self._tokens(), partial(self._sequences, rows=scheme.looked_up))
        return here, leave(self.mesh.axis(*scheme.table.rows), buffers=self.buffers)

    def _norm(self, own: Parameters, name: str) -> Layer:
        """Return a norm of rows whose columns may lie on several ranks."""
        axis = self.mesh.axis(*self.scheme.outside.columns)
        if axis.size == 1:
            return super()._norm(own, name)
        return ColumnNorm(*own.norm(name), axis, centred=self._centred, buffers=self.buffers)

    def loss(self) -> Loss:
        """Return the loss of this rank's outputs; where several compute the same, each reports its share."""
        scheme = self.scheme
        if self.model.kind == "block":
            mean = MeanSquare(ranks=count(scheme.outside.columns, self.mesh.sizes))
            return tensor.ReplicatedLoss(
                SlicedTargets(mean, self._outside), self._repeating(scheme.outside.axes)
            )
        entropy = self._entropy(self.mesh.axis(*scheme.inside.columns))
        mine = SlicedTargets(entropy, partial(self._sequences, rows=scheme.inside.rows))
        return tensor.ReplicatedLoss(mine, self._repeating(scheme.inside.rows))

    def _repeating(self, axes: tuple[str, ...]) -> Axis:
        """Return the ranks of the grid that compute the same where those along `axes` do not."""
        return self.mesh.axis(*(axis for axis in GRID_AXES if axis not in axes))

    def _column_parallel(self, weight: Param, bias: Param | None = None) -> Layer:
        """Return a product that leads into a pair."""
        product = make_product(self.plan, self.mesh, self.scheme.into, buffers=self.buffers)
        return MatrixLinear(weight, bias, product)

    def _row_parallel(self, weight: Param) -> tuple[Layer]:
        """Return a product that leads out of a pair."""
        product = make_product(self.plan, self.mesh, self.scheme.out_of, buffers=self.buffers)
        return (MatrixLinear(weight, None, product),)

    def _tied(self) -> tuple[Layer]:
        """Return the product with the transpose of the table, which leads into a pair."""
        into = self.scheme.into
        product = make_product(self.plan, self.mesh, into, transposed=True, buffers=self.buffers)
        return (MatrixLinear(self._table(), None, product),)

    def _outside(self, x: Array) -> Array:
        """View this rank's rows and columns of data (B, T, C)."""
        rows, columns = self.scheme.outside.rows, self._share(x.shape[-1], self.scheme.outside.columns)
        return self._sequences(x, rows)[..., columns]

    def _sequences(self, x: Array, rows: tuple[str, ...]) -> Array:
        """View this rank's sequences of `x`."""
        return x[self._share(len(x), rows)]
