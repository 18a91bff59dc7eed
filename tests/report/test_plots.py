import pytest
from synthetic import Point, summary_of

from pscale.analysis.text import sparkline
from pscale.report.terminal import plots

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


def test_bars_of_efficiency_are_as_long_as_it_is_and_shaded_over_its_interval(series):
    lines = page(series)
    bars = [line for line in lines[: lines.index("Where a step goes")] if "█" in line or "▒" in line]
    lengths = [line.count("█") + line.count("▒") for line in bars]
    assert [length / lengths[0] for length in lengths] == pytest.approx([1, 1, 1, 1, 0.5, 0.25], abs=0.05)
    assert [line.split()[0] for line in bars] == ["1", "2", "4"] * 2
    assert [line for line in lines if line in ("steady", "falls")] == ["steady", "falls"] * 2
    assert bars[-1].endswith("% ± 0.0%") or "%" in bars[-1]


def test_bars_are_as_long_as_the_shares_of_the_step_and_tell_its_length(series):
    lines = page(series)
    bars = [
        line for line in lines[lines.index("Where a step goes") :] if "█" in line and "compute" not in line
    ]
    assert len(bars) == 6
    shares = [line.count("▓") / (line.count("▓") + line.count("█")) for line in bars]
    assert shares == pytest.approx([0, 0, 0, 0, 0.5, 0.75], abs=0.02)
    assert [line.split()[-2:] for line in bars][-2:] == [["200", "ms"], ["400", "ms"]]
    assert "█ compute  ▓ transfer" in page(series)[-1]


def test_nothing_is_drawn_of_nothing(failed):
    assert page(failed) == []


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
