"""What a report says of plans: which is fastest and why, what they hold, how long stages idle."""

import pytest
from synthetic import Point, summary_of

from pscale.analysis.messages import need
from pscale.analysis.wording import rough
from pscale.config import Plan

KINDS = ("parameters", "gradients", "optimizer", "activations", "exchange")
SHARED = {"cpus": "0"}  # by all ranks


def point(label, plan, **settings):
    known = {"ranks": 2, "scaling": "throughput", "series": label.ljust(12), "noise": 0.002}
    return Point(label=label, plan=plan, **(known | settings))


@pytest.fixture
def ranked(tmp_path):
    points = [
        point("slow", Plan(tp=2), transfer_s=0.05),
        point("first", Plan(dp=2)),
        point("as fast", Plan(dp=2, zero=1), compute_s=0.1001),
        point(
            "stages", Plan(pp=2), compute_s=0.09, late_s={1: 0.08}, axis="pp", row={"predicted_bubble": 0.2}
        ),
    ]
    return summary_of(tmp_path / "run", points)


def test_plans_of_the_same_work_are_ranked_by_step_time_and_equal_ones_share_a_place(ranked):
    places = ranked.rows("ranking")
    assert [place.plan for place in places][2:] == ["slow", "stages"]
    first, second, third, fourth = places
    assert {first.plan, second.plan} == {"first", "as fast"}
    assert (first.place, second.place, third.place, fourth.place) == (1, 1, 3, 4)
    assert [place.answer for place in places] == ["", "equal", "slower", "slower"]
    assert third.ratio.low < 1.5 < third.ratio.high
    assert third.ratio.value == pytest.approx(1.5, rel=0.05)


def test_a_plan_is_slow_for_its_largest_loss(ranked):
    by_plan = {place.plan: place for place in ranked.rows("ranking")}
    assert by_plan["slow"].loss == "exchange"
    assert by_plan["slow"].exchange == pytest.approx(0.05 / 0.15, rel=0.05)
    stages = by_plan["stages"]
    assert stages.loss == "bubble", "wait for another stage"
    assert stages.bubble == pytest.approx(0.04 / 0.17, rel=0.1)
    assert stages.wait == pytest.approx(0, abs=1e-6)
    for place in ranked.rows("ranking"):
        shares = place.compute + place.exchange + place.bubble + place.wait + place.copies
        assert shares == pytest.approx(1, abs=0.02)


def test_the_headline_names_the_fastest_those_equal_to_it_and_what_costs_the_slowest(ranked):
    (headline,) = ranked.headlines
    first, second, *_, last = ranked.rows("ranking")
    assert f"Of 4 plans on 2 ranks, {first.plan} is fastest here" in headline.text
    assert f"; within 5% of it: {second.plan} (100." in headline.text
    assert f"{last.plan} takes 1.7" in headline.text
    assert "is the bubble" in headline.text
    assert ranked.oversubscribed == ""


def test_with_one_launch_the_order_is_not_called_certain(tmp_path):
    points = [point("a", Plan(dp=2)), point("b", Plan(tp=2), transfer_s=0.1)]
    summary = summary_of(tmp_path / "run", points, repeats=1)
    assert summary.rows("ranking")[1].ratio.low is None
    assert summary.rows("ranking")[1].answer == "undecided"
    assert summary.headlines[0].text.startswith("Undecided: of 2 plans on 2 ranks, a was fastest")
    assert "It would take several launches to decide." in summary.headlines[0].text


def test_where_ranks_share_cores_it_is_said_first_and_computing_is_no_loss(tmp_path):
    points = [
        point("a", Plan(dp=2), rank_row=SHARED),
        point("b", Plan(tp=2), compute_s=0.3, transfer_s=0.01, rank_row=SHARED),
    ]
    summary = summary_of(tmp_path / "run", points)
    assert "Oversubscribed: in all cases, ranks share cores" in summary.oversubscribed
    assert summary.rows("ranking")[1].loss == "exchange"
    alone = summary_of(tmp_path / "other", [point("a", Plan(dp=2)), point("b", Plan(tp=2), compute_s=0.3)])
    assert alone.rows("ranking")[1].loss == "extra"


def test_other_work_is_another_group_and_one_plan_alone_is_not_ranked(tmp_path):
    points = [
        point("a · size 2", Plan(dp=2)),
        point("b · size 2", Plan(tp=2), transfer_s=0.1),
        point("alone", Plan(dp=4), ranks=4),
    ]
    summary = summary_of(tmp_path / "run", points)
    assert [(place.group, place.plan) for place in summary.rows("ranking")] == [
        ("size 2", "a"),
        ("size 2", "b"),
    ]


def test_a_bubble_is_the_wait_for_stages_beside_what_was_foreseen(ranked):
    (bubble,) = ranked.rows("bubbles")
    assert (bubble.stages, bubble.chunks, bubble.schedule) == (2, 1, "1f1b")
    assert bubble.predicted == 0.2
    assert bubble.measured == pytest.approx(0.04 / 0.17, rel=0.1)


def memory_row(**sizes):
    return {f"{name}_bytes": size for name, size in sizes.items()}


def test_memory_is_that_of_the_rank_which_was_predicted_to_hold_most(tmp_path):
    counted = dict.fromkeys(KINDS, 10 << 20)
    rows = {
        **memory_row(**counted, peak_rss=160 << 20, baseline_rss=100 << 20),
        "peak_rss_of_steps": True,
    }
    predicted = {f"predicted_{kind}_bytes": 11 << 20 for kind in KINDS}
    case = Point(ranks=2, row={"peak_memory_rank": 1, **predicted}, rank_row=rows)
    (memory,) = summary_of(tmp_path / "run", [case]).rows("memory")
    assert (memory.rank, memory.predicted_bytes, memory.counted_bytes) == (1, 55 << 20, 50 << 20)
    assert (memory.measured_bytes, memory.of_steps) == (60 << 20, True)


def test_a_case_without_room_is_complete_and_known_by_its_prediction_alone(tmp_path):
    predicted = {f"predicted_{kind}_bytes": 11 << 20 for kind in KINDS}
    refused = Point(
        ranks=4, status="skipped", reason="needs more", plan_row={"peak_memory_rank": 0, **predicted}
    )
    summary = summary_of(tmp_path / "run", [Point(ranks=1), refused])
    assert summary.complete
    assert summary.rows("failures") == []
    (memory,) = (row for row in summary.rows("memory") if row.counted_bytes is None)
    assert memory.predicted_bytes == 55 << 20
    assert summary.case(memory.case).status == "skipped"


def test_a_run_of_before_predictions_were_kept_has_no_memory_to_tell_of(tmp_path):
    assert summary_of(tmp_path / "run", [Point(ranks=1)]).memory.empty


def test_plans_whose_launches_differ_too_much_are_not_ranked_and_not_called_equal(tmp_path):
    points = [
        point(name, made, launch_noise=0.3, compute_s=compute_s)
        for name, made, compute_s in (("a", Plan(dp=2), 0.1), ("b", Plan(tp=2), 0.2), ("c", Plan(pp=2), 0.4))
    ]
    summary = summary_of(tmp_path / "run", points, repeats=2)
    assert [place.answer for place in summary.rows("ranking")] == ["", "undecided", "slower"]
    assert "is fastest" not in summary.headlines[0].text
    assert summary.headlines[0].text.endswith(f"It would take {need(summary.rows('ranking')[1])} to decide.")


def test_more_rounds_are_advised_as_far_as_they_should_decide(tmp_path):
    points = [
        point("a", Plan(dp=2), launch_noise=0.02),
        point("b", Plan(tp=2), launch_noise=0.02, compute_s=0.101),
    ]
    first, second = summary_of(tmp_path / "run", points, repeats=3).rows("ranking")
    assert (need(first), second.answer) == ("", "undecided")
    rounds = int(need(second).split()[0])
    assert 1 <= rounds <= 20
    assert need(second).endswith(f" (about {rough(60 * rounds)})"), "two launches of 30 s each"
