"""What is kept between forward and backward, in closed form, from the counts of the literature.

These formulas know nothing of the layers; tests hold the layers, and dry runs, to them.
"""

import math
from dataclasses import dataclass

from pscale.mesh.dry import DryMesh
from pscale.nn import counts
from pscale.nn.counts import _blocks
from pscale.nn.dtypes import BYTES
from pscale.nn.kernels.attention_block import scores_per_head
from pscale.nn.param import share
from pscale.nn.routing import room
from pscale.parallel import pipeline
from pscale.parallel.context.form import form_of, score_pieces
from pscale.parallel.matrix.grid import count, scheme_of
from pscale.parallel.recompute import stage_segments


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Numbers that attention keeps of a sequence, beside q, k, v and output: `sums` are never of 16 bits."""

    scores: int = 0
    sums: int = 0


def activation_bytes(model, sequences, *, inside=1, outside=1, columns=None, tokens=None, kept=None):
    """Return what is kept between forward and backward of `sequences` sequences, the loss included."""
    units = unit_activation_bytes(
        model, sequences, inside=inside, outside=outside, columns=columns, tokens=tokens, kept=kept
    )
    turns = max(4, BYTES[model.dtype]) * (tokens or model.sequence) * model.width // model.heads
    return sum(size for _, size in units) + turns * (model.positions == "rope")


def unit_activation_bytes(model, sequences, *, inside=1, outside=1, columns=None, tokens=None, kept=None):
    """Return the units in forward order with what each keeps; the last one's is that of the loss as well.

    A block keeps 16 n h elements, its scores and their sums (or these alone), and two numbers a token for
    each norm, of RMSNorm one; the embedding keeps its tokens as 8-byte integers. Of the 16, 12 (8 of them in
    an MLP of two matrices, four times as wide) and the scores are of cut layers, over `inside` ranks; all
    else of a block and of the head's norm is over `outside`. A token has `columns` logits, without it all. A
    rank may have but `tokens` of each sequence, and its attention with all heads keep `kept` of it. In place
    of the 9 n h elements of an MLP a mixture keeps n h, 10 h for each place of its experts, and where the
    tokens go.
    """
    n = sequences * (model.sequence if tokens is None else tokens)
    h, item, wide = model.width, BYTES[model.dtype], max(4, BYTES[model.dtype])
    if kept is None:
        scores = scores_per_head(model.sequence) if model.keeps_scores else 0
        kept = Kept(scores=model.heads * scores, sums=model.heads * model.sequence)
    mlp, norm = mlp_numbers(model), 2 if model.norm == "layernorm" else 1
    attention = 2 * (h + model.key_width)  # q, k, v and the output
    numbers = (n * (attention + mlp) + sequences * kept.scores) // inside + 4 * n * h // outside
    block = item * numbers + wide * (sequences * kept.sums // inside + 2 * norm * n // outside)
    match model.kind:
        case "linear":
            return [("linear", item * sequences * (h + 1))]
        case "collectives":
            return [("collectives", item * sequences)]
        case "block":
            return [("block.0", block + item * (n * h // outside))]
        case "gpt" | "moe":
            mlp = item * (n * h // outside + n * mlp // inside)
            mixture = _mixture_bytes(model, sequences, n // sequences // outside, item) - mlp
            blocks = _blocks(model, block, mixture)
            logits = n * (model.vocabulary if columns is None else columns)
            head = item * (2 * n * h // outside + logits) + wide * (norm * n // outside)
            return [("embedding", 8 * n), *blocks, ("head", head)]


def mlp_numbers(model):
    """Return what an MLP keeps of a token: derivatives of its activation, and what that gives."""
    return (model.mlp_parts + 1) * model.mlp_features


def _mixture_bytes(model, sequences, tokens, item):
    """Return what the experts and the router of a block keep: numbers, 8-byte integers, truth values.

    That is for `tokens` of each sequence.
    """
    h, n, E = model.width, sequences * tokens, model.experts
    places, choices = sequences * E * room(model, model.sequence // tokens), n * model.top_k
    of_router = (n + sequences) * E + choices
    numbers = item * (n * h + places * (2 * h + mlp_numbers(model))) + max(4, BYTES[model.dtype]) * of_router
    return numbers + 17 * choices + 9 * places


def unit_put_off_bytes(model, sequences, *, inside=1, outside=1, columns=None, tokens=None):
    """Return the units in forward order with what each keeps for weight gradients that are deferred.

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
            mixture += max(4, BYTES[model.dtype]) * mine * model.experts
            blocks = _blocks(model, block, mixture)
            logits = model.vocabulary if columns is None else columns
            return [("embedding", 0), *blocks, ("head", item * n * (h + logits))]


def kept_numbers(case, rank):
    """Return how many numbers the attention of one layer keeps of one sequence, beside q, k, v and output.

    Scores, if they are kept, and what belongs to each query; where heads are dealt out also the output of a
    rank's, which the next layer keeps as that of its tokens. Of all heads: tensor ranks have their share.
    """
    model, plan = case.model, case.plan
    parts = form_of(plan.context).head_parts(plan)
    heads, tokens = model.heads // parts, model.sequence // plan.cp
    output = model.width * tokens if parts > 1 else 0
    if not model.keeps_scores:
        return Kept(scores=output, sums=heads * tokens * parts)
    pieces = score_pieces(case, DryMesh(plan.sizes, rank, print).axis("cp").rank)
    return Kept(
        scores=heads * sum(piece.scores(kept=True) for piece in pieces) + output,
        sums=heads * sum(piece.size[0] for piece in pieces),
    )


def unit_grid_bytes(case):
    """Return the units in forward order with what each keeps for the backward of a micro-batch.

    Of the 16 n h elements of a block 12 are inside of pairs of products, as the scores are; norms keep two
    numbers for each row outside.
    """
    model, sizes, scheme = case.model, case.plan.sizes, scheme_of(case.plan)
    sequences, item, h = micro_batch(case), BYTES[model.dtype], model.width
    wide = max(4, BYTES[model.dtype])
    n = sequences * model.sequence
    per_head = scores_per_head(model.sequence) if model.keeps_scores else 0
    kept_heads = sequences * model.heads * (case.plan.checkpoint != "selective")
    inside, outside = count(scheme.inside.axes, sizes), count(scheme.outside.axes, sizes)
    rows = n // count(scheme.outside.rows, sizes)
    sums = kept_heads * model.sequence // inside + 4 * rows
    block = 12 * n * h // inside + kept_heads * per_head // inside + 4 * n * h // outside
    kept = {
        "embedding": 8 * n // count(scheme.looked_up, sizes),
        "block": item * (block + (n * h // outside if model.kind == "block" else 0)) + wide * sums,
        "head": item * (2 * n * h // outside + n * model.vocabulary // inside) + wide * 2 * rows,
    }
    return [(name, kept.get(name.partition(".")[0], 0)) for name, _ in counts.unit_parameters(model)]


def peak(actions, kept, put_off=lambda _: 0):
    """Return the most that is held at once.

    A forward of part p holds kept(p) until its backward; an `input` holds put_off(p) until its `weight`.
    """
    most = held = 0
    for action in actions:
        match action.kind:
            case "forward":
                held += kept(action.part)
            case "backward":
                held -= kept(action.part)
            case "input":
                held += put_off(action.part) - kept(action.part)
            case "weight":
                held -= put_off(action.part)
        most = max(most, held)
    return most


def micro_batch(case):
    """Return the sequences of a micro-batch of a replica."""
    return case.train.batch // case.plan.batch_parts // case.train.micro_batches


def message_bytes(case):
    """Return the size of a message to the next stage: this rank's b s h activations of a micro-batch."""
    shape = pipeline.activation_shape(case.model, case.plan, micro_batch(case))
    return math.prod(shape) * BYTES[case.model.dtype]


def kept_bytes(case, rank):
    """Predict the most that `rank` keeps for backward passes to come, of all micro-batches under way.

    In closed form, from the literature's counts: a part of the activations, which the pool also has.
    """
    model, plan, mesh = case.model, case.plan, DryMesh(case.plan.sizes, rank, print)
    stage, mine = mesh.axis("pp").rank, share(model.vocabulary, plan.tp, mesh.axis("tp").rank)
    sequences, columns = micro_batch(case), mine.stop - mine.start
    tokens, outside = model.sequence // plan.cp, plan.tp if plan.sp else 1
    kept = (
        unit_grid_bytes(case)
        if plan.matrix.ranks > 1
        else unit_activation_bytes(
            model,
            sequences,
            inside=plan.tp,
            outside=outside,
            columns=columns,
            tokens=tokens,
            kept=Kept() if plan.checkpoint == "selective" else kept_numbers(case, rank),
        )
    )
    put_off = unit_put_off_bytes(
        model, sequences, inside=plan.tp, outside=outside, columns=columns, tokens=tokens
    )
    parts, slice_ = stage_segments(case, stage), message_bytes(case)

    def of_segment(segment):
        return slice_ if segment.recomputed else kept[segment.units[0]][1]

    return peak(
        pipeline.timetable(plan, case.train.micro_batches).actions(stage),
        kept=lambda part: sum(map(of_segment, parts[part])),
        put_off=lambda part: sum(put_off[unit][1] for segment in parts[part] for unit in segment.units),
    )
