"""What a model costs, in closed form: parameters, multiplications, memory.

These formulas know nothing of the layers; tests hold the layers to them. h is the width, a the heads,
s the sequence, V the vocabulary, n = sequences s the tokens.
"""

from __future__ import annotations

from pscale.config import Model
from pscale.nn.attention import scores_per_head


def unit_parameters(model: Model) -> list[tuple[str, int]]:
    """Return the units in forward order with their numbers of parameters."""
    h = model.width
    block = 12 * h * h + 13 * h
    match model.kind:
        case "linear":
            return [("linear", h)]
        case "block":
            return [("block.0", block)]
        case "gpt":
            blocks = [(f"block.{index}", block) for index in range(model.layers)]
            embedding, head = (model.vocabulary + model.sequence) * h, 2 * h + h * model.vocabulary
            return [("embedding", embedding), *blocks, ("head", head)]


def parameters(model: Model) -> int:
    """Return the number of parameters; for `gpt` L (12 h^2 + 13 h) + 2 V h + s h + 2 h."""
    return sum(count for _, count in unit_parameters(model))


def model_flops(model: Model, sequences: int) -> int:
    """Return the FLOPs that one training step needs, 2 a multiply-add, backward twice forward.

    Matrix products only; attention exactly causal: a query meets (s + 1) / 2 keys on average.
    """
    return sum(flops for _, flops in unit_flops(model, sequences))


def unit_flops(model: Model, sequences: int = 1) -> list[tuple[str, int]]:
    """Return the units in forward order with their parts of `model_flops`; looking up needs none."""
    return _unit_flops(model, sequences, model.sequence * (model.sequence + 1) // 2)


def executed_flops(model: Model, sequences: int) -> int:
    """Return the FLOPs of the matrix products that one training step does.

    More than `model_flops` by the scores that are computed and masked. Sums and products with a vector
    are not counted.
    """
    return sum(flops for _, flops in _unit_flops(model, sequences, scores_per_head(model.sequence)))


def _unit_flops(model: Model, sequences: int, scores: int) -> list[tuple[str, int]]:
    """Return the FLOPs of a step, unit by unit, where each head computes `scores` scores of a sequence."""
    h, n = model.width, sequences * model.sequence
    block = 72 * n * h * h + 12 * sequences * scores * h
    match model.kind:
        case "linear":
            return [("linear", 6 * sequences * h)]
        case "block":
            return [("block.0", block)]
        case "gpt":
            blocks = [(f"block.{index}", block) for index in range(model.layers)]
            return [("embedding", 0), *blocks, ("head", 6 * n * h * model.vocabulary)]


def activation_bytes(model: Model, sequences: int) -> int:
    """Return what is kept between forward and backward of `sequences` sequences, the loss included."""
    return sum(size for _, size in unit_activation_bytes(model, sequences))


def unit_activation_bytes(model: Model, sequences: int) -> list[tuple[str, int]]:
    """Return the units in forward order with what each keeps; the last one's is that of the loss as well.

    A block keeps 16 n h elements, its scores and their sums, and two numbers a token for each norm; the
    embedding keeps its tokens as 8-byte integers.
    """
    h, n, item = model.width, sequences * model.sequence, 4 if model.dtype == "float32" else 8
    scores = sequences * model.heads * (scores_per_head(model.sequence) + model.sequence)
    block = 16 * n * h + scores + 4 * n
    match model.kind:
        case "linear":
            return [("linear", item * sequences * (h + 1))]
        case "block":
            return [("block.0", item * (block + n * h))]
        case "gpt":
            blocks = [(f"block.{index}", item * block) for index in range(model.layers)]
            head = item * (2 * n * h + 2 * n + n * model.vocabulary)
            return [("embedding", 8 * n), *blocks, ("head", head)]


def unit_put_off_bytes(model: Model, sequences: int) -> list[tuple[str, int]]:
    """Return the units in forward order with what each keeps for weight gradients that are put off.

    That is the input of every matrix and the gradient of its output: 7 and 9 n h elements in a block.
    """
    h, n, item = model.width, sequences * model.sequence, 4 if model.dtype == "float32" else 8
    match model.kind:
        case "linear":
            return [("linear", item * sequences * (h + 1))]
        case "block":
            return [("block.0", item * 16 * n * h)]
        case "gpt":
            blocks = [(f"block.{index}", item * 16 * n * h) for index in range(model.layers)]
            return [("embedding", 0), *blocks, ("head", item * n * (h + model.vocabulary))]
