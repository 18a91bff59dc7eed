"""The parameters of a unit as this rank holds them: which part, and over whom gradients are summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pscale.config import Model, Plan
from pscale.config.axes import TOKEN_AXES
from pscale.mesh.axis import Mesh
from pscale.nn.param import Draw, Param, constant, normal
from pscale.parallel.matrix.grid import cut, scheme_of

DEVIATION = 0.02  # of initial weights, as in GPT-2
# A matrix leads into a pair of products or out of it, a vector lies outside of pairs or inside.
Place = Literal["outside", "inside", "into", "out_of", "table", "positions", "experts", "whole"]


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Makes parameters of the unit number `unit`, which lie as the scheme of the plan says of their place.

    Weight decay is for the matrices of products alone, as in minGPT.
    """

    model: Model
    plan: Plan
    mesh: Mesh
    unit: int

    def matrix(
        self,
        name: str,
        shape: tuple[int, ...],
        place: Place = "whole",
        *,
        deviation: float = DEVIATION,
        groups: int = 1,
        hidden: bool = True,
    ) -> Param:
        """Make the matrix of a product, or of each expert: of a hidden layer, or of the model's output."""
        param = self.make(name, shape, normal(deviation), place, groups=groups)
        param.decay, param.matrices = True, groups if hidden else 0
        return param

    def bias(
        self, name: str, shape: tuple[int, ...], place: Place = "outside", groups: int = 1
    ) -> Param | None:
        """Make zeros, if the model has biases."""
        return self.make(name, shape, constant(0.0), place, groups=groups) if self.model.bias else None

    def norm(self, name: str) -> tuple[Param, Param | None]:
        """Make gains of one, and biases where norms subtract the mean of a row and the model has some."""
        gain = self.make(f"{name}.gain", (self.model.width,), constant(1.0), "outside")
        return gain, self.bias(f"{name}.bias", gain.whole) if self.model.norm == "layernorm" else None

    def make(self, name: str, shape: tuple[int, ...], draw: Draw, place: Place, *, groups: int = 1) -> Param:
        """Make a parameter; who sees other tokens has a part of its gradient, but for those who cut it."""
        scheme = scheme_of(self.plan)
        part, mine = cut(shape, getattr(scheme, place), self.mesh, groups=groups)
        seen = (scheme.inside if place in ("inside", "out_of") else scheme.outside).rows
        axes = (*TOKEN_AXES, *seen, *["tp"] * self.plan.sp)
        sync = tuple(axis for axis in axes if part is None or axis not in part.axes)
        return Param(name, mine, layer=self.unit, draw=draw, sync=sync, cut=part)
