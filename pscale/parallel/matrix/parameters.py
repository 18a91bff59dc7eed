"""Which parameters a rank of the grid holds, in closed form."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.config import Case
from pscale.parallel.matrix.grid import Spread, count, scheme_of

Piece = tuple[tuple[str, ...], tuple[str, ...], int]


def pieces(name: str, case: Case) -> Iterator[Piece]:
    """Yield a unit's parameters: dims of the grid that split their tokens, dims that cut them, how many."""
    model, h, sizes, scheme = case.model, case.model.width, case.plan.sizes, scheme_of(case.plan)

    def lying(spread: Spread, seen: tuple[str, ...], whole: int) -> Piece:
        seen = tuple(dim for dim in seen if dim not in spread.dims)
        return seen, spread.dims, whole // count(spread.dims, sizes)

    def vectors(spread: Spread, whole: int) -> Piece:
        return lying(Spread(columns=spread.columns), spread.rows, whole)

    match name.partition(".")[0]:
        case "embedding":
            yield lying(scheme.table, scheme.outside.rows, h * model.vocabulary)
            yield lying(scheme.positions, scheme.outside.rows, h * model.sequence)
        case "block":
            yield vectors(scheme.outside, 6 * h)
            yield lying(scheme.into, scheme.outside.rows, 7 * h * h)
            yield vectors(scheme.inside, 7 * h)
            yield lying(scheme.out_of, scheme.inside.rows, 5 * h * h)
        case "head":
            yield vectors(scheme.outside, 2 * h)
            yield lying(scheme.into, scheme.outside.rows, h * model.vocabulary)
