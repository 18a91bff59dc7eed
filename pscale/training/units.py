"""The units of every kind of model: the one place where layers are chosen and put in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from pscale.config import Model, Plan
from pscale.mesh.axis import Axis, Mesh
from pscale.nn.attention import Rotary, ScoreDropout, turns
from pscale.nn.buffers import Buffers
from pscale.nn.common_layers import BiasGelu, Draws, Dropout, LayerNorm, Linear, Positions, SwiGlu, Tokens
from pscale.nn.dtypes import dtype_of
from pscale.nn.experts import ExpertLinear, Mixture
from pscale.nn.layer import Chain, First, Layer, Residual, Stateless
from pscale.nn.loss import CrossEntropy, Loss, MeanSquare
from pscale.nn.param import Param, constant, normal
from pscale.nn.routing import ExpertPositions, Router, RouterStats, capacity, has_experts
from pscale.parallel import expert, tensor
from pscale.parallel.collectives import Collectives, Nothing
from pscale.parallel.context.form import AttentionShare, attention, layout_of
from pscale.parallel.context.layout import runs_of
from pscale.parallel.matrix.grid import count, scheme_of, share_of
from pscale.parallel.tensor import (
    ColumnsToSlices,
    GatherFromTensorAxis,
    ParallelCrossEntropy,
    SlicedInput,
    SlicedTargets,
)
from pscale.training.parameters import DEVIATION, Parameters

_SITES, _EMBEDDED, _ATTENDED, _TRANSFORMED, _SCORED = 4, 0, 1, 2, 3  # of dropout in a unit, and which


class Units:
    """Makes the units of a model as this rank has them; `routers` has the statistics of its routers."""

    def __init__(self, model: Model, plan: Plan, mesh: Mesh, buffers: Buffers, sequences: int):
        self.model, self.plan, self.mesh, self.buffers = model, plan, mesh, buffers
        self.sequences = sequences
        self.routers: list[RouterStats] = []
        self.draws = Draws()
        self.context, self.layout = mesh.axis("cp"), layout_of(model, plan)
        self.tensor, self.scheme = mesh.axis("tp"), scheme_of(plan)
        self.sliced = plan.sp and self.tensor.size > 1  # outside of cut layers, tensor ranks split the tokens

    def makers(self) -> dict[str, Callable[[int], Layer]]:
        """Return what makes the units of the model from their numbers, by name, in forward order."""
        match self.model.kind:
            case "linear":
                return {"linear": self.linear}
            case "collectives":
                return {"collectives": lambda _: Collectives(self.model, self.mesh, buffers=self.buffers)}
            case "block":
                return {"block.0": self.only_block}
            case "gpt" | "moe":
                blocks = {f"block.{index}": self.block for index in range(self.model.layers)}
                return {"embedding": self.embedding, **blocks, "head": self.head}

    def only_block(self, number: int) -> Layer:
        """Return a block that takes data."""
        block = First(self.block(number), self.buffers)
        return SlicedInput(block, partial(tensor.slice_of, axis=self.tensor)) if self.sliced else block

    def linear(self, number: int) -> Layer:
        """Return the product with the only weights."""
        weight = self._parameters(number).make("weight", (self.model.width, 1), constant(0.0), "whole")
        return First(Linear(weight, buffers=self.buffers), self.buffers)

    def embedding(self, number: int) -> Layer:
        """Return the embedding of tokens and positions; tensor ranks hold rows or columns of the first."""
        layers = [*self._looked_up()]
        if self.model.positions == "learned":
            shape = self.model.sequence, self.model.width
            table = self._parameters(0).make("position", shape, normal(DEVIATION), "positions")
            layers.append(Positions(table, runs=self._runs, buffers=self.buffers))
        if (dropout := self._dropout(number, _EMBEDDED)) is not None:
            layers.append(dropout)
        return Chain(*layers)

    def _looked_up(self) -> Sequence[Layer]:
        """Return what finds the rows of tokens, and brings together what ranks have of them."""
        return self._tokens(), self._reduce() if self._by_rows else self._join()

    def _tokens(self) -> Tokens:
        first = self._first(self.model.vocabulary, self.scheme.table.rows)
        return Tokens(self._table(), first=first, buffers=self.buffers)

    def block(self, number: int) -> Layer:
        """Return attention and MLP on residual branches; the last weights start smaller in a deeper stack."""
        C, own = self.model.width, self._parameters(number)
        keys, kinds = self.model.key_width, self.model.queries + 2
        depth = 1 if self.model.kind == "block" else self.model.layers
        last = DEVIATION / math.sqrt(2 * depth)
        attention = (
            self._norm(own, "attention.norm"),
            self._column_parallel(
                own.matrix("qkv.weight", (C, kinds * keys), "into", groups=kinds),
                own.bias("qkv.bias", (kinds * keys,), "inside", kinds),
            ),
            *self._rotary(),
            self._attention(number),
            *self._row_parallel(own.matrix("projection.weight", (C, C), "out_of", deviation=last)),
        )
        bias = own.bias("projection.bias", (C,))
        dropouts = [self._dropout(number, site) for site in (_ATTENDED, _TRANSFORMED)]
        attend = Residual(*interspersed(attention, self.mesh), bias=bias, dropout=dropouts[0])
        if has_experts(self.model, number - 1):
            mixture = self._mixture(own, last)
            return Chain(attend, Residual(self._norm(own, "mlp.norm"), mixture, dropout=dropouts[1]))
        F, parts = self.model.mlp_features, self.model.mlp_parts
        up = own.matrix("up.weight", (C, parts * F), "into", groups=parts)
        bias = own.bias("up.bias", (parts * F,), "inside", parts)
        activated = self._activated(self._column_parallel, up, bias)
        down = own.matrix("down.weight", (F, C), "out_of", deviation=last)
        mlp = (self._norm(own, "mlp.norm"), *activated, *self._row_parallel(down))
        bias = own.bias("down.bias", (C,))
        return Chain(attend, Residual(*interspersed(mlp, self.mesh), bias=bias, dropout=dropouts[1]))

    def head(self, number: int) -> Layer:
        """Return the final norm and the product that makes logits."""
        own, shape = self._parameters(number), (self.model.width, self.model.vocabulary)
        norm = self._norm(own, "norm")
        if self.model.tied:
            return Chain(norm, *self._tied())
        return Chain(norm, self._column_parallel(own.matrix("head.weight", shape, "into", hidden=False)))

    def loss(self) -> Loss:
        """Return the loss; where several tensor ranks compute the same, each reports its share."""
        if self.model.kind == "collectives":
            return Nothing()
        axis, tokens = self.tensor, self.model.kind in ("gpt", "moe")
        if axis.size == 1:
            return CrossEntropy() if tokens else MeanSquare()
        if tokens and (self._by_rows or not self.model.tied):
            return tensor.ReplicatedLoss(self._entropy(axis), axis)
        loss: Loss = CrossEntropy() if tokens else MeanSquare()
        if self.sliced:
            return SlicedTargets(loss, partial(tensor.slice_of, axis=axis))
        return tensor.ReplicatedLoss(loss, axis)

    def _entropy(self, axis: Axis) -> Loss:
        """Return the loss of logits, of which ranks of `axis` have columns."""
        if axis.size == 1:
            return CrossEntropy()
        first = self._first(self.model.vocabulary, self.scheme.inside.columns)
        return ParallelCrossEntropy(axis, first=first, buffers=self.buffers)

    @property
    def _runs(self) -> Sequence[slice]:
        """Positions of this rank's tokens between the layers."""
        runs = self.layout.runs(self.context.rank)
        return runs_of(runs, self.tensor.size, self.tensor.rank) if self.sliced else runs

    def _dropout(self, number: int, site: int) -> Dropout | None:
        """Return what drops features at a site of unit `number`, if anything does."""
        if not self.model.dropout:
            return None
        place = _SITES * number + site
        dropout = Dropout(self.model.dropout, place, self.draws, runs=self._runs, buffers=self.buffers)
        dropout.column = self._first(self.model.width, self.scheme.outside.columns)
        dropout.offset = self._part(self.scheme.outside.rows)
        return dropout

    @property
    def _by_rows(self) -> bool:
        """Whether tensor ranks have rows of the table of tokens, not columns."""
        return self.plan.embedding == "row" or self.tensor.size == 1

    def _table(self) -> Param:
        """Return a copy of the table of tokens, that of unit 0 by name."""
        shape = self.model.vocabulary, self.model.width
        token = self._parameters(0).make("token", shape, normal(DEVIATION), "table")
        token.tied = self.model.tied
        return token

    def _join(self) -> GatherFromTensorAxis | ColumnsToSlices:
        """Return the way from this rank's columns of all tokens to all columns of those it has."""
        join = ColumnsToSlices if self.sliced else GatherFromTensorAxis
        return join(self.tensor, buffers=self.buffers)

    def _tied(self) -> Sequence[Layer]:
        """Return what makes logits with the table: this rank's, or all as a sum over its columns."""
        logits = Linear(self._table(), transposed=True, buffers=self.buffers)
        if self._by_rows:
            return (self._of_common(logits),)
        return tensor.Transposed(self._join()), logits, self._reduce()

    def _parameters(self, number: int) -> Parameters:
        return Parameters(model=self.model, plan=self.plan, mesh=self.mesh, unit=number)

    def _norm(self, own: Parameters, name: str) -> Layer:
        """Return a norm of rows, of which this rank has all columns."""
        return LayerNorm(*own.norm(name), centred=self._centred, buffers=self.buffers)

    @property
    def _centred(self) -> bool:
        """Whether norms subtract the mean of a row."""
        return self.model.norm == "layernorm"

    def _mixture(self, own: Parameters, last: float) -> Layer:
        """Return experts of which each token visits a few; this rank has a share of them."""
        model, buffers, axis = self.model, self.buffers, self.mesh.axis("ep")
        C, E = model.width, model.experts
        stats = RouterStats(block=own.unit - 1, loads=np.zeros(E, np.int64))
        self.routers.append(stats)
        router = Router(
            own.matrix("router.weight", (C, E)),
            top_k=model.top_k,
            capacity=capacity(model),
            sequence=model.sequence,
            positions=self._positions(),
            loss_weight=model.balance_weight / self.sequences,
            stats=stats,
            buffers=buffers,
        )
        F, parts = model.mlp_features, model.mlp_parts
        up = own.matrix("experts.up.weight", (E, C, parts * F), "experts", groups=parts)
        bias = own.bias("experts.up.bias", (E, parts * F), "experts")
        activated = self._activated(partial(ExpertLinear, buffers=buffers), up, bias)
        down = own.matrix("experts.down.weight", (E, F, C), "experts", deviation=last)
        bias = own.bias("experts.down.bias", (E, C), "experts")
        experts: Layer = Chain(*activated, ExpertLinear(down, bias, buffers=buffers))
        if axis.size > 1:
            experts = expert.Exchange(experts, axis, buffers=buffers)
        return Mixture(router, experts, buffers=buffers)

    def _activated(
        self, product: Callable[[Param, Param | None], Layer], up: Param, bias: Param | None
    ) -> tuple[Layer, Layer]:
        """Return the first product of an MLP, and its activation, of which one adds the bias."""
        if self.model.mlp == "swiglu":
            return product(up, bias), SwiGlu(buffers=self.buffers)
        return product(up, None), BiasGelu(bias, buffers=self.buffers)

    def _positions(self) -> ExpertPositions:
        """Return how a rank knows where its tokens stand in their sequences."""
        axis = self.mesh.axis(*expert.sequence_axes(self.plan))
        if axis.size == 1:
            return ExpertPositions(self.model.sequence)
        return expert.SharedPositions(axis, expert.runs_of_all(self.model, self.plan))

    @property
    def _heads(self) -> int:
        """How many heads of keys this rank has."""
        return self.model.key_heads // count(self.scheme.inside.columns, self.mesh.sizes)

    def _rotary(self) -> Sequence[Layer]:
        """Return what turns this rank's queries and keys by their positions, if the model does."""
        if self.model.positions != "rope":
            return ()
        return (Rotary((self.model.queries + 1) * self._heads, self._turns),)

    @cached_property
    def _turns(self) -> tuple[Array, Array]:
        """Cosines and sines of this rank's positions, which all blocks share."""
        runs, half = self.layout.runs(self.context.rank), self.model.width // self.model.heads // 2
        return turns(runs, half, self.model.rope_base, dtype_of(self.model.dtype), self.buffers)

    def _attention(self, number: int) -> Layer:
        """Return the attention of this rank's tokens to those of all ranks that share the sequence."""
        dropout = ScoreDropout(
            rate=self.model.dropout,
            site=_SITES * number + _SCORED,
            draws=self.draws,
            first=self._first(self.model.key_heads, self.scheme.inside.columns),
            heads=self.model.key_heads,
            offset=self._part(self.scheme.inside.rows),
        )
        share = AttentionShare(
            heads=self._heads,
            queries=self.model.queries,
            dropout=dropout,
            keeps_scores=self.model.keeps_scores,
            mesh=self.mesh,
            layout=self.layout,
            recomputed=self.plan.checkpoint == "selective",
            buffers=self.buffers,
        )
        return attention(share, self.plan.context)

    def _share(self, total: int, axes: tuple[str, ...]) -> slice:
        """Return which of `total` things, cut over axes, this rank has."""
        return share_of(total, axes, self.mesh.sizes, self.mesh.coordinates)

    def _first(self, total: int, axes: tuple[str, ...]) -> int:
        """Return the number of the first of them."""
        first: int = self._share(total, axes).start
        return first

    def _part(self, axes: tuple[str, ...]) -> int:
        """Return the number of this rank among those along axes."""
        return self._first(count(axes, self.mesh.sizes), axes)

    def _column_parallel(self, weight: Param, bias: Param | None = None) -> Layer:
        """Return a product with a weight cut by columns, of what tensor ranks have in common."""
        return self._of_common(Linear(weight, bias, buffers=self.buffers))

    def _of_common(self, linear: Linear) -> Layer:
        """Return a product whose input is what tensor ranks have in common, or their slices of it."""
        if self.tensor.size == 1:
            return linear
        return tensor.ColumnParallelLinear(linear, self.tensor, sequence_parallel=self.sliced)

    def _row_parallel(self, weight: Param) -> Sequence[Layer]:
        """Return a product with a weight cut by rows, and the way out of it."""
        return Linear(weight, buffers=self.buffers), self._reduce()

    def _reduce(self) -> Layer:
        """Return the way from partial products of tensor ranks to what they have in common."""
        if self.sliced:
            return tensor.ReduceScatterToSlices(self.tensor, tensor.T_DIM, buffers=self.buffers)
        return tensor.ReduceFromTensorAxis(self.tensor, buffers=self.buffers)


Array = NDArray[np.floating]


class Progress(Stateless):
    """The identity, which lets exchanges that are under way move on."""

    def __init__(self, progress: Callable[[], None]):
        self._progress = progress

    def forward(self, x: Array) -> tuple[Array, None]:
        """Return the input."""
        self._progress()
        return x, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Return the gradient of the output."""
        self._progress()
        return dy


def interspersed(layers: Sequence[Layer], mesh: Mesh) -> Iterator[Layer]:
    """Yield the layers with a chance for progress after each; just the layers where one rank is alone."""
    for layer in layers:
        yield layer
        if mesh.world.size > 1:
            yield Progress(mesh.progress)
