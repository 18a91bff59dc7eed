"""Where the clocks of nodes are too far apart for a wait, it is shown as one with transfer."""

import pytest
from synthetic import Point, summary_of

from pscale.config import Plan
from pscale.report.markdown import render_markdown

UNCLEAR = Point(ranks=4, transfer_s=0.010, late_s={3: 0.020}, clock_bound_s=2e-3)  # waits 15 ms on average
CLEAR = Point(ranks=4, series="clear", transfer_s=0.010, late_s={3: 0.020}, clock_bound_s=1.4e-3)


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    ranks = {"clock_bound_s": 0.7e-3}
    points = [Point(ranks=1), UNCLEAR, CLEAR]
    points[2] = Point(**{**CLEAR.__dict__, "rank_row": ranks})
    return summary_of(tmp_path_factory.mktemp("nodes") / "run", points)


def of(point, found):
    return [time for time in found if time.case == point.case.id]


def test_wait_and_transfer_of_unclear_calls_are_one_everywhere(summary):
    (call,) = of(UNCLEAR, summary.rows("calls"))
    assert (call.wait_s, call.transfer_s, call.bytes_per_s) == (0, 0, None)
    assert call.wait_or_transfer_s == pytest.approx(0.025)
    (sync,) = [time for time in of(UNCLEAR, summary.rows("phases")) if time.phase == "sync"]
    assert (sync.wait_s, sync.transfer_s) == (0, 0)
    assert sync.wait_or_transfer_s == pytest.approx(0.025)
    slowest, *others = of(UNCLEAR, summary.rows("ranks"))
    assert slowest.wait_or_transfer_s == pytest.approx(0.010)
    assert others[0].wait_or_transfer_s == pytest.approx(0.030)
    (losses,) = of(UNCLEAR, summary.rows("lost_time"))
    assert losses.transfer.value == losses.serialisation.value == 0
    assert losses.imbalance.value == pytest.approx(0.015 / 0.130)  # known from compute alone
    assert losses.wait_or_transfer.value == pytest.approx(0.010 / 0.130)
    assert summary.wait.loc[summary.wait["rank"] == 3, "wait_or_transfer_s"].tolist() == pytest.approx(
        [0.010] * 20
    )
    assert set(summary.wait["wait_s"]) == {0}


def test_a_bound_of_less_than_a_tenth_of_the_wait_keeps_them_separate(summary):
    (call,) = of(CLEAR, summary.rows("calls"))
    assert call.wait_or_transfer_s == 0
    assert (call.wait_s, call.transfer_s) == pytest.approx((0.015, 0.010))
    assert all(time.wait_or_transfer_s == 0 for time in of(CLEAR, summary.rows("phases")))
    assert [warning.case for warning in summary.rows("warnings") if warning.kind == "clock"] == [
        UNCLEAR.case.id
    ]


def test_the_bubble_of_a_pipeline_is_unknown_where_clocks_do_not_tell_its_waits(tmp_path):
    stages = {"ranks": 4, "plan": Plan(dp=1, pp=4), "axis": "pp", "transfer_s": 0.010, "late_s": {3: 0.020}}
    points = [Point(**stages, series="clear"), Point(**stages, clock_bound_s=2e-3)]
    bubbles = summary_of(tmp_path / "run", points).of_case("bubbles")
    clear, unclear = (bubbles[point.case.id] for point in points)
    assert clear.measured == pytest.approx(0.015 / 0.130)
    assert unclear.measured is None


def test_the_report_states_the_bound_and_shows_the_sum_of_what_it_cannot_separate(summary):
    text = render_markdown(summary)
    assert "by at most 700 µs" in text
    assert (
        "Calls of all-reduce on dp wait 15 ms on average, but the clocks of the nodes agree only to 2 ms"
        in text
    )
    assert "|  | sync | 19.2% | 0 | 0 | 0 | 25 ms |" in text
    header, _, *rows = text[text.index("## Communication") :].splitlines()[2:6]
    assert "| transfer | wait | wait + transfer |" in header
    assert "| - | - | 25 ms |" in rows[0]
    assert "| 10 ms | 15 ms | - |" in rows[1]
