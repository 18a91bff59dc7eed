"""The parameters of a unit as this rank holds them: which part, and over whom gradients are summed."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config import Model, Plan
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

    model: Model
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

    def bias(self, name: str, size: int, *, split: int | None = None, groups: int = 1) -> Param | None:
        """Make a vector of zeros, if the model has biases."""
        return (
            self.make(name, (size,), constant(0.0), split=split, groups=groups) if self.model.bias else None
        )

    def norm(self, name: str, size: int, buffers: Buffers) -> Layer:
        """Return a norm with gains of one."""
        return LayerNorm(*self._of_norm(name, size), centred=self.centred, buffers=buffers)

    @property
    def centred(self) -> bool:
        """Whether norms subtract the mean of a row."""
        return self.model.norm == "layernorm"

    def _of_norm(self, name: str, size: int) -> tuple[Param, Param | None]:
        gain = self.make(f"{name}.gain", (size,), constant(1.0))
        return gain, self.bias(f"{name}.bias", size) if self.centred else None

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

    def of_experts(self, name: str, shape: tuple[int, ...], deviation: float, *, groups: int = 1) -> Param:
        """Make this rank's share of the matrices that every expert has, `groups` side by side."""
        return self._of_experts(name, shape, normal(deviation), matrices=groups)

    def bias_of_experts(self, name: str, shape: tuple[int, ...]) -> Param | None:
        """Make this rank's share of the biases of all experts, if the model has biases."""
        return self._of_experts(name, shape, constant(0.0)) if self.model.bias else None

    def _of_experts(self, name: str, shape: tuple[int, ...], draw: Draw, *, matrices: int = 0) -> Param:
        axis = self.mesh.axis("ep")
        return Param(
            f"experts.{name}",
            (shape[0] // axis.size, *shape[1:]),
            layer=self.unit,
            draw=draw,
            sync=self._seen_by(expert.SYNC),
            decay=matrices > 0,
            cut=expert.cut(shape, axis),
            matrices=matrices,
        )

    def _seen_by(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return whose tokens a layer sees that tensor ranks do not cut."""
        return (*axes, "tp") if self.plan.sp else axes
