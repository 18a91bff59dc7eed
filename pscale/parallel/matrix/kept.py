"""What a rank of the grid keeps between forward and backward, in closed form."""

from __future__ import annotations

from pscale.config import Case
from pscale.nn import counts
from pscale.nn.kernels.piece import scores_per_head
from pscale.number import wide_bytes
from pscale.parallel import division
from pscale.parallel.matrix.grid import count, scheme_of


def unit_activation_bytes(case: Case) -> list[tuple[str, int]]:
    """Return the units in forward order with what each keeps for the backward of a micro-batch.

    Of the 16 n h elements of a block 12 are inside of pairs of products, as the scores are; norms keep two
    numbers for each row outside.
    """
    model, sizes, scheme = case.model, case.plan.sizes, scheme_of(case.plan)
    sequences, item, h = division.sequences(case), division.item_bytes(case), model.width
    wide = wide_bytes(model.dtype)
    n = sequences * model.sequence
    per_head = scores_per_head(model.sequence) if model.keeps_scores else 0
    kept_heads = sequences * model.heads * (case.plan.checkpoint != "selective")
    inside, outside = count(scheme.inside.dims, sizes), count(scheme.outside.dims, sizes)
    rows = n // count(scheme.outside.rows, sizes)
    sums = kept_heads * model.sequence // inside + 4 * rows
    block = 12 * n * h // inside + kept_heads * per_head // inside + 4 * n * h // outside
    kept = {
        "embedding": 8 * n // count(scheme.looked_up, sizes),
        "block": item * (block + (n * h // outside if model.kind == "block" else 0)) + wide * sums,
        "head": item * (2 * n * h // outside + n * model.vocabulary // inside) + wide * 2 * rows,
    }
    return [(name, kept.get(name.partition(".")[0], 0)) for name, _ in counts.unit_parameters(model)]
