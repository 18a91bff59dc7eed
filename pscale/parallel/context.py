"""Context parallelism: every sequence cut over the ranks of an axis; what it needs, costs and keeps."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Case
from pscale.config.choices import Context
from pscale.errors import PlanError
from pscale.mesh.axis import Axis
from pscale.mesh.grid import coordinates
from pscale.nn.attention import Attention
from pscale.nn.buffers import Buffers
from pscale.nn.checkpoint import Recomputed
from pscale.nn.counts import Kept
from pscale.nn.kernels.piece import scores_per_head
from pscale.nn.layer import Layer
from pscale.parallel import division, fitting
from pscale.parallel.gathered import GatheredAttention
from pscale.parallel.layout import Layout, equal_parts, layout_of
from pscale.parallel.replicas import Call
from pscale.parallel.ring import RingAttention
from pscale.parallel.ulysses import UlyssesAttention


def attention(
    heads: int,
    *,
    keeps_scores: bool,
    kind: Context,
    axis: Axis,
    layout: Layout,
    buffers: Buffers,
    recomputed: bool = False,
) -> Layer:
    """Return the attention of a rank with `heads` heads and the tokens that `layout` gives it.

    Where it is `recomputed`, q, k and v alone are kept: of its tokens or, with ulysses, of its heads.
    """

    def again(layer: Layer) -> Layer:
        return Recomputed(layer, buffers=buffers) if recomputed else layer

    def of_whole_sequences(heads: int) -> Layer:
        return again(Attention(heads, keeps_scores=keeps_scores, buffers=buffers))

    if axis.size == 1:
        return of_whole_sequences(heads)
    if kind == "ulysses":
        inner = of_whole_sequences(heads // axis.size)
        return UlyssesAttention(inner, axis=axis, layout=layout, buffers=buffers)
    made = RingAttention if kind == "ring" else GatheredAttention
    return again(made(heads, keeps_scores=keeps_scores, axis=axis, layout=layout, buffers=buffers))


def check(case: Case) -> None:
    """Raise PlanError if the sequence, or for ulysses the heads, cannot be dealt out evenly."""
    model, plan = case.model, case.plan
    if plan.cp == 1:
        return
    if model.kind == "linear":
        raise PlanError(
            f"cp {plan.cp} cuts sequences, and model.kind 'linear' has none; cp 1 with dp rest works"
        )
    zigzag = plan.placement == "zigzag"
    chunks = 2 * plan.cp if zigzag else plan.cp
    if model.sequence % chunks:
        split = f"the {chunks} chunks of cp {plan.cp} placed in zigzag" if zigzag else f"cp {plan.cp}"
        hint = "; placement contiguous would do" if model.sequence % plan.cp == 0 else ""
        raise PlanError(
            f"sequence {model.sequence} does not divide by {split}; "
            f"sequence {fitting.multiples(model.sequence, equal_parts(plan))} would{hint}"
        )
    if plan.context == "ulysses" and model.heads // plan.tp % plan.cp:
        parts = division.head_parts(plan)
        split = f"cp {plan.cp}" if plan.tp == 1 else f"tp {plan.tp} × cp {plan.cp} = {parts}"
        raise PlanError(
            f"heads {model.heads} does not divide by {split}, over which context ulysses deals them out; "
            f"{fitting.heads(model, parts)} would, as would context ring or all-gather"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that `rank` makes in one step.

    With n = 2 n0/P bytes of keys and values: ring sends n P - 1 times forward and 2P - 1 times backward;
    all-gather hands n to a gathering in each direction and P n to a reduce-scatter backward; ulysses hands
    3 n0/P and n0/P to an all-to-all each way.
    """
    plan = case.plan
    if plan.cp == 1:
        return []
    layers = sum(name.startswith("block.") for name in division.units(case, rank))
    one = _rank_bytes(case)
    backward = {
        "ring": [("send", 2 * one, 2 * plan.cp - 1), ("receive", 0, 2 * plan.cp - 1)],
        "all-gather": [("all_gather", 2 * one, 1), ("reduce_scatter", 2 * one * plan.cp, 1)],
        "ulysses": [("all_to_all", 3 * one, 1), ("all_to_all", one, 1)],
    }[plan.context]
    return division.per_step(case, [*forward_calls(case, layers), *_made(backward, layers)])


def forward_calls(case: Case, layers: int) -> list[Call]:
    """Predict the calls of the forward passes of `layers` layers and one micro-batch."""
    one, hops = _rank_bytes(case), case.plan.cp - 1
    forward = {
        "ring": [("send", 2 * one, hops), ("receive", 0, hops)],
        "all-gather": [("all_gather", 2 * one, 1)],
        "ulysses": [("all_to_all", 3 * one, 1), ("all_to_all", one, 1)],
    }[case.plan.context]
    return _made(forward, layers) if hops else []


def _made(calls: Sequence[tuple[str, int, int]], layers: int) -> list[Call]:
    return [Call(axis="cp", verb=verb, sent_bytes=size, count=count * layers) for verb, size, count in calls]


def kept_numbers(case: Case, rank: int) -> Kept:
    """Return how many numbers the attention of one layer keeps of one sequence, beside q, k, v and output.

    Scores, if they are kept, and what belongs to each query; Ulysses also the output of its heads, which the
    next layer keeps as that of its tokens. Of all heads: tensor ranks have their share of it.
    """
    model, plan, layout = case.model, case.plan, layout_of(case.model, case.plan)
    if plan.cp == 1 or plan.context == "ulysses":
        output = model.width * layout.tokens if plan.cp > 1 else 0
        scores = scores_per_head(model.sequence) if model.keeps_scores else 0
        heads = model.heads // plan.cp
        return Kept(scores=heads * scores + output, sums=heads * model.sequence)
    if not model.keeps_scores:
        return Kept(sums=model.heads * layout.tokens)
    pieces = [piece for piece in layout.pieces(coordinates(plan.sizes, rank)["cp"]) if piece is not None]
    return Kept(
        scores=model.heads * sum(piece.scores(kept=True) for piece in pieces),
        sums=model.heads * sum(piece.size[0] for piece in pieces),
    )


def computed_scores(case: Case) -> int:
    """Return how many scores of one head and sequence all ranks together compute in forward."""
    model, plan = case.model, case.plan
    if plan.cp == 1 or plan.context == "ulysses":
        return scores_per_head(model.sequence, kept=model.keeps_scores)
    layout = layout_of(model, plan)
    pieces = (piece for rank in range(plan.cp) for piece in layout.pieces(rank))
    return sum(piece.scores(kept=model.keeps_scores) for piece in pieces if piece is not None)


def _rank_bytes(case: Case) -> int:
    """Return the bytes of q, or k, or v, of this rank's tokens and heads, in a micro-batch."""
    return division.activation_bytes(case) // case.plan.tp
