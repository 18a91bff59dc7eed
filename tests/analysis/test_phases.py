import numpy as np
import pytest
from synthetic import BYTES, Point, summary_of

from pscale.analysis.steps import cells


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


def test_a_case_that_failed_has_no_wait_map(tmp_path):
    assert summary_of(tmp_path / "run", [Point(ranks=2, status="failed")]).wait.empty


def test_the_map_of_waits_is_of_the_case_that_waits_most_among_the_largest(tmp_path):
    healthy = Point(ranks=2, series="healthy")
    delayed = Point(ranks=2, series="delayed", late_s={1: 0.02}, injected=True)
    summary = summary_of(tmp_path / "run", [healthy, delayed, Point(ranks=1, series="alone")])
    assert set(summary.wait["case"]) == {delayed.case.id}
