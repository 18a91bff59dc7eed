import math
from dataclasses import replace

import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis import messages
from pscale.analysis.columns import row
from pscale.analysis.efficiency import LOSSES
from pscale.analysis.expect import EVIDENCE, bounds, expectations, verdicts
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.scaling import round_s
from pscale.analysis.stats import Estimate

POINTS = [
    Point(ranks=1, losses=[5.0, 2.5]),
    Point(ranks=2, transfer_s=0.025, losses=[5.0, 2.5]),
    Point(ranks=4, status="failed", reason="died"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load(write_run(tmp_path_factory.mktemp("expect") / "run", POINTS))


@pytest.fixture(scope="module")
def summary(run):
    return Findings(run)


def ids(run, *labels):
    return [case["id"] for case in run.document["cases"] if case["label"] in labels]


def judged(run, summary, **entry):
    trees = summary.of_case("efficiency")
    asked = replace(run, document={**run.document, "expect": [entry]})
    return expectations(asked, summary.rows("cases"), trees, round_s(run))


def test_an_expectation_is_judged_for_every_case_that_it_is_about(run, summary):
    found = judged(run, summary, metric="efficiency", at_least=0.85)
    assert [(entry.label, entry.answer) for entry in found] == [
        ("dp 2 ranks", "falls short"),
        ("dp 4 ranks", "unknown"),
    ], "the base has an efficiency of 1 by definition"
    assert found[0].value.value == pytest.approx(0.8)
    assert (found[0].demand, bounds(found[0])) == ("efficiency ≥ 0.85", "≥ 85.0%")
    assert "the case is failed" in found[1].text


def test_an_expectation_is_about_the_cases_that_it_lists_and_shows_the_condition(run, summary):
    where, cases = "ranks in  [2,\n 4]", ids(run, "dp 2 ranks", "dp 4 ranks")
    found = judged(run, summary, metric="step_s", where=where, at_most=9, cases=cases)
    assert [entry.case for entry in found] == cases
    assert found[0].demand == "step_s ≤ 9 where ranks in [2, 4]"


@pytest.mark.parametrize(
    ("metric", "bounds", "held"),
    [
        ("step_s", {"at_most": 0.126}, True),
        ("step_s", {"at_most": 0.124}, False),
        ("speedup", {"at_least": 1.59, "at_most": 1.61}, True),
        ("gflops", {"at_least": 64.1}, False),
        ("pe", {"at_least": 0.79}, True),
        ("lb", {"at_least": 0.99}, True),
        ("comp", {"at_most": 0.9}, False),
        ("loss_last", {"at_most": 2.5}, True),
        ("peak_fraction", {"at_least": 0.38}, True),
    ],
)
def test_metrics_are_those_of_the_report(run, summary, metric, bounds, held):
    (found,) = judged(run, summary, metric=metric, cases=ids(run, "dp 2 ranks"), **bounds)
    assert found.answer == ("holds" if held else "falls short")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"metric": "efficiency", "where": "ranks > 100", "at_least": 1, "cases": []},
            "no case of the run fits",
        ),
        ({"metric": "speed", "at_least": 1}, "unknown metric; the metrics are step_s, speedup"),
    ],
)
def test_what_cannot_be_judged_is_unknown(run, summary, entry, said):
    (found,) = judged(run, summary, **entry)
    assert (found.answer, found.case) == ("unknown", "")
    assert said in found.text


@pytest.mark.parametrize(
    ("interval", "bounds", "answer"),
    [
        ((0.84, 0.90), {"at_least": 0.85}, "undecided"),
        ((0.86, 0.90), {"at_least": 0.85}, "holds"),
        ((0.85, 0.90), {"at_least": 0.85}, "holds"),
        ((0.80, 0.84), {"at_least": 0.85}, "falls short"),
        ((0.80, 0.90), {"at_most": 0.85}, "undecided"),
        ((0.80, 0.84), {"at_most": 0.85}, "holds"),
        ((0.86, 0.90), {"at_most": 0.85}, "falls short"),
        ((0.80, 0.90), {"at_least": 0.7, "at_most": 0.85}, "undecided"),
        ((0.87,), {"at_least": 0.85}, "undecided"),
        ((0.87,), {"at_least": 0.88}, "undecided"),
    ],
)
def test_nothing_holds_or_falls_short_where_the_interval_allows_the_opposite(
    run, summary, interval, bounds, answer
):
    known = dict(zip(("low", "high"), interval, strict=False))
    efficiency = Estimate(value=sum(interval) / len(interval), **(known if len(interval) > 1 else {}))
    points = [point._replace(efficiency=efficiency) for point in summary.rows("cases")[1:2]]
    asked = replace(run, document={**run.document, "expect": [{"metric": "efficiency", **bounds}]})
    (found,) = expectations(asked, points, {}, round_s=1.0)
    assert found.answer == answer
    assert found.text.startswith(answer)
    assert bool(found.to_decide) is (answer == "undecided")


@pytest.mark.parametrize(
    ("bound", "each_s", "said"),
    [
        (0.82, 5.0, "10 more rounds (about 50 s)"),
        (0.82, math.nan, "10 more rounds"),
        (0.849, 5.0, "an otherwise idle machine"),
        (None, 5.0, "several launches"),
    ],
)
def test_what_is_undecided_says_how_many_rounds_would_decide(run, summary, bound, each_s, said):
    bounds = {} if bound is None else {"low": 0.80, "high": 0.90}
    known = {"efficiency": Estimate(value=0.85, **bounds), "launches": 5, "base": False}
    point = summary.rows("cases")[1]._replace(**known)
    entry = {"metric": "efficiency", "at_least": bound or 0.8}
    asked = replace(run, document={**run.document, "expect": [entry]})
    (found,) = expectations(asked, [point], {}, each_s)
    assert found.to_decide == said


def test_how_long_a_round_takes_is_unknown_where_the_launches_of_a_case_do_not_tell(run):
    assert round_s(run) > 0
    last = run.cases["case"] == POINTS[1].case.id
    silent = run.cases.assign(wall_s=run.cases["wall_s"].mask(last))
    assert math.isnan(round_s(replace(run, cases=silent)))


@pytest.mark.parametrize(
    ("unit", "bound", "answer"),
    [("s", 0.5, "holds"), ("ms", 500.0, "holds"), ("s", 0.4, "falls short"), ("GB/s", 1.0, "unknown")],
)
@pytest.mark.figure
def test_a_figure_is_compared_in_the_unit_of_its_expectation(run, summary, unit, bound, answer):
    workload = {"command": "./a", "figures": {"cg": {"regex": "(.*)", "unit": "ms"}}}
    case = summary.rows("cases")[0].case
    entry = {"metric": "cg", "at_most": bound, "unit": unit, "cases": [case]}
    asked = replace(run, document={"cases": [{"id": case, "workload": workload}], "expect": [entry]})
    value = Estimate(value=450.0, low=440.0, high=460.0)
    merit = row("merits", case=case, figure="cg", value=value, unit="ms", better="lower", launches=3)
    (found,) = expectations(asked, summary.rows("cases"), {}, round_s=1.0, merits=[merit])
    assert found.answer == answer
    alone = merit._replace(value=Estimate(value=450.0), launches=1)
    (found,) = expectations(asked, summary.rows("cases"), {}, round_s=1.0, merits=[alone])
    assert found.answer == ("unknown" if answer == "unknown" else "undecided")


@pytest.mark.parametrize("metric", ["wall_s", "startup_s", "gflops", "peak_fraction"])
@pytest.mark.parametrize(("repeats", "answer"), [(1, "undecided"), (3, "holds")])
@pytest.mark.figure
def test_times_and_rates_have_an_interval_from_two_launches_on_and_one_launch_decides_none(
    tmp_path, metric, repeats, answer
):
    row = {"wall_s": 3.0, "startup_s": 0.5, "model_flops": 1e9, "executed_flops": 1e9, "gemm_peak_gflops": 50}
    expect = [{"metric": metric, "at_most": 1e9}]
    summary = summary_of(tmp_path / "run", [Point(ranks=1, row=row)], repeats=repeats, expect=expect)
    assert summary.rows("expectations")[0].answer == answer
    assert (summary.rows("expectations")[0].value.low is None) is (repeats == 1)


@pytest.mark.parametrize(("bound", "passed"), [(0.5, True), (0.9, False)])
def test_a_run_passes_if_its_expectations_hold(tmp_path, bound, passed):
    entry = {"metric": "efficiency", "at_least": bound, "at_most": None}
    assert summary_of(tmp_path / "run", POINTS[:2], expect=[entry]).passed is passed


def test_an_expectation_that_cannot_be_judged_does_not_pass(tmp_path):
    entry = {"metric": "loss_last", "at_least": None, "at_most": 9.0}
    summary = summary_of(tmp_path / "run", [Point(ranks=1)], expect=[entry])
    assert "unknown: not measured" in summary.rows("expectations")[0].text
    assert not summary.passed


def test_injected_imbalance_is_named_with_rank_and_phase(tmp_path):
    points = [
        Point(ranks=ranks, noise=0.01, transfer_s=0.002, late_s={ranks - 1: 0.02 * (ranks > 1)})
        for ranks in (1, 2)
    ]
    (verdict,) = summary_of(tmp_path / "run", points).rows("verdicts")
    assert verdict.cause == "imbalance"
    assert verdict.meaning.startswith("Rank 1 on node computes")
    assert "mostly in backward" in verdict.meaning
    assert verdict.advice.startswith("Advice: check what else runs on the cores of that rank")


def test_injected_transfer_is_named_with_its_phase(tmp_path):
    points = [Point(ranks=ranks, noise=0.01, transfer_s=0.03 * (ranks > 1)) for ranks in (1, 4)]
    (verdict,) = summary_of(tmp_path / "run", points).rows("verdicts")
    assert verdict.cause == "transfer"
    assert "transfer in sync, 22.9% ± " in verdict.loss_text
    assert "At 4 ranks, weak scaling is 7" in verdict.scaling_text
    assert "95% interval" in verdict.scaling_text


@pytest.mark.parametrize(("repeats", "noise"), [(1, 0.0), (3, 1.0)])
def test_one_launch_and_launches_far_apart_decide_neither_what_is_expected_nor_what_is_lost(
    tmp_path, repeats, noise
):
    slow = {"transfer_s": 0.11, "late_s": {1: 0.1}}
    points = [Point(ranks=ranks, launch_noise=noise, **slow if ranks > 1 else {}) for ranks in (1, 2)]
    expect = [{"metric": "efficiency", "at_least": 0.4}]
    (verdict,) = summary_of(tmp_path / "run", points, repeats=repeats, expect=expect).rows("verdicts")
    assert (verdict.answer, verdict.firm, verdict.advice) == ("undecided", False, "")
    assert verdict.scaling_text.startswith("Undecided: at 2 ranks")
    assert verdict.loss_text.startswith("The main loss is undecided")
    assert repeats == 1 or verdict.cause_to_decide in verdict.loss_text


def test_losses_that_no_number_of_rounds_worth_advising_tells_apart_are_called_close(tmp_path):
    slow = {"transfer_s": 0.01, "late_s": {1: 0.0199}}
    points = [Point(ranks=ranks, launch_noise=0.03, **slow if ranks > 1 else {}) for ranks in (1, 2)]
    (verdict,) = summary_of(tmp_path / "run", points).rows("verdicts")
    assert (verdict.firm, verdict.cause_to_decide) == (False, "")
    assert verdict.loss_text.endswith("No reasonable number of rounds would decide.")


def test_a_rank_that_is_waited_for_explains_a_loss_of_which_that_is_a_good_part(tmp_path):
    points = [Point(ranks=ranks, transfer_s=0.03 * (ranks > 1)) for ranks in (1, 4)]
    summary = summary_of(tmp_path / "run", points)
    late = row(
        "stragglers",
        case=summary.rows("cases")[-1].case,
        rank=3,
        host="node",
        step_share=0.1,
        wait_share=0.9,
        late_steps=2,
        steps=20,
        late_s=0.1,
        phase="forward",
    )
    largest = late.case
    known = {name: summary.by_case(name) for name in EVIDENCE}
    for share, named in ((0.1, True), (0.01, False)):
        known["stragglers"] = {largest: [late._replace(step_share=share)]}
        (said,) = verdicts(summary.rows("cases"), {}, known, round_s=1.0)
        assert "transfer in sync, 23.1% ± 0.0% of the step" in said.loss_text
        assert ("The others wait for rank 3" in said.meaning) is named


def test_threads_that_idle_are_named_and_cores_that_are_slow_are_not_called_threads(tmp_path):
    alone = Point(ranks=1, scaling="strong", rank_row={"thread_cpu_s": [2.0]})
    for cpu_s, cause in (([1.0, 0.3, 0.3, 0.3], "threads"), ([1.0, 1.0, 1.0, 1.0], "scaling")):
        of_rank = {"threads": 4, "thread_cpu_s": cpu_s}
        four = Point(ranks=1, threads=4, scaling="strong", compute_s=0.05, rank_row=of_rank)
        (verdict,) = summary_of(tmp_path / cause, [alone, four]).rows("verdicts")
        assert verdict.cause == cause
        assert "50.0% ± 0.0% of the step" in verdict.loss_text
        assert ("idle threads" in verdict.loss_text) == (cause == "threads")


BOUND, LOOSE = ({"launch": {"bind": bind}} for bind in ("core", "none"))
NETWORK = "use larger batches, send fewer or larger messages, or use a faster network"
AT_ONCE, IN_BUCKETS = ({"plan": {"reduction": reduction}} for reduction in ("all-reduce", "bucketed"))


@pytest.mark.parametrize(
    ("cause", "axis", "planned", "said"),
    [
        ("scaling", "", LOOSE, "use fewer ranks per memory bus, bind ranks to cores, or use larger matrices"),
        ("scaling", "", BOUND, "use fewer ranks per memory bus, or use larger matrices"),
        ("serialisation", "dp", LOOSE, "keep other work off the cores, or bind ranks to cores"),
        ("serialisation", "dp", BOUND, "keep other work off the cores"),
        ("serialisation", "pp", LOOSE, "use more micro-batches, or use another schedule"),
        (
            "transfer",
            "dp",
            IN_BUCKETS,
            NETWORK,
        ),
        (
            *("transfer", "dp", AT_ONCE),
            "reduce gradients in buckets during backward (reduction: bucketed), use larger batches, "
            "or use a faster network",
        ),
        (
            "transfer",
            "tp",
            AT_ONCE,
            NETWORK,
        ),
        (
            "unaccounted",
            "",
            {"timing": {"trace": True}},
            "look at the timeline (pscale trace)",
        ),
    ],
)
def test_advice_is_not_what_the_case_does_already(cause, axis, planned, said):
    assert messages.advice(cause, axis, planned) == f"Advice: {said}."


def test_a_healthy_run_is_said_to_lose_little(tmp_path):
    (verdict,) = summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=2, transfer_s=0.0005)]).rows(
        "verdicts"
    )
    assert verdict.cause == ""
    assert "No single loss reaches 1%" in verdict.loss_text
    assert verdict.advice == ""


def test_one_size_says_plainly_that_nothing_is_known_of_scaling(tmp_path):
    (verdict,) = summary_of(tmp_path / "run", [Point(ranks=2, transfer_s=0.05)]).rows("verdicts")
    assert verdict.scaling_text.startswith(
        "Scaling is unknown, because only one size was measured (2 ranks, 53.3 "
    )
    assert verdict.cause == "transfer"


def test_an_efficiency_from_single_launches_is_said_to_have_no_interval(tmp_path):
    points = [Point(ranks=ranks) for ranks in (1, 2)]
    (verdict,) = summary_of(tmp_path / "run", points, repeats=1).rows("verdicts")
    assert "100.0% efficient relative to 1 rank (no interval: one launch per case)." in verdict.scaling_text


def test_an_efficiency_known_to_more_than_thirty_points_is_undecided(tmp_path):
    for noise, vague in ((0.001, False), (0.15, True)):
        points = [Point(ranks=ranks, launch_noise=noise) for ranks in (1, 2)]
        (verdict,) = summary_of(tmp_path / str(noise), points, repeats=3).rows("verdicts")
        assert (verdict.answer == "undecided") == vague
        assert verdict.scaling_text.endswith("wider than 30 percentage points allows no verdict.") == vague


@pytest.mark.parametrize(
    ("series", "scaling", "begins"),
    [
        ("injected 1 ms", "throughput", "The main loss is load imbalance"),
        ("late", "throughput", "The main loss is load imbalance"),
        ("injected 1 ms", "weak", "These figures include an injected delay: 1 ms. They are not those of a"),
    ],
)
def test_injected_delays_are_always_told_and_not_twice(tmp_path, series, scaling, begins):
    row = {"delay_injection": "1 ms"}
    point = Point(ranks=2, series=series, scaling=scaling, late_s={1: 0.02}, row=row)
    (headline,) = summary_of(tmp_path / "run", [point]).headlines
    assert headline.text.startswith(begins)
    told = "These figures include an injected delay: 1 ms." in headline.text
    assert told is not (series == "injected 1 ms" and scaling == "throughput")
    assert "20.0% longer than a typical rank" in headline.text


def test_the_largest_case_that_ran_speaks_and_larger_ones_are_mentioned(tmp_path):
    points = [Point(ranks=1), Point(ranks=2), Point(ranks=4, status="timeout", reason="slow")]
    (verdict,) = summary_of(tmp_path / "run", points).rows("verdicts")
    assert verdict.scaling_text.startswith("At 2 ranks")
    assert "1 larger case has no result" in verdict.scaling_text


def test_a_run_in_which_all_failed_and_one_that_has_not_begun_are_distinguished(tmp_path):
    failed = summary_of(tmp_path / "failed", [Point(ranks=1, status="failed", reason="x")])
    assert "every launch failed" in failed.rows("verdicts")[0].scaling_text
    begun = summary_of(tmp_path / "begun", [Point(ranks=1, only_repeats=())])
    assert begun.rows("verdicts")[0].scaling_text == "Nothing has been measured yet."
    assert (begun.rows("phases"), begun.rows("wait"), begun.rows("warnings")) == ([], [], [])


def test_figures_that_are_not_numbers_do_not_stop_the_report(tmp_path):
    row = {"gemm_peak_gflops": math.nan, "recording_ratio": math.nan, "step_s": math.nan, "model_flops": 0.0}
    summary = summary_of(tmp_path / "run", [Point(ranks=1, row=row), Point(ranks=2, row=row)])
    assert summary.rows("cases")[1].efficiency.value == 1.0
    assert summary.rows("cases")[1].peak_fraction is None


def test_a_phase_without_any_wait_on_an_ideal_network_is_not_the_one_whose_ranks_wait_in_turn(tmp_path):
    """A wait of 0 is one that is known: all of what was measured is the network's."""
    summary = summary_of(tmp_path / "run", [Point(ranks=ranks, transfer_s=0.03) for ranks in (1, 4)])
    largest = summary.rows("cases")[-1].case
    first, second, *_ = (time for time in summary.rows("phases") if time.case == largest)
    waits = [
        first._replace(wait_s=0.02, ideal_wait_s=0.0, transfer_s=0.0),
        second._replace(wait_s=0.003, ideal_wait_s=0.003, transfer_s=0.001),
    ]
    (lost,) = (lost for lost in summary.rows("lost_time") if lost.case == largest)
    losses = {name: Estimate(value=0.0) for name in LOSSES}
    for cause, phase in (("serialisation", second.phase), ("transfer", first.phase)):
        known = {name: {} for name in EVIDENCE} | {
            "lost_time": {largest: [lost._replace(**losses | {cause: Estimate(value=0.2)})]},
            "phases": {largest: waits},
        }
        (said,) = verdicts(summary.rows("cases"), {}, known, round_s=1.0)
        assert f"{cause} in {phase}" in said.loss_text
