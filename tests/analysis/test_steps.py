import numpy as np
import pytest
from synthetic import BYTES, Point, summary_of, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load, overlay
from pscale.analysis.steps import cells
from pscale.runs.store import read_part, write_part


def test_phases_are_means_over_ranks_and_steps_in_the_order_of_a_step(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=4, transfer_s=0.020, late_s={3: 0.030})])
    times = {time.phase: time for time in summary.rows("phases")}
    assert list(times) == ["data", "forward", "backward", "sync", "update"]
    assert times["backward"].compute_s == pytest.approx(0.060 + 0.030 / 4)
    assert times["backward"].largest_rank == 3
    assert times["backward"].largest_compute_s == pytest.approx(0.090)
    assert times["sync"].transfer_s == pytest.approx(0.020)
    assert times["sync"].wait_s == pytest.approx(0.030 * 3 / 4)
    assert [time.step_s for time in times.values()] == pytest.approx([0.150] * 5)


def test_the_slowest_rank_is_named_with_its_host_and_phase(tmp_path):
    points = [Point(ranks=4, late_s={2: 0.030}, hosts=("a", "b")), Point(ranks=1)]
    slow, *others = summary_of(tmp_path / "run", points).rows("ranks")
    assert (slow.rank, slow.host, slow.phase) == (2, "a", "backward")
    assert slow.excess == pytest.approx(0.3)
    assert slow.wait_s == pytest.approx(0, abs=1e-12)
    assert [other.excess for other in others] == pytest.approx([0, 0])


def test_time_outside_of_phases_that_was_not_recorded_is_unknown(tmp_path):
    found = summary_of(tmp_path / "run", [Point(ranks=2, rank_row={"unaccounted_s": None})]).rows("ranks")
    assert [row.unaccounted for row in found] == [None, None]


def test_calls_are_per_rank_and_step_with_the_bandwidth_they_reach(tmp_path):
    (call,) = summary_of(tmp_path / "run", [Point(ranks=2, transfer_s=0.020, hidden_s=0.005)]).rows("calls")
    assert (call.axis, call.verb, call.count, call.bytes) == ("dp", "all_reduce", 1, BYTES)
    assert call.bytes_per_s == pytest.approx(BYTES / 0.025)  # under way for that long


def test_a_call_that_takes_no_time_has_no_bandwidth(tmp_path):
    (call,) = summary_of(tmp_path / "run", [Point(ranks=2)]).rows("calls")
    assert call.bytes_per_s is None


def test_the_wait_map_has_a_row_a_rank_and_a_column_a_step(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=3, late_s={1: 0.010}), Point(ranks=2)], steps=7)
    assert set(summary.wait["case"]) == {summary.rows("cases")[-1].case}
    assert cells(summary.wait) == pytest.approx(np.array([[0.01] * 7, [0] * 7, [0.01] * 7]), abs=1e-12)


def test_the_map_of_waits_is_of_the_case_that_waits_most_among_the_largest(tmp_path):
    healthy = Point(ranks=2, series="healthy")
    delayed = Point(ranks=2, series="delayed", late_s={1: 0.02}, injected=True)
    summary = summary_of(tmp_path / "run", [healthy, delayed, Point(ranks=1, series="alone")])
    assert set(summary.wait["case"]) == {delayed.case.id}


# The costs of kernels are means over ranks, and medians of launches


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


def test_runs_laid_over_each_other_keep_the_costs_of_each(run, tmp_path):
    other = write_run(tmp_path / "other", [Point(ranks=2, rank_row=ROOFS)])
    both = Findings(overlay([load(run), load(other)], tmp_path / "both"))
    assert [(each.kernel, each.case.partition("@")[2]) for each in both.rows("roofline")] == [
        ("product", "run"),
        ("optimizer", "run"),
    ]
