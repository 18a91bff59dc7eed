import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import pytest
from matplotlib.image import imread
from pictures import boxes, fitting, words
from synthetic import Point, summary_of

from pscale.config import Plan
from pscale.report import drawing
from pscale.report.page import draw_figures, write_all, write_figures
from pscale.report.topics.cases import scaling_figure as scaling
from pscale.report.topics.communication import figure as calls
from pscale.report.topics.steps import breakdown_figure as breakdown
from pscale.report.topics.steps import wait_figure as wait
from pscale.report.topics.training import loss_figure as loss

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def drawn(summary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    return folder, write_figures(draw_figures(summary), folder, ("svg", "png"))


def test_the_figures_are_written_as_valid_files_and_nothing_else_is_left(drawn):
    folder, written = drawn
    assert [path.name for path in written] == [
        f"{name}.{kind}"
        for name in ("scaling", "breakdown", "wait", "calls", "loss")
        for kind in ("svg", "png")
    ]
    assert sorted(written) == sorted(folder.iterdir())
    for path in written:
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("svg")
        else:
            assert imread(path).std() > 0.01


def test_figures_have_titles_axes_with_units_and_labels(drawn):
    folder, _ = drawn
    expected = {
        "scaling": [
            "Speed-up, with 95% intervals",
            "efficiency (base = 100%)",
            "ranks",
            "ideal",
            "failed",
            "16",
        ],
        "breakdown": ["compute", "transfer", "wait", "backward", "sync", "4 ranks", "mean step"],
        "wait": ["rank", "measured step", "wait (ms)"],
        "calls": ["dp  all-reduce", "38.1 MiB", "achieved bandwidth", "2 GB/s"],
        "loss": ["loss (nats)", "step, warm-up included", "unigram baseline", "1, 2, 4 ranks"],
    }
    for name, labels in expected.items():
        found = words(folder / f"{name}.svg")
        assert set(labels) <= set(found), name
        assert "Weak scaling of something made up" in found


def test_the_same_findings_give_the_same_bytes(summary, drawn, tmp_path):
    folder, _ = drawn
    for path in write_figures(draw_figures(summary), tmp_path, ("svg",)):
        assert path.read_bytes() == (folder / path.name).read_bytes()


def test_drawing_leaves_no_open_figure_and_no_changed_setting(summary):
    before = dict(plt.rcParams)
    with drawing.styled():
        assert scaling(summary) is not None
    assert plt.get_fignums() == []
    assert dict(plt.rcParams) == before


def test_points_and_intervals_are_where_the_findings_say(summary):
    with drawing.styled():
        figure = scaling(summary)
    efficiency = figure.axes[0]
    known = [point for point in summary.rows("cases") if point.efficiency]
    dots = [line for line in efficiency.lines if line.get_marker() == "o"]
    large = [dot.get_ydata()[0] for dot in dots if dot.get_markersize() > 4]
    assert large == pytest.approx([point.efficiency.value for point in known])
    assert len(dots) - len(large) == sum(point.launches for point in known if point.launches > 1)
    last = known[-1].efficiency
    spans = [list(line.get_ydata()) for line in efficiency.lines]
    assert [last.low, last.high] in spans


def test_the_bars_of_a_case_fill_its_step(summary):
    with drawing.styled():
        figure = breakdown(summary)
    ends = {}
    for bar in figure.axes[1].patches:
        place = round(bar.get_y(), 3)
        ends[place] = max(ends.get(place, 0.0), bar.get_x() + bar.get_width())
    assert list(ends.values()) == pytest.approx([1, 1, 1], abs=0.01)


def test_hostile_texts_are_drawn_as_they_are(hostile, tmp_path):
    write_figures(draw_figures(hostile), tmp_path, ("svg",))
    for path in tmp_path.iterdir():
        ET.parse(path)
    assert any("[red]*b*[/red]" in word for word in words(tmp_path / "loss.svg"))


def test_nothing_is_drawn_of_nothing(failed):
    with drawing.styled():
        assert [draw(failed) for draw in (scaling, breakdown, wait, calls, loss)] == [None] * 5


def test_calls_that_send_nothing_are_not_drawn(summary):
    barriers = [row._replace(verb="barrier", bytes=0.0) for row in summary.rows("calls")]
    with drawing.styled():
        assert calls(summary.replaced(calls=barriers)) is None


def test_of_very_many_series_the_best_and_worst_are_named(tmp_path):
    points = [
        Point(ranks=ranks, series="s" * count, transfer_s=0.002 * count * (ranks > 1), losses=[2.0, 1.0])
        for count in range(1, 31)
        for ranks in (1, 2)
    ]
    summary = summary_of(tmp_path / "run", points, repeats=1, steps=3)
    with drawing.styled():
        figures = [draw(summary) for draw in (scaling, breakdown, wait, calls, loss)]
        found = [name for name, _ in boxes(figures[0])]
        sizes = [figure.get_size_inches().max() for figure in figures]
    assert {"s", "ss", "sss", "ssss"} < set(found)
    assert "sssss" not in found
    assert "Efficiency, with 95% intervals (8 best and worst of 30 named)" in found
    assert figures[3].get_supxlabel() == "24 of 30 calls are drawn; the tables have all"
    assert max(sizes) < 40  # inches; pictures have limits


def test_the_losses_of_variants_of_one_size_are_compared_in_one_panel(tmp_path):
    points = [
        Point(
            ranks=2,
            label=f"{name} · zero {zero}",
            series=f"{name} · zero {zero}",
            losses=[5.0, last],
            plan=Plan(dp=2, zero=zero),
        )
        for name, last in (("sgd", 4.0), ("lamb", 3.0))
        for zero in (0, 2)
    ]
    with drawing.styled():
        figure = loss(summary_of(tmp_path / "run", points, repeats=1, steps=2))
        assert len(figure.axes) == 1
        found = [name for name, _ in boxes(figure)]
    assert {"sgd · zero 0, zero 2", "lamb · zero 0, zero 2"} < set(found)


LONG = "all-reduce with a label that somebody made far too long"
CROWDED = {
    "many sizes of three series": [
        Point(ranks=ranks, series=series, losses=[3.0, 2.0 - ranks / 100], noise=0.01)
        for series in ("bucketed · bucket 4 MiB", LONG, "gather")
        for ranks in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
    ],
    "variants": [
        Point(ranks=2, label=name, series=name, losses=[5.0, 2.0 + place / 100])
        for place, name in enumerate([LONG, "none", "topk · share 0.01", "powersgd · rank 4", "sgd"])
    ],
    "two cases": [Point(ranks=ranks, losses=[5.0, 2.0], label=LONG * 2) for ranks in (1, 2)],
    "many ranks": [Point(ranks=ranks, losses=[5.0, 2.0], noise=0.01) for ranks in (1, 64)],
    "failures": [
        Point(ranks=1, losses=[5.0, 2.0]),
        *(Point(ranks=ranks, status="failed") for ranks in (2, 3, 4)),
    ],
}


@pytest.mark.parametrize("kind", CROWDED)
def test_labels_neither_overlap_nor_leave_the_picture(kind, tmp_path):
    summary = summary_of(tmp_path / "run", CROWDED[kind], repeats=1, steps=4)
    for draw in (scaling, breakdown, wait, calls, loss):
        with drawing.styled():
            if figure := draw(summary):
                fitting(figure)


def test_an_interval_that_is_too_wide_for_the_picture_reaches_its_edges_with_arrows(tmp_path):
    points = [Point(ranks=1), Point(ranks=2, launch_noise=0.5)]
    summary = summary_of(tmp_path / "run", points, repeats=2)
    assert summary.rows("cases")[1].efficiency.stated is None
    with drawing.styled():
        efficiency = scaling(summary).axes[1]
    marks = {line.get_marker(): line for line in efficiency.lines}
    assert {"^", "v"} <= set(marks)
    assert marks["^"].get_ydata() == [1]
    assert marks["^"].get_transform() == efficiency.get_xaxis_transform()


def test_a_launch_without_any_wait_is_light_and_says_so(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=2)], repeats=1, steps=3)
    with drawing.styled():
        axes = wait(summary).axes[0]
    assert "no rank waited" in axes.get_title(loc="left")
    assert axes.collections[0].get_clim() == (0.0, 1.0)


def test_a_report_is_written_with_links_to_its_pictures(summary, tmp_path):
    _, report, *pictures = write_all(summary, tmp_path, ("svg",))
    for path in pictures:
        assert f"(<figures/{path.name}>)" in report.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report.md", "figures"}
