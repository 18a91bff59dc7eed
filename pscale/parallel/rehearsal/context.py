"""Context parallelism on paper: what attention over split sequences takes from the pool and gives back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pscale.config import Case
from pscale.nn import rehearsal as nn
from pscale.nn.kernels.piece import Piece, scores_per_head
from pscale.nn.paper import Paper, Sheet
from pscale.nn.rehearsal import Heads, Step
from pscale.parallel.layout import layout_of

_Cache = tuple[Sheet, Sheet, list[Sheet]]


def attention(case: Case, place: int, paper: Paper, sizes: Heads) -> Step:
    """Return what stands for the attention of the rank at `place` of the context axis."""
    layout, plan = layout_of(case.model, case.plan), case.plan
    if plan.context == "ulysses":
        whole = replace(sizes, tokens=case.model.sequence, heads=sizes.heads // plan.cp)
        scores = scores_per_head(whole.tokens) if case.model.keeps_scores else None
        inner: Step = nn.Attention(paper, whole, scores)
        if plan.checkpoint == "selective":
            inner = nn.Recomputed(paper, inner)
        return Ulysses(paper, whole, inner)
    made = Ring if plan.context == "ring" else Gathered
    return made(paper, sizes, layout.pieces(place), keeps_scores=case.model.keeps_scores)


class Ulysses:
    """Tokens for heads, and back, around attention of whole sequences."""

    def __init__(self, paper: Paper, sizes: Heads, inner: Step):
        self.paper, self.sizes, self.inner = paper, sizes, inner

    def forward(self, qkv: Sheet) -> tuple[Sheet, Any]:
        """Exchange q, k and v, then the output."""
        y, cache = self.inner.forward(self._exchanged(qkv, 3))
        return self._exchanged(y, 1), cache

    def backward(self, dy: Sheet, cache: Any) -> Sheet:
        """Exchange gradients."""
        return self._exchanged(self.inner.backward(self._exchanged(dy, 1), cache), 3)

    def _exchanged(self, x: Sheet, kinds: int) -> Sheet:
        paper, size = self.paper, kinds * self.sizes.output
        parts = paper.take_exchange(size)
        paper.give(x)
        received = paper.take_exchange(size)
        paper.give(parts)
        y = paper.take(size)
        paper.give(received)
        return y


class _Online:
    """Attention whose keys come in pieces, own first; those that have come lie in some sheet."""

    def __init__(self, paper: Paper, sizes: Heads, pieces: Sequence[Piece | None], *, keeps_scores: bool):
        self.paper, self.sizes, self.pieces, self.keeps_scores = paper, sizes, pieces, keeps_scores
        self.keys = 2 * sizes.output  # elements of keys and values of a rank

    def forward(self, qkv: Sheet) -> tuple[Sheet, _Cache]:
        """Keep exponentials and factors of every piece, or levels alone."""
        paper, sizes = self.paper, self.sizes
        y, level, total = (paper.take(size, paper.wide) for size in (sizes.output, *[sizes.queries] * 2))
        kept = [sheet for piece in self._arriving() for sheet in self._met(piece)]
        if self.keeps_scores:
            paper.give(level)
        else:
            kept = [level]
        paper.give(total)
        y = paper.round(y)
        paper.share(y)
        return y, (qkv, y, kept)

    def _arriving(self) -> Iterator[Piece | None]:
        """Yield the pieces while their keys are here."""
        raise NotImplementedError

    def _met(self, piece: Piece | None) -> tuple[Sheet, ...]:
        """Return what is kept of a piece alone."""
        if piece is None or not self.keeps_scores:
            return ()
        heads, paper = self.sizes.sequences * self.sizes.heads, self.paper
        scores = paper.take(heads * piece.scores(kept=True))
        return scores, paper.take(heads * piece.size[0], paper.wide)

    def _finished(self, dy: Sheet, cache: _Cache, dqkv: Sheet) -> Sheet:
        qkv, y, kept = cache
        self.paper.give(dy, qkv, y, *kept)
        return dqkv


class Ring(_Online):
    """Keys and values travel round, one hop ahead of their use."""

    def backward(self, dy: Sheet, cache: _Cache) -> Sheet:
        """Let gradients travel one hop behind, and home."""
        paper = self.paper
        dqkv = paper.take(3 * self.sizes.output)
        leaving = arriving = None
        for piece in self._arriving():
            mine = None
            if piece is not None:
                mine = paper.take_exchange(self.keys)
            if leaving is None or arriving is None:
                assert mine is not None, "the first keys are the rank's own"
                leaving = mine
            else:
                paper.give(leaving, *([mine] if mine else []))
                leaving = arriving
            arriving = paper.take_exchange(self.keys)
        assert leaving is not None
        assert arriving is not None
        paper.give(leaving, arriving)
        return self._finished(dy, cache, dqkv)

    def _arriving(self) -> Iterator[Piece | None]:
        here = self.paper.take_exchange(self.keys)
        for piece in self.pieces[:-1]:
            following = self.paper.take_exchange(self.keys)
            yield piece
            self.paper.give(here)
            here = following
        yield self.pieces[-1]
        self.paper.give(here)


class Gathered(_Online):
    """All keys and values come at once."""

    def backward(self, dy: Sheet, cache: _Cache) -> Sheet:
        """Compute the gradients of all keys and keep one's own sum."""
        dqkv = self.paper.take(3 * self.sizes.output)
        whole = self.paper.take_exchange(len(self.pieces) * self.keys)
        for _ in self._arriving():
            pass
        self.paper.give(whole, self.paper.take_exchange(self.keys))
        return self._finished(dy, cache, dqkv)

    def _arriving(self) -> Iterator[Piece | None]:
        mine = self.paper.take_exchange(self.keys)
        every = self.paper.take_exchange(len(self.pieces) * self.keys)
        yield from self.pieces
        self.paper.give(mine, every)
