"""Kernels under their roofs: figures by hand, in every format, and nothing for runs that timed none."""

import pytest
from synthetic import Point, summary_of

from pscale.report import drawing
from pscale.report.markup import render_latex, render_markdown
from pscale.report.page import draw_figures, inline_figures, render_page
from pscale.report.topics.roofline import TOPIC, figure, tables

ROOFS = {"gemm_peak_gflops": 100.0, "stream_gb_s": 20.0}  # the ridge is at 5 FLOP/byte


def row(phase, kernel, time_s, flops=0, moved=0):
    return {"phase": phase, "kernel": kernel, "time_s": time_s, "calls": 1, "flops": flops, "bytes": moved}


STEP = [
    row("data", "other", 0.000_004),
    row("forward", "product", 0.004, flops=320_000_000, moved=8_000_000),  # 80 GFLOP/s at 40 FLOP/byte
    row("forward", "embedding", 0.001, moved=10_000_000),
    row("forward", "other", 0.001_996),
    row("backward", "product", 0.002, flops=100_000_000, moved=10_000_000),
    row("backward", "norm", 0.001, flops=30_000_000, moved=30_000_000),  # 30 GB/s: of a cache
]


def of_ranks(ranks, rows=STEP):
    return [each | {"rank": rank} for rank in range(ranks) for each in rows]


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    points = [Point(ranks=ranks, rank_row=ROOFS, kernels=of_ranks(ranks)) for ranks in (1, 2)]
    return summary_of(tmp_path_factory.mktemp("timed") / "run", points)


@pytest.fixture(scope="module")
def without_roofs(tmp_path_factory):
    rows = {"gemm_peak_gflops": 100.0}
    points = [Point(ranks=1, rank_row=rows, kernels=of_ranks(1))]
    return summary_of(tmp_path_factory.mktemp("bare") / "run", points)


def found(summary, phase, kernel):
    return next(each for each in summary.rows("roofline") if (each.phase, each.kernel) == (phase, kernel))


def test_a_kernel_above_the_ridge_is_held_to_the_peak(timed):
    product = found(timed, "forward", "product")
    assert (product.intensity, product.gflops, product.gb_s) == pytest.approx((40, 80, 2))
    assert (product.roof_gflops, product.roof_share, product.bound) == (100, pytest.approx(0.8), "compute")
    assert product.time_share == pytest.approx(0.4)


def test_a_kernel_below_the_ridge_is_held_to_the_bandwidth_of_memory(timed):
    norm = found(timed, "backward", "norm")
    assert (norm.intensity, norm.gflops, norm.gb_s) == pytest.approx((1, 30, 30))
    assert (norm.roof_gflops, norm.roof_share, norm.bound) == (20, pytest.approx(1.5), "memory")


def test_a_kernel_that_only_moves_is_held_to_memory_and_what_is_not_counted_to_nothing(timed):
    embedding, other = found(timed, "forward", "embedding"), found(timed, "forward", "other")
    assert (embedding.roof_share, embedding.bound) == (pytest.approx(0.5), "memory")
    assert (other.intensity, other.gflops, other.roof_share, other.bound) == (None, None, None, "")


def test_the_table_is_of_the_largest_case_and_says_what_follows_from_it(timed):
    (table,) = tables(timed)
    assert [row[:3] for _, row in table.narrow().texts()] == [
        ("forward", "matmul", "40.0%"),
        ("backward", "matmul", "20.0%"),
        ("forward", "other", "20.0%"),
        ("forward", "embedding", "10.0%"),
        ("backward", "norm", "10.0%"),
    ], "most time first, without what takes next to none"
    assert table.caption.startswith(
        "The kernel class with the most time is matmul: 40.0% in forward, at 80% of its roof (compute "
        "bound), and 20.0% in backward, at 50% of its roof (compute bound). "
        "Above the memory roof, thanks to cached operands: norm in backward. "
        "One profiled step of dp 2 ranks: "
    )
    assert "matrix-product peak (100 GFLOP/s) and FLOP/B × memory bandwidth (20 GB/s)" in table.caption


SAID = {
    "above the peak": (
        [row("forward", "product", 0.002, flops=320_000_000, moved=8_000_000)],
        "160% of its roof (compute bound). Above the matrix-product peak: matmul in forward",
    ),
    "outside": (
        [row("forward", "other", 0.006), row("forward", "norm", 0.004, flops=1000, moved=1000)],
        "Most compute time is outside kernels. The kernel class with the most time is norm: 40.0%",
    ),
    "next to none": (
        [row("data", "other", 1.0), row("forward", "product", 0.000_5, flops=1000, moved=1000)],
        "Most compute time is outside kernels. One profiled step",
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_what_takes_most_time_and_what_is_above_its_roof_is_said(tmp_path, kind):
    rows, said = SAID[kind]
    points = [Point(ranks=1, rank_row=ROOFS, kernels=of_ranks(1, rows))]
    (table,) = tables(summary_of(tmp_path / "run", points))
    assert said in table.caption


def test_without_a_measured_bandwidth_there_is_no_roof_and_no_figure(without_roofs):
    (table,) = tables(without_roofs)
    assert [column.name for column in table.columns][-2:] == ["GFLOP/s", "GB/s"]
    assert "Its roof is unknown" in table.caption
    with drawing.styled():
        assert figure(without_roofs) is None


def test_runs_that_timed_no_kernels_say_nothing(summary):
    assert summary.rows("roofline") == []
    assert list(tables(summary)) == []
    with drawing.styled():
        assert figure(summary) is None
    assert "oofline" not in render_markdown(summary)
    assert 'id="roofline"' not in render_page(summary, {})


def test_every_format_has_it(timed):
    page = render_page(timed, inline_figures(draw_figures(timed)))
    assert 'id="roofline"' in page
    assert TOPIC.figure.description in page
    assert "most time is matmul: 40.0%" in page.rpartition('id="roofline"')[2].partition("<svg")[0]
    for rendered in (page, render_markdown(timed), render_latex(timed)):
        assert "Roofline of the largest case" in rendered
    assert len(timed.rows("roofline")) == 2 * len(STEP), "every case"


def test_the_figure_has_a_point_for_each_kernel_with_flops_and_labels_that_do_not_overlap(timed):
    with drawing.styled():
        drawn = figure(timed)
        (axes,) = drawn.axes
        points = {tuple(each.get_offsets()[0].round(6)) for each in axes.collections}
        assert points == {(40, 80), (10, 50), (1, 30)}
        (roof,) = axes.lines
        assert roof.get_ydata()[1:] == pytest.approx([100, 100])
        boxes = [words.get_window_extent() for words in axes.texts]
        said = [words.get_text() for words in axes.texts]
    assert {
        "peak 100 GFLOP/s",
        "memory 20 GB/s",
        "matmul 40%",
        "matmul 20%",
        "norm 10%",
    } == set(said)
    assert not any(a.overlaps(b) for place, a in enumerate(boxes) for b in boxes[:place])
