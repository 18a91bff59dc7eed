"""What a form of context parallelism declares: its attention, and who shares heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

from pscale.config import Case, Model, Plan
from pscale.config.choices import Context
from pscale.mesh.axis import Axis, Mesh
from pscale.nn.attention import NO_DROPOUT, Attention, ScoreDropout
from pscale.nn.buffers import Buffers
from pscale.nn.kernels.attention_block import AttentionBlock
from pscale.nn.layer import Layer, Recomputed
from pscale.parallel.constraints import Constraint, Divides
from pscale.parallel.context.layout import Layout


@dataclass(frozen=True, kw_only=True)
class AttentionShare:
    """What a rank has of the attention of a layer: `heads` of keys, and the tokens that `layout` gives it.

    Each has `queries` heads of queries. Where it is `recomputed`, q, k and v alone are kept.
    """

    heads: int
    keeps_scores: bool
    mesh: Mesh
    layout: Layout
    buffers: Buffers
    queries: int = 1
    dropout: ScoreDropout = NO_DROPOUT
    recomputed: bool = False
    over: str = "cp"

    @property
    def axis(self) -> Axis:
        """The ranks that have the other keys, or the other heads."""
        return self.mesh.axis(self.over)

    def of_heads(self, part: int, parts: int) -> AttentionShare:
        """Return one of equal parts of the heads."""
        heads = self.heads // parts
        return replace(
            self, heads=heads, dropout=replace(self.dropout, first=self.dropout.first + part * heads)
        )

    def of_whole_sequences(self) -> Layer:
        """Return the attention of one rank that has all tokens."""
        return self.kept(
            Attention(
                self.heads,
                self.queries,
                keeps_scores=self.keeps_scores,
                buffers=self.buffers,
                dropout=self.dropout,
            )
        )

    def kept(self, layer: Layer) -> Layer:
        """Return `layer`, which keeps what backward needs or computes it again."""
        return Recomputed(layer) if self.recomputed else layer


@dataclass(frozen=True, kw_only=True)
class Form:
    """A way to attend to sequences that are cut over ranks."""

    attention: Callable[[AttentionShare], Layer]
    heads_over: str | None = None  # the degree, in a plan, of the ranks over which heads are dealt out
    constraints: Sequence[Constraint] = ()

    def head_parts(self, plan: Plan) -> int:
        """Return over how many ranks heads are dealt out."""
        parts: int = getattr(plan, self.heads_over) if self.heads_over and plan.cp > 1 else 1
        return max(parts, 1)


def distributes_heads(*axes: str) -> Sequence[Constraint]:
    """Return the constraints of a form that deals heads out over the product of axes."""
    return (
        Divides("heads", *axes, ways="heads, context; heads with width"),
        Divides("kv_heads", *axes, ways="kv_heads, context"),
    )


@cache
def form_of(context: Context) -> Form:
    """Return what the file of that name declares; the others are not loaded."""
    form: Form = import_module(f"pscale.parallel.context.{context.replace('-', '_')}").FORM
    return form


def attention(share: AttentionShare, context: Context) -> Layer:
    """Return the attention of a rank."""
    if share.axis.size == 1:
        return share.of_whole_sequences()
    return form_of(context).attention(share)


def layout_of(model: Model, plan: Plan) -> Layout:
    """Return how the plan cuts the sequences of the model."""
    parts = form_of(plan.context).head_parts(plan)
    slices = parts if parts < plan.cp else 1  # of a part whose keys and values travel as one
    return Layout(sequence=model.sequence, parts=plan.cp // slices, placement=plan.placement, slices=slices)


def score_pieces(case: Case, rank: int) -> list[AttentionBlock]:
    """Return the pieces of scores of each head that `rank` has, of those that exchange keys."""
    plan = case.plan
    parts = plan.cp // form_of(plan.context).head_parts(plan)
    layout = Layout(sequence=case.model.sequence, parts=parts, placement=plan.placement)
    return [piece for piece in layout.pieces(rank // (plan.cp // parts)) if piece is not None]


def computed_scores(case: Case) -> int:
    """Return how many scores of one head and sequence all ranks together compute in forward."""
    parts = form_of(case.plan.context).head_parts(case.plan)
    met = (piece for rank in range(0, case.plan.cp, parts) for piece in score_pieces(case, rank))
    return sum(piece.scores(kept=case.model.keeps_scores) for piece in met)
