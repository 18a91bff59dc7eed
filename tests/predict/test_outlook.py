"""What is said of predictions together."""

from types import SimpleNamespace

import pytest

from pscale.predict.outlook import _doubts


def row(ranks, *, nothing=False, efficiency=None):
    case = SimpleNamespace(scaling="weak")
    prediction = SimpleNamespace(case=case, says_nothing=nothing)
    kept = efficiency and SimpleNamespace(value=efficiency)
    return SimpleNamespace(ranks=ranks, label="b", base="a", efficiency=kept, prediction=prediction)


@pytest.mark.parametrize(
    ("nothing", "first"),
    [((), None), ((4096,), None), ((1048576,), "1,048,576"), ((4096, 1048576), "4,096")],
)
def test_from_which_ranks_on_predictions_say_nothing_is_said(nothing, first):
    said = [*_doubts([row(ranks, nothing=ranks in nothing) for ranks in (8, 4096, 1048576)])]
    sentence = f"From {first} ranks on predictions say next to nothing: their intervals reach to more than"
    assert [each.partition(" 5 times")[0] for each in said] == ([sentence] if first else [])


def test_an_efficiency_above_110_percent_is_doubted():
    (said,) = _doubts([row(4, efficiency=value) for value in (0.9, 1.09, 15.546)])
    assert said.startswith("The efficiency of b, 1555%, is doubtful: ")
