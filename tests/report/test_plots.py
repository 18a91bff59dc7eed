import re

import pytest
from synthetic import Point, summary_of

from pscale.analysis.text import sparkline
from pscale.report.terminal import Dots, plots

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Two series: one that scales perfectly, one that loses half at each doubling."""
    points = [
        Point(ranks=ranks, series=name, transfer_s=slower * (ranks - 1) * 0.1, noise=0.001)
        for name, slower in (("steady", 0), ("falls", 1))
        for ranks in (1, 2, 4)
    ]
    return summary_of(tmp_path_factory.mktemp("series") / "run", points, steps=4)


def page(summary, width=80):
    return [line.plain.rstrip() for line in plots(summary, width)]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_plots_fit_and_are_not_drawn_wider_than_they_can_be_read(summary, hostile, width):
    for each in (summary, hostile):
        lines = page(each, width)
        assert max(map(len, lines)) <= min(width, 96)
        assert all(line.isprintable() for line in lines)


def test_marks_stand_at_their_efficiency_and_size(series):
    lines = page(series)
    heights = {row: line for row, line in enumerate(lines) if "●" in line or "■" in line or "▲" in line}
    of_axis = {match[1]: row for row, line in enumerate(lines) if (match := re.match(r" *(\d+)% ┤", line))}
    assert {"0", "25", "50", "75", "100"} == set(of_axis)
    assert "▲" in heights[of_axis["50"]], "2 ranks of the second series"
    assert "▲" in heights[of_axis["25"]], "4 ranks"
    assert heights[of_axis["100"]].count("●") >= 2
    sizes = next(line for line in lines if line.startswith("cores"))
    assert sizes.split() == ["cores", "1", "2", "4"]
    assert abs(sizes.index("2") - heights[of_axis["50"]].index("▲")) <= 1
    assert lines[lines.index(sizes) + 1 :][:2] == ["      ● steady", "      ▲ falls"]


def test_bars_are_as_long_as_the_shares_of_the_step_and_tell_its_length(series):
    bars = [line for line in page(series) if "█" in line and "compute" not in line]
    assert len(bars) == 6
    shares = [line.count("▓") / (line.count("▓") + line.count("█")) for line in bars]
    assert shares == pytest.approx([0, 0, 0, 0, 0.5, 0.75], abs=0.02)
    assert [line.split()[-2:] for line in bars][-2:] == [["200", "ms"], ["400", "ms"]]
    assert "█ compute  ▓ transfer" in page(series)[-1]


def test_nothing_is_drawn_of_nothing(failed):
    assert page(failed) == []


def test_a_line_of_dots_goes_from_corner_to_corner():
    dots = Dots(2, 1)
    dots.line((0, 0), (1, 1), "")
    assert [row.plain for row in dots.rows()] == ["⡠⠊"]
    dots.mark((1, 1), "●", "")
    assert [row.plain for row in dots.rows()] == ["⡠●"]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([1.0, 1.01, 0.99, 1.0], "▄▄▄▄"),
        ([2.0, 2.0, 3.0, 2.0, 9.0], "▄▄█▄█"),
        ([0.5, 1.0, 1.0], "▁▄▄"),
        ([1.0] * 25 + [1.25] + [1.0] * 24, "▄▄▄▄▄▆▄▄▄▄"),
        ([], ""),
        ([0.0, 0.0], ""),
    ],
)
def test_a_sparkline_shows_what_is_far_from_the_median(values, line):
    assert sparkline(values) == line
