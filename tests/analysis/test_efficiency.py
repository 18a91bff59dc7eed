import pytest
from synthetic import Point, summary_of

from pscale.analysis.efficiency import launches
from pscale.analysis.frames import load

WEAK = [Point(ranks=1), Point(ranks=4, transfer_s=0.020, late_s={3: 0.030})]  # steps of 100 and 150 ms


def of_largest(findings, summary):
    return next(finding for finding in findings if finding.case == summary.points[-1].case)


def test_the_factors_of_the_tree_are_those_of_the_definitions(tmp_path):
    summary = summary_of(tmp_path / "run", WEAK)
    tree = of_largest(summary.trees, summary)
    assert tree.parallel == pytest.approx(0.1075 / 0.150)
    assert tree.load_balance == pytest.approx(0.1075 / 0.130)
    assert tree.communication == pytest.approx(0.130 / 0.150)
    assert tree.computation == pytest.approx(0.100 / 0.1075)
    assert tree.overall == pytest.approx(0.100 / 0.150)
    assert tree.overall == pytest.approx(summary.points[-1].efficiency.value)
    assert (tree.serialisation, tree.transfer) == (None, None)


def test_the_ideal_wall_splits_communication_into_serialisation_and_transfer(tmp_path):
    points = [Point(ranks=2, transfer_s=0.05, noise=0.0, rank_row={"t_ideal_s": 20 * 0.110})]
    summary = summary_of(tmp_path / "run", points)
    tree = summary.trees[0]
    assert tree.serialisation == pytest.approx(0.100 / 0.110)
    assert tree.transfer == pytest.approx(0.110 / 0.150)
    assert tree.serialisation * tree.transfer == pytest.approx(tree.communication)


def test_strong_scaling_compares_core_seconds_of_the_same_work(tmp_path):
    points = [
        Point(ranks=1, scaling="strong", compute_s=0.8),
        Point(ranks=2, threads=2, scaling="strong", compute_s=0.25),
    ]
    summary = summary_of(tmp_path / "run", points)
    assert of_largest(summary.trees, summary).computation == pytest.approx(0.8 / (2 * 2 * 0.25))


def test_the_shares_of_a_step_name_every_loss_and_add_up_to_one(tmp_path):
    summary = summary_of(tmp_path / "run", WEAK)
    losses = of_largest(summary.losses, summary)
    assert losses.useful == pytest.approx(100 / 150)
    assert losses.imbalance == pytest.approx(30 / 150)
    assert losses.transfer == pytest.approx(20 / 150)
    assert [losses.scaling, losses.waiting, losses.copy, losses.unaccounted] == pytest.approx(
        [0] * 4, abs=1e-9
    )


def test_work_that_costs_all_ranks_more_is_computation_scaling_and_not_imbalance(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=4, compute_s=0.125)])
    losses = of_largest(summary.losses, summary)
    assert losses.scaling == pytest.approx(0.2)
    assert losses.imbalance == pytest.approx(0, abs=1e-9)
    assert summary.verdicts[0].cause == "scaling"


def test_ranks_late_by_turns_are_waiting_and_not_imbalance(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=8, noise=0.2)], steps=200)
    losses = of_largest(summary.losses, summary)
    assert losses.waiting > 5 * losses.imbalance
    assert summary.verdicts[0].cause == "waiting"


def test_efficiencies_are_medians_over_launches(tmp_path):
    points = [Point(ranks=2, transfer_s=0.1, launch_noise=0.3)]
    summary = summary_of(tmp_path / "run", points, repeats=5)
    table = launches(load(tmp_path / "run"))
    assert summary.trees[0].parallel == pytest.approx((table["mean_compute_s"] / table["wall_s"]).median())
    assert table["wall_s"].nunique() == 5
