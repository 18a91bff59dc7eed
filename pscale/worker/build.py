"""From a model to this rank's stage: the one place where layers are chosen and put in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pscale.config import Model, Plan
from pscale.mesh.axis import Mesh
from pscale.nn.buffers import Buffers
from pscale.nn.embedding import Positions, Tokens
from pscale.nn.experts import ExpertLinear, Mixture
from pscale.nn.gelu import BiasGelu
from pscale.nn.layer import Chain, First, Layer, Residual
from pscale.nn.linear import Linear
from pscale.nn.loss import CrossEntropy, Loss, MeanSquare
from pscale.nn.norm import LayerNorm
from pscale.nn.param import Deferred, Draw, Param, constant, normal, share
from pscale.nn.routing import Router, Tally, capacity, has_experts
from pscale.parallel import context, expert, sequence, tensor
from pscale.parallel.layout import layout_of
from pscale.parallel.pipeline import stage_units, timetable
from pscale.parallel.replicas import TOKENS
from pscale.parallel.vocabulary import ColumnsToSlices, JoinColumns, ParallelCrossEntropy

DEVIATION = 0.02  # of initial weights, as in GPT-2


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of the model whose gradients become final together."""

    name: str
    layer: Layer


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one rank trains: units in forward order, with the memory they share.

    `parts` says which of `units` make up each part of the model that the rank holds, `deferred` where the
    products for gradients of matrices are put off, if the plan does that.
    """

    units: Sequence[Unit]
    parts: Mapping[int, range]
    loss: Loss
    buffers: Buffers
    deferred: Deferred
    tallies: Sequence[Tally] = ()  # of the routers, if there are any


def build(model: Model, plan: Plan, mesh: Mesh, sequences: int = 1) -> Stage:
    """Return this rank's stage of `model`, its parameters still without memory.

    The first unit takes the data (`gpt`: tokens (B, T); `block`: (B, T, C); `linear`: (B, width)); its
    backward returns None. Targets are tokens (B, T) for `gpt`, else of the output's shape. `sequences` are
    those of a step on all ranks, over which the auxiliary loss of routers is a mean.
    """
    buffers = Buffers()
    builder = _Builder(model, plan, mesh, buffers, sequences)
    makers = list(builder.makers().items())
    units: list[Unit] = []
    parts: dict[int, range] = {}
    for part, numbers in stage_units(model, plan, mesh.axis("pp").rank).items():
        parts[part] = range(len(units), len(units) + len(numbers))
        for builder.layer in numbers:
            name, make = makers[builder.layer]
            units.append(Unit(name=name, layer=make()))
    return Stage(
        units=tuple(units),
        parts=parts,
        loss=builder.loss(),
        buffers=buffers,
        deferred=_deferred(plan, units),
        tallies=builder.tallies,
    )


def _deferred(plan: Plan, units: Sequence[Unit]) -> Deferred:
    """Put off the products of matrices if the plan says so; sums for biases and gains cost too little."""
    deferred = Deferred()
    if timetable(plan, micro_batches=1).splits:
        for unit in units:
            for param in unit.layer.params:
                if len(param.shape) > 1:
                    param.deferred = deferred
    return deferred


class _Builder:
    """Makes the layers of a model; weight decay is for the matrices of products alone, as in minGPT."""

    def __init__(self, model: Model, plan: Plan, mesh: Mesh, buffers: Buffers, sequences: int):
        self.model, self.plan, self.mesh, self.buffers = model, plan, mesh, buffers
        self.sequences = sequences
        self.tallies: list[Tally] = []
        self.layer = 0  # of the parameters made next: the number of their unit
        self.context, self.layout = mesh.axis("cp"), layout_of(model, plan)
        self.tensor = mesh.axis("tp")
        self.sliced = plan.sp and self.tensor.size > 1  # outside of cut layers, tensor ranks split the tokens

    def makers(self) -> dict[str, Callable[[], Layer]]:
        """Return what makes the units of the model, by name, in forward order."""
        match self.model.kind:
            case "linear":
                return {"linear": self.linear}
            case "block":
                return {"block.0": self.only_block}
            case "gpt" | "moe":
                block = partial(self.block, layers=self.model.layers)
                blocks = {f"block.{index}": block for index in range(self.model.layers)}
                return {"embedding": self.embedding, **blocks, "head": self.head}

    def only_block(self) -> Layer:
        """Return a block that takes data."""
        block = First(self.block(layers=1), self.buffers)
        return sequence.Sliced(block, self.tensor) if self.sliced else block

    def linear(self) -> Layer:
        """Return the product with the only weights."""
        weight = self._param("weight", (self.model.width, 1), constant(0.0))
        return First(Linear(weight, buffers=self.buffers), self.buffers)

    def embedding(self) -> Layer:
        """Return the embedding of tokens and positions; tensor ranks hold rows or columns of the first."""
        C, draw = self.model.width, normal(DEVIATION)
        by_rows = self.plan.embedding == "row" or self.tensor.size == 1
        token = self._param("token", (self.model.vocabulary, C), draw, split=0 if by_rows else 1)
        position = self._param("position", (self.model.sequence, C), draw)
        first = self._vocabulary().start if by_rows else 0
        join = ColumnsToSlices if self.sliced else JoinColumns
        runs: Sequence[slice] = self.layout.runs(self.context.rank)
        return Chain(
            Tokens(token, first=first, buffers=self.buffers),
            self._leave() if by_rows else join(self.tensor, buffers=self.buffers),
            Positions(
                position,
                runs=sequence.runs_of(runs, self.tensor) if self.sliced else runs,
                buffers=self.buffers,
            ),
        )

    def block(self, layers: int) -> Layer:
        """Return attention and MLP on residual branches; the last weights start smaller in a deeper stack."""
        C, buffers = self.model.width, self.buffers
        last = DEVIATION / math.sqrt(2 * layers)
        heads = self.model.heads // self.tensor.size
        attention = (
            self._norm("attention.norm"),
            self._columns(
                self._matrix("qkv.weight", C, 3 * C, split=1, groups=3),
                self._bias("qkv.bias", 3 * C, split=0, groups=3),
            ),
            self._attention(heads),
            Linear(self._matrix("projection.weight", C, C, last, split=0), buffers=buffers),
            self._leave(),
        )
        attend = Residual(*attention, bias=self._bias("projection.bias", C), buffers=buffers)
        if has_experts(self.model, self.layer - 1):
            return Chain(attend, Residual(self._norm("mlp.norm"), self._mixture(last), buffers=buffers))
        mlp = (
            self._norm("mlp.norm"),
            self._columns(self._matrix("up.weight", C, 4 * C, split=1)),
            BiasGelu(self._bias("up.bias", 4 * C, split=0), buffers=buffers),
            Linear(self._matrix("down.weight", 4 * C, C, last, split=0), buffers=buffers),
            self._leave(),
        )
        return Chain(attend, Residual(*mlp, bias=self._bias("down.bias", C), buffers=buffers))

    def _mixture(self, last: float) -> Layer:
        """Return experts of which each token visits a few; this rank has a share of them."""
        model, buffers, axis = self.model, self.buffers, self.mesh.axis("ep")
        C = model.width
        tally = Tally(block=self.layer - 1, loads=np.zeros(model.experts, np.int64))
        self.tallies.append(tally)
        router = Router(
            self._matrix("router.weight", C, model.experts),
            top_k=model.top_k,
            capacity=capacity(model),
            loss_weight=model.balance_weight / self.sequences,
            tally=tally,
            buffers=buffers,
        )
        experts: Layer = Chain(
            ExpertLinear(self._expert("up.weight", (C, 4 * C), DEVIATION), buffers=buffers),
            BiasGelu(self._expert("up.bias", (4 * C,)), buffers=buffers),
            ExpertLinear(
                self._expert("down.weight", (4 * C, C), last),
                self._expert("down.bias", (C,)),
                buffers=buffers,
            ),
        )
        if axis.size > 1:
            experts = expert.Exchange(experts, axis, buffers=buffers)
        return Mixture(router, experts, buffers=buffers)

    def _expert(self, name: str, shape: tuple[int, ...], deviation: float = 0.0) -> Param:
        """Return this rank's share of a parameter that every expert has: a matrix, or a bias of zeros."""
        cut = expert.cut((self.model.experts, *shape), self.mesh.axis("ep"))
        return Param(
            f"experts.{name}",
            (self.model.experts // self.mesh.axis("ep").size, *shape),
            layer=self.layer,
            draw=normal(deviation) if deviation else constant(0.0),
            sync=expert.SYNC,
            decay=len(shape) > 1,
            cut=cut,
        )

    def head(self) -> Layer:
        """Return the final norm and the product that makes logits."""
        weight = self._matrix("head.weight", self.model.width, self.model.vocabulary, split=1)
        return Chain(self._norm("norm"), self._columns(weight))

    def loss(self) -> Loss:
        """Return the loss; where several tensor ranks compute the same, each reports its share."""
        axis, buffers, tokens = self.tensor, self.buffers, self.model.kind in ("gpt", "moe")
        if axis.size == 1:
            return CrossEntropy(buffers=buffers) if tokens else MeanSquare(buffers=buffers)
        if tokens:
            first = self._vocabulary().start
            return tensor.Shared(ParallelCrossEntropy(axis, first=first, buffers=buffers), axis.size)
        loss = MeanSquare(buffers=buffers)
        return sequence.SlicedTargets(loss, axis) if self.sliced else tensor.Shared(loss, axis.size)

    def _attention(self, heads: int) -> Layer:
        """Return the attention of this rank's tokens to those of all ranks that share the sequence."""
        return context.attention(
            heads, kind=self.plan.context, axis=self.context, layout=self.layout, buffers=self.buffers
        )

    def _vocabulary(self) -> slice:
        """Return this rank's tokens of the vocabulary."""
        return share(self.model.vocabulary, self.tensor.size, self.tensor.rank)

    def _columns(self, weight: Param, bias: Param | None = None) -> Layer:
        """Return a product with a weight cut by columns, of what tensor ranks have in common."""
        linear = Linear(weight, bias, buffers=self.buffers)
        if self.sliced:
            return sequence.EnterLinear(linear, self.tensor, buffers=self.buffers)
        return Chain(tensor.Enter(self.tensor, buffers=self.buffers), linear)

    def _leave(self) -> Layer:
        """Return the way from partial products of tensor ranks to what they have in common."""
        leave = sequence.Leave if self.sliced else tensor.Leave
        return leave(self.tensor, buffers=self.buffers)

    def _norm(self, name: str) -> LayerNorm:
        gain = self._param(f"{name}.gain", (self.model.width,), constant(1.0))
        return LayerNorm(gain, self._bias(f"{name}.bias", self.model.width), buffers=self.buffers)

    def _matrix(
        self,
        name: str,
        inputs: int,
        outputs: int,
        deviation: float = DEVIATION,
        *,
        split: int | None = None,
        groups: int = 1,
    ) -> Param:
        draw = normal(deviation)
        return self._param(name, (inputs, outputs), draw, decay=True, split=split, groups=groups)

    def _bias(self, name: str, size: int, *, split: int | None = None, groups: int = 1) -> Param:
        return self._param(name, (size,), constant(0.0), split=split, groups=groups)

    def _param(
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
            sync = (*TOKENS, "tp") if self.sliced else TOKENS
            return Param(name, shape, layer=self.layer, draw=draw, sync=sync, decay=decay)
        cut, shape = tensor.cut(shape, split, self.tensor, groups=groups)
        return Param(name, shape, layer=self.layer, draw=draw, sync=TOKENS, decay=decay, cut=cut)
