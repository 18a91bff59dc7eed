"""What a report says of plans: which is fastest and why, what they hold, how long stages idle."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.contrasts import compare, crossovers
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load, overlay
from pscale.analysis.messages import compared, crossing, need
from pscale.analysis.text import rough
from pscale.config import Plan, Workload
from pscale.report.exports import csv_tables
from pscale.report.page import draw_figures
from pscale.report.topics.variants import crossings as tables

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
    assert [place.name for place in places][2:] == ["slow", "stages"]
    first, second, third, fourth = places
    assert {first.name, second.name} == {"first", "as fast"}
    assert (first.place, second.place, third.place, fourth.place) == (1, 1, 3, 4)
    assert [place.answer for place in places] == ["", "equal", "slower", "slower"]
    assert third.ratio.low < 1.5 < third.ratio.high
    assert third.ratio.value == pytest.approx(1.5, rel=0.05)


def test_a_plan_is_slow_for_its_largest_loss(ranked):
    by_plan = {place.name: place for place in ranked.rows("ranking")}
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
    assert f"Of 4 plans on 2 ranks, {first.name} is fastest here" in headline.text
    assert f"; within 5% of it: {second.name} (100." in headline.text
    assert f"{last.name} takes 1.7" in headline.text
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
    assert [(place.group, place.name) for place in summary.rows("ranking")] == [
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


# Which of two variants is faster over a swept number, and where that turns


BATCHES = (2, 4, 8, 16)
TP, DP = Plan(tp=2), Plan(dp=2)


def case(plan, batch, compute_s, **settings):
    name = "tp" if plan.tp > 1 else "dp"
    label = f"{name} {plan.tp * plan.dp} · batch {batch}"
    known = {"ranks": plan.tp * plan.dp, "series": f"{name}{batch:04}", "scaling": "throughput"}
    known |= {"label": label, "launch_noise": 0.01, "train": {"batch": batch}}
    return Point(plan=plan, compute_s=compute_s, **known | settings)


def cases(*ratios, batches=BATCHES, **settings):
    """Return tp and dp at every batch; dp takes so many times as long."""
    return [
        case(plan, batch, compute_s, **settings)
        for batch, ratio in zip(batches, ratios, strict=True)
        for plan, compute_s in ((TP, 0.1), (DP, 0.1 * ratio))
    ]


def summary_with(folder, points, repeats=8):
    return summary_of(folder / "run", points, repeats=repeats, steps=6)


@pytest.fixture(scope="module")
def turning(tmp_path_factory):
    """Return a run that turns between batch 4 and 8."""
    return summary_with(tmp_path_factory.mktemp("turning"), cases(1.3, 1.2, 0.9, 0.8))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """Return a run that turns somewhere between batch 2 and 16."""
    return summary_with(tmp_path_factory.mktemp("noisy"), cases(1.6, 1.0, 1.0, 0.6, launch_noise=0.06))


def headlined(findings):
    return crossing("", findings.rows("crossings")).text


def test_a_turn_lies_between_values_decided_for_either_and_the_sentence_leads_with_it(turning):
    rows = turning.rows("crossings")
    assert {(row.field, row.reference, row.variant) for row in rows} == {("train.batch", "tp 2", "dp 2")}
    assert crossovers(rows) == [(4, 8)]
    (headline,) = turning.headlines
    assert headline.topic == "tp 2 or dp 2"
    assert headline.text.startswith(
        "Crossover between batch 4 and 8: tp 2 is faster at batch 2 and 4, dp 2 is faster at batch 8 and 16."
    )


def test_every_number_of_the_sentence_is_a_cell_of_the_table(turning):
    (table,) = tables(turning)
    ratios = [
        dict(zip([c.name for c in table.columns], row, strict=True))["ratio"] for _, row in table.texts()
    ]
    assert f"dp 2 takes {ratios[0]} times as long as tp 2 at batch 2" in headlined(turning)
    assert f"{ratios[3]} times as long at batch 16." in headlined(turning)


def test_values_whose_interval_allows_either_are_undecided_and_lie_inside_the_turn(noisy):
    rows = noisy.rows("crossings")
    assert crossovers(rows) == [(2, 16)]
    assert "undecided at batch 4 and 8" in crossing("", rows).text
    assert [row.answer for row in rows] == ["slower", "undecided", "undecided", "faster"]


EITHER = "Undecided at every batch measured, 2 to 16: either may be faster; "


@pytest.mark.parametrize(
    ("ratios", "repeats", "noise", "said"),
    [
        (
            (1.2, 1.3, 1.4, 1.5),
            8,
            0.01,
            r"tp 2 is faster at every batch measured, 2 to 16\. dp 2 takes 1\..*",
        ),
        (
            (1.8, 1.7, 1.0, 1.0),
            *(8, 0.06, r"No crossover: tp 2 is faster at batch 2 and 4, undecided at batch 8 and 16\..*"),
        ),
        (
            (1.1, 1.0, 1.0, 0.9),
            *(1, 0.01, f"{EITHER}one round shows no variation between launches, so measure more rounds."),
        ),
        (
            (1.1, 1.0, 1.0, 0.9),
            *(4, 0.20, f"{EITHER}launches vary too much to tell, so stop other processes."),
        ),
        (
            (1.01, 1.0, 1.0, 0.99),
            *(5, 0.03, rf"{EITHER}about \d+ rounds would detect a difference of 5%\."),
        ),
        ((1, 1, 1, 1), 8, 0.002, "tp 2 and dp 2 differ by less than 5% at every batch measured, 2 to 16."),
        ((1.3, 0.7, 0.7, 1.3), 8, 0.01, "Crossover between batch 2 and 4, batch 8 and 16: tp 2 is faster .*"),
    ],
    ids=["no turn", "partly undecided", "one launch", "noisy", "more rounds", "equal", "two turns"],
)
def test_the_sentence_names_turns_the_faster_or_what_would_decide(tmp_path, ratios, repeats, noise, said):
    found = summary_with(tmp_path, cases(*ratios, launch_noise=noise), repeats)
    assert re.fullmatch(said, headlined(found))


def test_drift_from_round_to_round_hides_nothing_as_launches_are_compared_in_pairs(tmp_path):
    points = cases(1.05, 1.05, 0.95, 0.95, launch_noise=0.002)
    folder = write_run(tmp_path / "run", points, repeats=8)
    run = load(folder)
    drift = run.ends["repeat"].map(lambda repeat: 1 + 0.5 * (repeat % 3))
    drifting = replace(run, ends=run.ends.assign(end_s=run.ends["end_s"] * drift))
    assert crossovers(Findings(drifting).rows("crossings")) == [(4, 8)]


def test_plans_that_grow_with_the_ranks_are_variants_over_the_ranks(tmp_path):
    points = [
        case(plan, 16, compute_s, label=f"{ranks} ranks · {name} {ranks}", series=name)
        for ranks in (2, 4, 8)
        for name, plan, compute_s in (("tp", Plan(tp=ranks), 0.1), ("dp", Plan(dp=ranks), 0.05 * ranks**0.7))
    ]
    rows = summary_with(tmp_path, points).rows("crossings")
    assert {(row.field, row.reference, row.variant) for row in rows} == {("ranks", "tp", "dp")}
    assert crossing("", rows).text.startswith("Crossover between 2 and 4 ranks: dp is faster at 2 ranks, ")


def test_cases_of_other_work_or_on_more_cores_are_no_variants(tmp_path):
    other = [case(TP, batch, 0.1) for batch in BATCHES]
    other += [case(DP, batch, 0.1, train={"batch": batch, "lr": 0.5}) for batch in BATCHES]
    other += [case(Plan(dp=4), batch, 0.1) for batch in BATCHES]
    assert summary_with(tmp_path, other).crossings.empty


def test_a_single_value_or_several_runs_in_one_report_make_no_curve(tmp_path):
    assert summary_with(tmp_path / "one", cases(1.2, batches=[2])).crossings.empty
    runs = [load(write_run(tmp_path / name, cases(1.2, 1, 1, 0.8))) for name in "ab"]
    assert Findings(overlay(runs, tmp_path)).crossings.empty


def test_values_that_only_one_variant_could_run_are_left_out(tmp_path):
    points = [each for each in cases(1.3, 1.2, 0.9, 0.8) if each.label != "dp 2 · batch 2"]
    assert [row.value for row in summary_with(tmp_path, points).rows("crossings")] == [4, 8, 16]


def test_the_csv_has_a_row_for_every_pair_with_interval_and_answer(turning):
    rows = list(csv.DictReader(io.StringIO(csv_tables(turning)["crossings"])))
    assert [row["answer"] for row in rows] == ["slower", "slower", "faster", "faster"]
    assert all(float(row["ratio_low"]) < float(row["ratio"]) < float(row["ratio_high"]) for row in rows)
    assert {row["case"] for row in rows} | {row["reference_case"] for row in rows} == {*turning.labels}


def test_the_figure_marks_decided_values_by_filled_points_and_the_turn_by_a_span(noisy):
    (axes,) = draw_figures(noisy)["crossing"].figure.axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() == "white" for line in dots] == [False, True, True, False]
    (span,) = axes.patches
    assert (span.get_x(), span.get_width()) == (2, 14)


@pytest.mark.figure
def test_a_figure_of_many_groups_says_how_many_of_them_it_shows(turning):
    rows = turning.rows("crossings")
    many = [each._replace(common=f"n {place}") for place in range(20) for each in rows]
    placed = draw_figures(turning.replaced(crossings=many))["crossing"]
    assert "4 of 20 groups are drawn; the tables have all" in placed.inline()
    assert "groups are drawn" not in draw_figures(turning)["crossing"].inline()


QUIET = {"launch_noise": 0.005, "noise": 0.005}


def runs(folder, a, b, *, repeats=10, seeds=(1, 2)):
    return [
        load(write_run(folder / name, points, repeats=repeats, seed=seed))
        for name, points, seed in (("a", a, seeds[0]), ("b", b, seeds[1]))
    ]


def change(run, **provenance):
    document = json.loads((run.path / "run.json").read_text())
    document["provenance"] |= provenance
    (run.path / "run.json").write_text(json.dumps(document))
    return load(run.path)


def test_each_case_gets_its_own_answer(tmp_path):
    points = [Point(ranks=1, **QUIET), Point(ranks=2, **QUIET), Point(ranks=4, **QUIET), Point(ranks=8)]
    points[3] = replace(points[3], launch_noise=0.3)
    later = [points[0], replace(points[1], compute_s=0.105), replace(points[2], compute_s=0.09), points[3]]
    found = compare(*runs(tmp_path, points, later)).compared
    assert [one.answer for one in found] == ["equal", "slower", "faster", "undecided"]
    assert [one.matched_by for one in found] == ["id"] * 4
    assert found[1].ratio.value == pytest.approx(1.05, rel=0.01)
    assert compared(found[1], 0.05).startswith("slower by ")
    assert "would have been detected" in compared(found[0], 0.05)
    assert "stop other processes" in compared(found[3], 0.05)


def test_what_is_relevant_decides_between_no_difference_and_undecided(tmp_path):
    pair = runs(tmp_path, [Point(ranks=1, launch_noise=0.02)], [Point(ranks=1, launch_noise=0.02)])
    assert compare(*pair, relevant=0.2).compared[0].answer == "equal"
    (one,) = compare(*pair, relevant=0.01).compared
    assert one.answer == "undecided"
    assert f"detecting 1% takes about {one.launches_needed} launches" in compared(one, 0.01)
    assert one.launches_needed == pytest.approx(10 * (one.detectable / 0.01) ** 2, rel=0.1)


def test_a_run_against_itself_and_against_one_of_the_same_seed_is_not_different(tmp_path):
    a, b = runs(tmp_path, [Point(ranks=2, **QUIET)], [Point(ranks=2, **QUIET)], seeds=(1, 1))
    for other in (a, b):
        (one,) = compare(a, other).compared
        assert (one.answer, one.ratio.value) == ("equal", pytest.approx(1))
        assert one.ratio.low < 1 < one.ratio.high


def test_cases_of_another_content_are_matched_by_their_label_and_the_fields_are_told(tmp_path):
    old, new = Point(ranks=2, label="ours", **QUIET), Point(ranks=2, label="ours", series="wider", **QUIET)
    comparison = compare(*runs(tmp_path, [old], [new]))
    assert [one.matched_by for one in comparison.compared] == ["label"]
    assert ("model.width", "128", "320") in [
        (change.name, change.a, change.b) for change in comparison.changes
    ]


@pytest.mark.figure
def test_cases_of_other_work_are_not_called_slower(tmp_path):
    one, other = (Point(ranks=2, label="2 ranks", scaling=scaling, **QUIET) for scaling in ("weak", "strong"))
    comparison = compare(*runs(tmp_path, [one], [other]))
    assert not comparison.compared
    (found,) = comparison.missing
    assert (found.run, found.reason.startswith("a step does different work: batch 8 and 64")) == (
        "both",
        True,
    )


@pytest.mark.figure
def test_other_parameters_and_another_command_are_other_work_unless_the_suite_says_that_they_are_not(
    tmp_path,
):
    def program(command="./a {n}", n=100, **fields):
        workload = Workload(command=command, params={"n": n}, **fields)
        return Point(ranks=2, label="2 ranks", workload=workload, **QUIET)

    for place, (other, same, said) in enumerate(
        [
            (program(n=200), (), "n 100 and 200"),
            (program("./b {n}"), (), "command './a {n}' and './b {n}'"),
            (program(n=200), ("n",), ""),
            (program("./b {n}"), ("command",), ""),
        ]
    ):
        told = replace(other, workload=replace(other.workload, same_work=same))
        found = compare(*runs(tmp_path / str(place), [program()], [told], repeats=3))
        assert (len(found.compared), [each.reason for each in found.missing]) == (
            (0, [f"a step does different work: {said}"]) if said else (1, [])
        )


def test_what_only_one_run_has_measured_is_named_with_the_reason(tmp_path):
    both, gone = Point(ranks=1, **QUIET), Point(ranks=2, label="gone")
    new, failing = Point(ranks=4, label="new"), Point(ranks=8, label="failing")
    broken = replace(failing, bad_repeats=range(10), reason="rank 3: out of luck")
    comparison = compare(*runs(tmp_path, [both, gone, failing], [both, new, broken]))
    assert {(one.label, one.run): one.reason for one in comparison.missing} == {
        ("gone", "B"): "not in its suite",
        ("failing", "B"): "failed: rank 3: out of luck",
        ("new", "A"): "not in its suite",
    }
    assert len(comparison.compared) == 1


def test_with_one_launch_nothing_is_claimed(tmp_path):
    pair = runs(tmp_path, [Point(ranks=1)], [Point(ranks=1, compute_s=0.9)], repeats=1)
    (one,) = compare(*pair).compared
    assert (one.answer, one.ratio.low, one.p) == ("undecided", None, None)
    assert one.ratio.value == pytest.approx(9)


def test_an_environment_that_changed_is_told_and_passing_ones_are_not(tmp_path):
    a, b = runs(
        tmp_path,
        [Point(ranks=1, row={"provenance": json.dumps({"mpi": {"library": "MPICH 4.3"}})})],
        [
            Point(
                ranks=1,
                row={"provenance": json.dumps({"mpi": {"library": "Open MPI 5"}})},
                rank_row={"blas": "mkl"},
            )
        ],
    )
    a = change(a, git={"commit": "aaa", "dirty": False}, environment={}, load_average=[0.1])
    b = change(b, git={"commit": "bbb", "dirty": False}, environment={"OMP_X": "1"}, load_average=[0.2])
    told = {change.name: (change.a, change.b) for change in compare(a, b).changes}
    assert told == {
        "git.commit": ("aaa", "bbb"),
        "environment.OMP_X": ("", "1"),
        "job.mpi.library": ("MPICH 4.3", "Open MPI 5"),
        "job.blas": ("openblas", "mkl"),
    }


def test_runs_without_a_common_case_are_compared_as_far_as_they_go(tmp_path):
    comparison = compare(*runs(tmp_path, [Point(ranks=1)], [Point(ranks=2)], repeats=2))
    assert not comparison.compared
    assert {one.run for one in comparison.missing} == {"A", "B"}
