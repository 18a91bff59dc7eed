"""The parameters of a unit as this rank holds them: which part, and over whom gradients are summed."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config import Plan
from pscale.config.axes import TOKEN_AXES
from pscale.mesh.axis import Mesh
from pscale.nn.buffers import Buffers
from pscale.nn.common_layers import LayerNorm
from pscale.nn.layer import Layer
from pscale.nn.param import Draw, Param, constant, normal
from pscale.parallel import expert, tensor

DEVIATION = 0.02  # of initial weights, as in GPT-2


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Makes parameters of the unit number `unit`.

    Weight decay is for the matrices of products alone, as in minGPT.
    """

    plan: Plan
    mesh: Mesh
    unit: int

    def matrix(
        self,
        name: str,
        inputs: int,
        outputs: int,
        deviation: float = DEVIATION,
        *,
        split: int | None = None,
        groups: int = 1,
        hidden: bool = True,
    ) -> Param:
        """Make the matrix of a product: of a hidden layer, or of one that makes the model's output."""
        draw = normal(deviation)
        param = self.make(name, (inputs, outputs), draw, decay=True, split=split, groups=groups)
        param.matrices = groups if hidden else 0
        return param

    def bias(self, name: str, size: int, *, split: int | None = None, groups: int = 1) -> Param:
        """Make a vector of zeros."""
        return self.make(name, (size,), constant(0.0), split=split, groups=groups)

    def norm(self, name: str, size: int, buffers: Buffers) -> Layer:
        """Return a norm with gains of one."""
        gain = self.make(f"{name}.gain", (size,), constant(1.0))
        return LayerNorm(gain, self.bias(f"{name}.bias", size), buffers=buffers)

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
        """Make a parameter; tensor ranks cut dim `split` of it, or have it whole."""
        if split is None:
            return Param(name, shape, layer=self.unit, draw=draw, sync=self._seen_by(TOKEN_AXES), decay=decay)
        cut, shape = tensor.cut(shape, split, self.mesh.axis("tp"), groups=groups)
        return Param(name, shape, layer=self.unit, draw=draw, sync=TOKEN_AXES, decay=decay, cut=cut)

    def of_experts(self, name: str, shape: tuple[int, ...], deviation: float = 0.0) -> Param:
        """Make this rank's share of a parameter that every expert has: a matrix, or a bias of zeros."""
        axis = self.mesh.axis("ep")
        return Param(
            f"experts.{name}",
            (shape[0] // axis.size, *shape[1:]),
            layer=self.unit,
            draw=normal(deviation) if deviation else constant(0.0),
            sync=self._seen_by(expert.SYNC),
            decay=len(shape) > 2,
            cut=expert.cut(shape, axis),
            matrices=int(len(shape) > 2),
        )

    def _seen_by(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return whose tokens a layer sees that tensor ranks do not cut."""
        return (*axes, "tp") if self.plan.sp else axes
