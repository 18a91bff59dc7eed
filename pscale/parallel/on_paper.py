"""The pool of one rank after a step on paper: the one place that chooses who rehearses it."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.config import Case
from pscale.nn.paper import Paper
from pscale.parallel import division
from pscale.parallel.matrix.rehearsal import MatrixUnits
from pscale.parallel.rehearsal.rank import Rank
from pscale.parallel.rehearsal.units import Units


@dataclass(frozen=True, kw_only=True)
class OfStep:
    """What the pool of activations ever took, and what of it was for exchanges; later steps take no more.

    `moved_bytes` left it for a file, and came back; at most `file_bytes` of that were away at once.
    """

    total_bytes: int
    exchange_bytes: int
    moved_bytes: int
    file_bytes: int


def on_paper(case: Case, rank: int) -> OfStep:
    """Rehearse a step of `rank`."""
    paper = Paper(division.item_bytes(case))
    units = (MatrixUnits if case.plan.matrix.ranks > 1 else Units)(case, rank, paper)
    made = Rank(units)
    made.step()
    return OfStep(
        total_bytes=paper.total_bytes,
        exchange_bytes=paper.exchange_bytes,
        moved_bytes=made.away.moved_bytes if made.away else 0,
        file_bytes=made.away.room.size_bytes if made.away else 0,
    )
