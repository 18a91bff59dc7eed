"""The costs of kernels are means over ranks, and medians of launches."""

import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.overlay import overlay
from pscale.runs.store import read_part, write_part

ROOFS = {"gemm_peak_gflops": 100.0, "stream_gb_s": 20.0}


def row(rank, time_s, phase="forward", kernel="product", **amounts):
    known = {"calls": 4, "flops": 8_000_000, "bytes": 1_000_000, **amounts}
    return {"rank": rank, "phase": phase, "kernel": kernel, "time_s": time_s, **known}


@pytest.fixture
def run(tmp_path):
    """Two ranks, three launches: the last launch is ten times slower, and one phase has a single rank."""
    point = Point(ranks=2, rank_row=ROOFS)
    folder = write_run(tmp_path / "run", [Point(ranks=1), point], joined=False)
    for repeat, factor in enumerate((1, 2, 10)):
        rows = [row(0, 0.001 * factor), row(1, 0.003 * factor)]
        rows.append(row(1, 0.5, "update", "optimizer", calls=1, flops=10, bytes=20))
        write_part(folder / "data", "kernels", point.case.id, repeat, rows)
    return folder


def test_costs_are_means_over_ranks_and_medians_of_launches(run):
    product, optimizer = Findings(load(run)).rows("roofline")
    assert (product.phase, product.kernel, product.calls, product.flops) == ("forward", "product", 4, 8e6)
    assert product.time_s == pytest.approx(0.004)
    assert (optimizer.phase, optimizer.flops, optimizer.bytes) == ("update", 5, 10)
    assert optimizer.time_s == pytest.approx(0.25), "a rank without it counts as nothing"
    assert (product.peak_gflops, product.stream_gb_s) == (100, 20)


def test_roofs_are_means_over_ranks_of_the_best_launch(run):
    case = Point(ranks=2).case.id
    for repeat, peaks in enumerate(((10, 20), (90, 70), (80, 60))):
        ranks = read_part(run / "data", "ranks", case, repeat).to_pylist()
        changed = [row | {"gemm_peak_gflops": peak} for row, peak in zip(ranks, peaks, strict=True)]
        write_part(run / "data", "ranks", case, repeat, changed)
    assert {each.peak_gflops for each in Findings(load(run)).rows("roofline")} == {80}


def test_roofs_that_were_not_measured_are_not_known(tmp_path):
    point = Point(ranks=2, kernels=[row(rank, 0.001) for rank in (0, 1)])
    (product,) = summary_of(tmp_path / "run", [point]).rows("roofline")
    assert (product.peak_gflops, product.stream_gb_s) == (None, None)


def test_runs_without_the_table_have_none(tmp_path):
    assert summary_of(tmp_path / "run", [Point(ranks=1)]).rows("roofline") == []


def test_runs_laid_over_each_other_keep_the_costs_of_each(run, tmp_path):
    other = write_run(tmp_path / "other", [Point(ranks=2, rank_row=ROOFS)])
    both = Findings(overlay([load(run), load(other)], tmp_path / "both"))
    assert [(each.kernel, each.case.partition("@")[2]) for each in both.rows("roofline")] == [
        ("product", "run"),
        ("optimizer", "run"),
    ]
