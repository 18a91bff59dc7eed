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


def activation_bytes(
    model: Model, sequences: int, *, inside: int = 1, outside: int = 1, columns: int | None = None
) -> int:
    """Return what is kept between forward and backward of `sequences` sequences, the loss included."""
    units = unit_activation_bytes(model, sequences, inside=inside, outside=outside, columns=columns)
    return sum(size for _, size in units)


def unit_activation_bytes(
    model: Model, sequences: int, *, inside: int = 1, outside: int = 1, columns: int | None = None
) -> list[tuple[str, int]]:
    """Return the units in forward order with what each keeps; the last one's is that of the loss as well.

    A block keeps 16 n h elements, its scores and their sums, and two numbers a token for each norm; the
    embedding keeps its tokens as 8-byte integers. Of the 16, 12 and the scores are of cut layers, over
    `inside` ranks; all else of a block and of the head's norm is over `outside`. `columns` are the logits of
    a token, without it all.
    """
    h, n, item = model.width, sequences * model.sequence, 4 if model.dtype == "float32" else 8
    scores = sequences * model.heads * (scores_per_head(model.sequence) + model.sequence)
    block = (12 * n * h + scores) // inside + (4 * n * h + 4 * n) // outside
    match model.kind:
        case "linear":
            return [("linear", item * sequences * (h + 1))]
        case "block":
            return [("block.0", item * (block + n * h // outside))]
        case "gpt":
            blocks = [(f"block.{index}", item * block) for index in range(model.layers)]
            logits = n * (model.vocabulary if columns is None else columns)
            head = item * ((2 * n * h + 2 * n) // outside + logits)
            return [("embedding", 8 * n), *blocks, ("head", head)]


def unit_put_off_bytes(
    model: Model, sequences: int, *, inside: int = 1, columns: int | None = None
) -> list[tuple[str, int]]:
    """Return the units in forward order with what each keeps for weight gradients that are put off.

    That is the input of every matrix and the gradient of its output: 16 n h elements in a block, 12 of them
    of cut dims. The others are whole even where tensor ranks split the tokens: products need them all.
    """
    h, n, item = model.width, sequences * model.sequence, 4 if model.dtype == "float32" else 8
    block = item * (12 * n * h // inside + 4 * n * h)
    match model.kind:
        case "linear":
            return [("linear", item * sequences * (h + 1))]
        case "block":
            return [("block.0", block)]
        case "gpt":
            blocks = [(f"block.{index}", block) for index in range(model.layers)]
            logits = model.vocabulary if columns is None else columns
            return [("embedding", 0), *blocks, ("head", item * n * (h + logits))]
