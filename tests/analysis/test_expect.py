import math
from dataclasses import replace

import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.columns import row
from pscale.analysis.expect import bounds, expectations
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


def verdicts(run, summary, **entry):
    trees = summary.of_case("efficiency")
    asked = replace(run, document={**run.document, "expect": [entry]})
    return expectations(asked, summary.rows("cases"), trees, round_s(run))


def test_an_expectation_is_judged_for_every_case_that_it_is_about(run, summary):
    found = verdicts(run, summary, metric="efficiency", at_least=0.85)
    assert [(entry.label, entry.answer) for entry in found] == [
        ("dp 2 ranks", "falls short"),
        ("dp 4 ranks", "unknown"),
    ], "the base has an efficiency of 1 by definition"
    assert found[0].value.value == pytest.approx(0.8)
    assert (found[0].demand, bounds(found[0])) == ("efficiency ≥ 0.85", "≥ 85.0%")
    assert "the case is failed" in found[1].text


def test_an_expectation_is_about_the_cases_that_it_lists_and_shows_the_condition(run, summary):
    where, cases = "ranks in  [2,\n 4]", ids(run, "dp 2 ranks", "dp 4 ranks")
    found = verdicts(run, summary, metric="step_s", where=where, at_most=9, cases=cases)
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
    (found,) = verdicts(run, summary, metric=metric, cases=ids(run, "dp 2 ranks"), **bounds)
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
    (found,) = verdicts(run, summary, **entry)
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
