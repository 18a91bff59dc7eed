import numpy as np
import pytest

from pscale.parallel.context.layout import Layout, runs_of

LAYOUTS = [
    Layout(sequence=24, parts=parts, placement=placement)
    for parts in (1, 2, 3, 4)
    for placement in ("zigzag", "contiguous")
]


def positions(layout, rank):
    return np.concatenate([np.arange(24)[run] for run in layout.runs(rank)])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_token_has_one_rank_and_every_rank_as_many_tokens_in_order(layout):
    ranks = [positions(layout, rank) for rank in range(layout.parts)]
    assert {len(mine) for mine in ranks} == {layout.tokens}
    assert all(np.all(np.diff(mine) > 0) for mine in ranks)
    assert sorted(np.concatenate(ranks)) == list(range(24))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_pieces_are_the_pairs_of_a_query_and_a_key_that_is_not_later(layout):
    met = np.zeros((24, 24), int)
    for rank in range(layout.parts):
        for step, piece in enumerate(layout.pieces(rank)):
            if piece is not None:
                queries = positions(layout, rank)[piece.queries]
                keys = positions(layout, (rank - step) % layout.parts)[piece.keys]
                met[np.ix_(queries, keys)] += np.tri(len(queries), dtype=int) if piece.causal else 1
    np.testing.assert_array_equal(met, np.tri(24))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_matching_views_put_the_tokens_of_the_ranks_in_natural_order(layout):
    parts = np.stack([positions(layout, rank)[None, :, None] for rank in range(layout.parts)])
    whole = np.full((1, 24, 1), -1)
    for natural, of_ranks in layout.matching(whole, parts):
        natural[...] = of_ranks
    np.testing.assert_array_equal(whole[0, :, 0], np.arange(24))


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_zigzag_is_even_and_contiguous_leaves_ranks_idle(parts):
    def utilisation(placement):
        layout = Layout(sequence=16 * parts, parts=parts, placement=placement)
        scores = [
            sum(piece.scores(kept=True) for piece in layout.pieces(rank) if piece is not None)
            for rank in range(parts)
        ]
        return sum(scores) / (parts * max(scores))

    assert utilisation("zigzag") == 1
    assert utilisation("contiguous") == (parts + 1) / (2 * parts)


def test_parts_of_runs_are_those_of_their_positions():
    runs = [slice(3, 6), slice(12, 15)]
    found = [runs_of(runs, 3, part) for part in range(3)]
    assert found == [[slice(3, 5)], [slice(5, 6), slice(12, 13)], [slice(13, 15)]]
