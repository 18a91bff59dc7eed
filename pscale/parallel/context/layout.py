"""Which tokens of a sequence lie on which rank of the context axis, and whose keys a rank needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pscale.config.choices import Placement
from pscale.nn.buffers import Array
from pscale.nn.kernels.attention_block import AttentionBlock
from pscale.nn.param import share


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A sequence cut over the ranks of an axis.

    Contiguous: rank r of P has part r of P. Zigzag: chunks r and 2P - 1 - r of 2P, one early and one late, so
    that every rank has as many keys to meet as any other. Each part may be cut into slices of its own ranks.
    """

    sequence: int
    parts: int
    placement: Placement
    slices: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of one part."""
        return self.sequence // self.parts

    @property
    def chunks(self) -> int:
        """Into how many parts the sequence is cut before they are dealt out."""
        return self.parts * (2 if self.zigzag else 1)

    @property
    def zigzag(self) -> bool:
        """Whether a rank has two runs of tokens."""
        return self.placement == "zigzag" and self.parts > 1

    def runs(self, rank: int) -> tuple[slice, ...]:
        """Return the positions of the rank's tokens, in order."""
        size = self.tokens // 2 if self.zigzag else self.tokens
        part, which = divmod(rank, self.slices)
        numbers = (part, 2 * self.parts - 1 - part) if self.zigzag else (part,)
        runs = [slice(number * size, (number + 1) * size) for number in numbers]
        return tuple(runs_of(runs, self.slices, which))

    def piece(self, rank: int, source: int) -> AttentionBlock | None:
        """Return which queries of `rank` meet which keys of `source`; None if all of those are later.

        Runs are of one size and cut at the same places, so one run is before another as a whole.
        """
        every = slice(0, self.tokens)
        if source == rank:
            return AttentionBlock(queries=every, keys=every, causal=True)
        if not self.zigzag:
            return AttentionBlock(queries=every, keys=every) if source < rank else None
        half = self.tokens // 2
        if source < rank:
            return AttentionBlock(queries=every, keys=slice(0, half))
        return AttentionBlock(queries=slice(half, self.tokens), keys=every)

    def pieces(self, rank: int) -> list[AttentionBlock | None]:
        """Return the pieces of `rank` with its own keys, those of the rank before it, and so on round."""
        return [self.piece(rank, (rank - step) % self.parts) for step in range(self.parts)]

    def matching(self, whole: Array, parts: Array) -> Iterator[tuple[Array, Array]]:
        """Yield matching views of `whole` (B, T, ...), in natural order, and `parts` (P, B, T/P, ...)."""
        B, P = len(whole), self.parts
        runs = 2 if self.zigzag else 1
        size, rest = self.tokens // runs, whole.shape[2:]
        chunks = whole.reshape(B, P * runs, size, *rest).swapaxes(0, 1)
        of_ranks = parts.reshape(P, B, runs, size, *rest)
        yield chunks[:P], of_ranks[:, :, 0]
        if self.zigzag:
            yield chunks[: P - 1 : -1], of_ranks[:, :, 1]


def runs_of(runs: Sequence[slice], parts: int, part: int) -> list[slice]:
    """Return which positions part `part` of `parts` equal ones has of those in `runs`."""
    mine = share(sum(run.stop - run.start for run in runs), parts, part)
    found, start = [], 0
    for run in runs:
        offset = run.start - start
        first, last = max(mine.start + offset, run.start), min(mine.stop + offset, run.stop)
        if first < last:
            found.append(slice(first, last))
        start += run.stop - run.start
    return found
