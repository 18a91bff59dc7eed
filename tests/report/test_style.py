import pytest

from pscale.report.drawing import distinct
from pscale.report.figure_style import spread, wrapped


def test_labels_are_moved_apart_in_order_and_no_further_than_needed():
    assert spread([0.5, 0.1, 0.52], 0.1) == pytest.approx([0.46, 0.1, 0.56])
    assert spread([0.2, 0.8], 0.1) == pytest.approx([0.2, 0.8])
    assert spread([], 0.1) == []


def test_labels_stay_inside_where_they_fit():
    moved = spread([0.0, 0.01, 0.02], 0.1)
    assert moved == pytest.approx([0.0, 0.1, 0.2])
    assert spread([0.99, 1.0], 0.1) == pytest.approx([0.9, 1.0])


def test_long_labels_take_two_lines_and_then_end_in_an_ellipsis():
    assert wrapped("bucketed", 20) == "bucketed"
    lines = wrapped("a label that somebody wrote with far too many words in it", 20).splitlines()
    assert len(lines) == 2
    assert lines[-1].endswith("…")
    assert max(map(len, lines)) <= 20
    assert wrapped("x" * 50, 20, most=1) == "x" * 18 + " …"


def test_colours_of_series_differ():
    assert len(set(distinct(9))) == 9
