"""What a model costs, in closed form: parameters and multiplications.

These formulas know nothing of the layers; tests hold the layers to them. h is the width, a the heads,
s the sequence, V the vocabulary, n = sequences s the tokens; E the experts of a block, k those of a token.
"""

from __future__ import annotations

from pscale.config import Model
from pscale.nn.kernels.attention_block import scores_per_head
from pscale.nn.routing import capacity, has_experts, room


def unit_parameters(model: Model) -> list[tuple[str, int]]:
    """Return the units in forward order with their numbers of parameters; a tied table is in two."""
    h = model.width
    norm = h * (1 + has_shifts(model))
    mlp = mlp_weights(model) + model.bias * (model.mlp_parts * model.mlp_features + h)
    block = attention_weights(model) + model.bias * 2 * (h + model.key_width) + mlp + 2 * norm
    match model.kind:
        case "linear":
            return [("linear", h)]
        case "collectives":
            return [("collectives", 0)]
        case "block":
            return [("block.0", block)]
        case "gpt" | "moe":
            blocks = _blocks(model, block, model.experts * (mlp + h) - mlp)
            positions = model.sequence * (model.positions == "learned")
            embedding, head = (model.vocabulary + positions) * h, norm + h * model.vocabulary
            return [("embedding", embedding), *blocks, ("head", head)]


def has_shifts(model: Model) -> bool:
    """Tell whether norms have a bias beside their gain."""
    return model.bias and model.norm == "layernorm"


def attention_weights(model: Model) -> int:
    """Return the elements of the matrices of attention: 4 h^2, less with fewer heads of keys."""
    return 2 * model.width * (model.width + model.key_width)


def mlp_weights(model: Model) -> int:
    """Return the elements of the matrices of an MLP, or of an expert: 8 h^2 of the usual one."""
    return (model.mlp_parts + 1) * model.width * model.mlp_features


def parameters(model: Model) -> int:
    """Return the number of parameters; for `gpt` L (12 h^2 + 13 h) + 2 V h + s h + 2 h."""
    units = sum(count for _, count in unit_parameters(model))
    return units - model.tied * model.vocabulary * model.width


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
    mlp = mlp_weights(model)
    block = 6 * n * (attention_weights(model) + mlp) + 2 * sequences * scores * h
    match model.kind:
        case "linear":
            return [("linear", 6 * sequences * h)]
        case "collectives":
            return [("collectives", 0)]
        case "block":
            return [("block.0", block)]
        case "gpt" | "moe":
            mixture = 6 * (sequences * visits * mlp + n * h * model.experts)
            blocks = _blocks(model, block, copies * mixture - 6 * n * mlp)
            return [("embedding", 0), *blocks, ("head", 6 * n * h * model.vocabulary)]


def _blocks(model: Model, dense: int, beyond: int) -> list[tuple[str, int]]:
    """Return the blocks with a number each: `dense`, and `beyond` that for one with experts."""
    return [(f"block.{index}", dense + beyond * has_experts(model, index)) for index in range(model.layers)]
