"""Which of two variants is faster over a swept number, and where that turns."""

import csv
import io
import re
from dataclasses import replace

import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.compare import crossovers
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.messages import crossing
from pscale.analysis.overlay import overlay
from pscale.config import Plan
from pscale.report.exports import csv_tables
from pscale.report.publish import draw_figures
from pscale.report.topics.variants import crossings as tables

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
    return crossing(findings.rows("crossings"))


def text_of(folder, points, repeats=8):
    return crossing(summary_with(folder, points, repeats).rows("crossings"))


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
    assert "undecided at batch 4 and 8" in crossing(rows)
    assert [row.answer for row in rows] == ["slower", "undecided", "undecided", "faster"]


def test_without_a_turn_the_faster_is_named_with_the_range_that_was_measured(tmp_path):
    said = text_of(tmp_path, cases(1.2, 1.3, 1.4, 1.5))
    assert said.startswith("tp 2 is faster at every batch measured, 2 to 16. dp 2 takes 1.")


def test_where_some_values_are_undecided_no_turn_was_found(tmp_path):
    said = text_of(tmp_path, cases(1.8, 1.7, 1.0, 1.0, launch_noise=0.06))
    assert said.startswith("No crossover: tp 2 is faster at batch 2 and 4, undecided at batch 8 and 16.")


@pytest.mark.parametrize(
    ("repeats", "noise", "advice"),
    [
        (1, 0.01, "one round shows no variation between launches, so measure more rounds"),
        (4, 0.20, "launches vary too much to tell, so stop other processes"),
    ],
)
def test_one_launch_or_noisy_ones_decide_nothing_and_say_what_would(tmp_path, repeats, noise, advice):
    said = text_of(tmp_path, cases(1.1, 1.0, 1.0, 0.9, launch_noise=noise), repeats)
    assert said == f"Undecided at every batch measured, 2 to 16: either may be faster; {advice}."


def test_where_some_more_rounds_would_decide_their_number_is_told(tmp_path):
    said = text_of(tmp_path, cases(1.01, 1.0, 1.0, 0.99, launch_noise=0.03), 5)
    assert re.search(r"either may be faster; about \d+ rounds would detect a difference of 5%\.$", said)


def test_variants_known_to_be_equal_are_said_to_be(tmp_path):
    said = text_of(tmp_path, cases(1, 1, 1, 1, launch_noise=0.002))
    assert said == "tp 2 and dp 2 differ by less than 5% at every batch measured, 2 to 16."


def test_a_second_turn_is_reported_too(tmp_path):
    rows = summary_with(tmp_path, cases(1.3, 0.7, 0.7, 1.3)).rows("crossings")
    assert crossovers(rows) == [(2, 4), (8, 16)]
    assert crossing(rows).startswith(
        "Crossover between batch 2 and 4, batch 8 and 16: tp 2 is faster at batch 2, "
    )


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
    assert crossing(rows).startswith("Crossover between 2 and 4 ranks: dp is faster at 2 ranks, ")


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
