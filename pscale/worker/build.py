"""From a model to this rank's stage: the one place where layers are chosen and put in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pscale.config import Model, Plan
from pscale.mesh.axis import Mesh
from pscale.nn.buffers import Buffers
from pscale.nn.embedding import Embedding
from pscale.nn.gelu import BiasGelu
from pscale.nn.layer import Chain, First, Layer, Residual
from pscale.nn.linear import Linear
from pscale.nn.loss import CrossEntropy, Loss, MeanSquare
from pscale.nn.norm import LayerNorm
from pscale.nn.param import Draw, Param, constant, normal
from pscale.parallel import context
from pscale.parallel.layout import layout_of
from pscale.parallel.replicas import TOKENS

DEVIATION = 0.02  # of initial weights, as in GPT-2


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of the model whose gradients become final together."""

    name: str
    layer: Layer


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one rank trains: units in forward order, with the memory they share."""

    units: Sequence[Unit]
    loss: Loss
    buffers: Buffers


def build(model: Model, plan: Plan, mesh: Mesh) -> Stage:
    """Return this rank's stage of `model`, its parameters still without memory.

    The first unit takes the data (`gpt`: tokens (B, T); `block`: (B, T, C); `linear`: (B, width)); its
    backward returns None. Targets are tokens (B, T) for `gpt`, else of the output's shape.
    """
    buffers = Buffers()
    layers = _Builder(model, plan, mesh, buffers).units()
    units = tuple(Unit(name=name, layer=layer) for name, layer in layers.items())
    loss = CrossEntropy(buffers=buffers) if model.kind == "gpt" else MeanSquare(buffers=buffers)
    return Stage(units=units, loss=loss, buffers=buffers)


class _Builder:
    """Makes the layers of a model; weight decay is for the matrices of products alone, as in minGPT."""

    def __init__(self, model: Model, plan: Plan, mesh: Mesh, buffers: Buffers):
        self.model, self.plan, self.mesh, self.buffers = model, plan, mesh, buffers
        self.layer = 0  # of the parameters made next
        self.context, self.layout = mesh.axis("cp"), layout_of(model, plan)

    def units(self) -> dict[str, Layer]:
        """Return the units of the model by name, in forward order."""
        match self.model.kind:
            case "linear":
                weight = self._param("weight", (self.model.width, 1), constant(0.0))
                return {"linear": First(Linear(weight, buffers=self.buffers), self.buffers)}
            case "block":
                return {"block.0": First(self.block(layers=1), self.buffers)}
            case "gpt":
                units: dict[str, Layer] = {"embedding": self.embedding()}
                for index in range(self.model.layers):
                    self.layer = index + 1
                    units[f"block.{index}"] = self.block(layers=self.model.layers)
                self.layer = self.model.layers + 1
                return units | {"head": self.head()}

    def embedding(self) -> Layer:
        """Return the embedding of tokens and positions."""
        C, draw = self.model.width, normal(DEVIATION)
        token = self._param("token", (self.model.vocabulary, C), draw)
        position = self._param("position", (self.model.sequence, C), draw)
        return Embedding(token, position, places=self.layout.runs(self.context.rank), buffers=self.buffers)

    def block(self, layers: int) -> Layer:
        """Return attention and MLP on residual branches; the last weights start smaller in a deeper stack."""
        C, buffers = self.model.width, self.buffers
        last = DEVIATION / math.sqrt(2 * layers)
        attention = (
            self._norm("attention.norm"),
            Linear(self._matrix("qkv.weight", C, 3 * C), self._bias("qkv.bias", 3 * C), buffers=buffers),
            self._attention(self.model.heads),
            Linear(self._matrix("projection.weight", C, C, last), buffers=buffers),
        )
        mlp = (
            self._norm("mlp.norm"),
            Linear(self._matrix("up.weight", C, 4 * C), buffers=buffers),
            BiasGelu(self._bias("up.bias", 4 * C), buffers=buffers),
            Linear(self._matrix("down.weight", 4 * C, C, last), buffers=buffers),
        )
        return Chain(
            Residual(*attention, bias=self._bias("projection.bias", C), buffers=buffers),
            Residual(*mlp, bias=self._bias("down.bias", C), buffers=buffers),
        )

    def head(self) -> Layer:
        """Return the final norm and the product that makes logits."""
        weight = self._matrix("head.weight", self.model.width, self.model.vocabulary)
        return Chain(self._norm("norm"), Linear(weight, buffers=self.buffers))

    def _attention(self, heads: int) -> Layer:
        """Return the attention of this rank's tokens to those of all ranks that share the sequence."""
        return context.attention(
            heads, kind=self.plan.context, axis=self.context, layout=self.layout, buffers=self.buffers
        )

    def _norm(self, name: str) -> LayerNorm:
        gain = self._param(f"{name}.gain", (self.model.width,), constant(1.0))
        return LayerNorm(gain, self._bias(f"{name}.bias", self.model.width), buffers=self.buffers)

    def _matrix(self, name: str, inputs: int, outputs: int, deviation: float = DEVIATION) -> Param:
        return self._param(name, (inputs, outputs), normal(deviation), decay=True)

    def _bias(self, name: str, size: int) -> Param:
        return self._param(name, (size,), constant(0.0))

    def _param(self, name: str, shape: tuple[int, ...], draw: Draw, *, decay: bool = False) -> Param:
        return Param(name, shape, layer=self.layer, draw=draw, sync=TOKENS, decay=decay)
