"""What a model costs, in closed form: parameters, multiplications, memory.

These formulas know nothing of the layers; tests hold the layers to them. h is the width, a the heads,
s the sequence, V the vocabulary, n = sequences s the tokens; E the experts of a block, k those of a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config import Model
from pscale.nn.kernels.piece import scores_per_head
from pscale.nn.queue import capacity, room
from pscale.nn.routing import has_experts
from pscale.number import BYTES, wide_bytes


def unit_parameters(model: Model) -> list[tuple[str, int]]:
    """Return the units in forward order with their numbers of parameters."""
    h = model.width
    block = 12 * h * h + 13 * h
    match model.kind:
        case "linear":
            return [("linear", h)]
        case "collectives":
            return [("collectives", 0)]
        case "block":
            return [("block.0", block)]
        case "gpt" | "moe":
            mlp, router = 8 * h * h + 5 * h, h * model.experts
            blocks = _blocks(model, block, expert_parameters(model) + router - mlp)
            embedding, head = (model.vocabulary + model.sequence) * h, 2 * h + h * model.vocabulary
            return [("embedding", embedding), *blocks, ("head", head)]


def expert_parameters(model: Model) -> int:
    """Return the number of parameters of all experts of a block, without the router."""
    h = model.width
    return model.experts * (8 * h * h + 5 * h)


def parameters(model: Model) -> int:
    """Return the number of parameters; for `gpt` L (12 h^2 + 13 h) + 2 V h + s h + 2 h."""
    return sum(count for _, count in unit_parameters(model))


def model_flops(model: Model, sequences: int) -> int:
    """Return the FLOPs that one training step needs, 2 a multiply-add, backward twice forward.

    Matrix products only; attention exactly causal: a query meets (s + 1) / 2 keys on average. With experts
    every choice of a token counts for which there can be a place.
    """
    return sum(flops for _, flops in unit_flops(model, sequences))


def unit_flops(model: Model, sequences: int = 1) -> list[tuple[str, int]]:
    """Return the units in forward order with their parts of `model_flops`; looking up needs none."""
    visits = min(model.top_k * model.sequence, model.experts * capacity(model))
    return _unit_flops(model, sequences, 6 * model.sequence * (model.sequence + 1) // 2, visits)


def executed_flops(
    model: Model, sequences: int, *, scores: int | None = None, copies: int = 1, parts: int = 1
) -> int:
    """Return the FLOPs of the matrix products that one training step does.

    More than `model_flops` by the scores that are computed and masked, by those that backward computes again,
    and by the empty places of experts. Of a head and sequence `scores` are computed in forward, by default
    those of one rank's blocks. With mixtures, `parts` ranks share a sequence, and `copies` do alike. Sums and
    products with a vector are not counted.
    """
    computed = scores_per_head(model.sequence, kept=model.keeps_scores) if scores is None else scores
    products = 6 if model.keeps_scores else 7
    places = parts * model.experts * room(model, parts)
    return sum(flops for _, flops in _unit_flops(model, sequences, products * computed, places, copies))


def forward_flops(
    model: Model, sequences: int, *, scores: int, copies: int = 1, parts: int = 1
) -> list[tuple[str, int]]:
    """Return the units with what their forward does of `executed_flops`: its products come thrice a step."""
    places = parts * model.experts * room(model, parts)
    return [(name, flops // 3) for name, flops in _unit_flops(model, sequences, 6 * scores, places, copies)]


def _unit_flops(
    model: Model, sequences: int, scores: int, visits: int, copies: int = 1
) -> list[tuple[str, int]]:
    """Return the FLOPs of a step, unit by unit.

    Of a sequence, a head's scores take part in products `scores` times, and the experts of a block see
    `visits` rows.
    """
    h, n = model.width, sequences * model.sequence
    block = 72 * n * h * h + 2 * sequences * scores * h
    match model.kind:
        case "linear":
            return [("linear", 6 * sequences * h)]
        case "collectives":
            return [("collectives", 0)]
        case "block":
            return [("block.0", block)]
        case "gpt" | "moe":
            mixture = 48 * sequences * visits * h * h + 6 * n * h * model.experts
            beyond = copies * mixture - 48 * n * h * h  # an MLP
            blocks = _blocks(model, block, beyond)
            return [("embedding", 0), *blocks, ("head", 6 * n * h * model.vocabulary)]


def _blocks(model: Model, dense: int, beyond: int) -> list[tuple[str, int]]:
    """Return the blocks with a number each: `dense`, and `beyond` that for one with experts."""
    return [(f"block.{index}", dense + beyond * has_experts(model, index)) for index in range(model.layers)]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Numbers that attention keeps of a sequence, beside q, k, v and output: `sums` are never of 16 bits."""

    scores: int = 0
    sums: int = 0


def activation_bytes(
    model: Model,
    sequences: int,
    *,
    inside: int = 1,
    outside: int = 1,
    columns: int | None = None,
    tokens: int | None = None,
    kept: Kept | None = None,
) -> int:
    """Return what is kept between forward and backward of `sequences` sequences, the loss included."""
    units = unit_activation_bytes(
        model, sequences, inside=inside, outside=outside, columns=columns, tokens=tokens, kept=kept
    )
    return sum(size for _, size in units)


def unit_activation_bytes(
    model: Model,
    sequences: int,
    *,
    inside: int = 1,
    outside: int = 1,
    columns: int | None = None,
    tokens: int | None = None,
    kept: Kept | None = None,
) -> list[tuple[str, int]]:
    """Return the units in forward order with what each keeps; the last one's is that of the loss as well.

    A block keeps 16 n h elements, its scores and their sums (or these alone), and two numbers a token for
    each norm; the embedding keeps its tokens as 8-byte integers. Of the 16, 12 and the scores are of cut
    layers, over `inside` ranks; all else of a block and of the head's norm is over `outside`. A token has
    `columns` logits, without it all. A rank may have but `tokens` of each sequence, and its attention with
    all heads keep `kept` of it. In place of the 9 n h elements of an MLP a mixture keeps n h, 10 h
    for each place of its experts, and where the tokens go.
    """
    n = sequences * (model.sequence if tokens is None else tokens)
    h, item, wide = model.width, BYTES[model.dtype], wide_bytes(model.dtype)
    if kept is None:
        scores = scores_per_head(model.sequence) if model.keeps_scores else 0
        kept = Kept(scores=model.heads * scores, sums=model.heads * model.sequence)
    numbers = (12 * n * h + sequences * kept.scores) // inside + 4 * n * h // outside
    block = item * numbers + wide * (sequences * kept.sums // inside + 4 * n // outside)
    match model.kind:
        case "linear":
            return [("linear", item * sequences * (h + 1))]
        case "collectives":
            return [("collectives", item * sequences)]
        case "block":
            return [("block.0", block + item * (n * h // outside))]
        case "gpt" | "moe":
            mlp = item * (n * h // outside + 8 * n * h // inside)
            mixture = _mixture_bytes(model, sequences, n // sequences // outside, item) - mlp
            blocks = _blocks(model, block, mixture)
            logits = n * (model.vocabulary if columns is None else columns)
            head = item * (2 * n * h // outside + logits) + wide * (2 * n // outside)
            return [("embedding", 8 * n), *blocks, ("head", head)]


def _mixture_bytes(model: Model, sequences: int, tokens: int, item: int) -> int:
    """Return what the experts and the router of a block keep: numbers, 8-byte integers, truth values.

    That is for `tokens` of each sequence.
    """
    h, n, E = model.width, sequences * tokens, model.experts
    places, choices = sequences * E * room(model, model.sequence // tokens), n * model.top_k
    of_router = (n + sequences) * E + choices
    numbers = item * (n * h + 10 * places * h) + wide_bytes(model.dtype) * of_router
    return numbers + 17 * choices + 9 * places


def unit_put_off_bytes(
    model: Model,
    sequences: int,
    *,
    inside: int = 1,
    outside: int = 1,
    columns: int | None = None,
    tokens: int | None = None,
) -> list[tuple[str, int]]:
    """Return the units in forward order with what each keeps for weight gradients that are put off.

    That is the input of every matrix and the gradient of its output: 16 n h elements in a block, 12 of them
    of cut dims. The others are whole even where tensor ranks split the tokens: products need them all. Of a
    mixture it is the inputs of its experts and router and the gradients of their outputs, 10 h a place; its
    tokens are those of a rank outside of cut layers.
    """
    n = sequences * (model.sequence if tokens is None else tokens)
    h, item = model.width, BYTES[model.dtype]
    block = item * (12 * n * h // inside + 4 * n * h)
    match model.kind:
        case "linear":
            return [("linear", item * sequences * (h + 1))]
        case "collectives":
            return [("collectives", 0)]
        case "block":
            return [("block.0", block)]
        case "gpt" | "moe":
            mine = n // outside
            places = sequences * model.experts * room(model, model.sequence * sequences // mine)
            mlp = item * (8 * n * h // inside + 2 * n * h)
            mixture = item * (10 * places * h + mine * h) - mlp
            mixture += wide_bytes(model.dtype) * mine * model.experts
            blocks = _blocks(model, block, mixture)
            logits = model.vocabulary if columns is None else columns
            return [("embedding", 0), *blocks, ("head", item * n * (h + logits))]
