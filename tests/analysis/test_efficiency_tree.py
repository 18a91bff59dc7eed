import math
from dataclasses import replace

import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.efficiency import LOSSES, balance, launches, phases
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load, records
from pscale.config import Plan, Workload
from pscale.report.markup import render_markdown
from pscale.runs.store import read_part, write_part

WEAK = [Point(ranks=1), Point(ranks=4, transfer_s=0.020, late_s={3: 0.030})]  # steps of 100 and 150 ms


def of_largest(findings, name):
    """Return the row of the largest case; of lost time its shares, without their intervals."""
    row = findings.of_case(name)[findings.rows("cases")[-1].case]
    return values(row) if name == "lost_time" else row


def values(lost):
    known = {name: share.value for name in ("useful", *LOSSES) if (share := getattr(lost, name))}
    return lost._replace(**known)


def test_the_factors_of_the_tree_are_those_of_the_definitions(tmp_path):
    summary = summary_of(tmp_path / "run", WEAK)
    tree = of_largest(summary, "efficiency")
    assert tree.parallel.value == pytest.approx(0.1075 / 0.150)
    assert tree.load_balance.value == pytest.approx(0.1075 / 0.130)
    assert tree.communication.value == pytest.approx(0.130 / 0.150)
    assert tree.computation.value == pytest.approx(0.100 / 0.1075)
    assert tree.overall.value == pytest.approx(0.100 / 0.150)
    assert tree.overall.value == pytest.approx(summary.rows("cases")[-1].efficiency.value)
    assert (tree.serialisation, tree.transfer) == (None, None)


def test_the_ideal_wall_splits_communication_into_serialisation_and_transfer(tmp_path):
    points = [Point(ranks=2, transfer_s=0.05, noise=0.0, rank_row={"t_ideal_s": 20 * 0.110})]
    summary = summary_of(tmp_path / "run", points)
    tree = of_largest(summary, "efficiency")
    assert tree.serialisation.value == pytest.approx(0.100 / 0.110)
    assert tree.transfer.value == pytest.approx(0.110 / 0.150)
    assert tree.serialisation.value * tree.transfer.value == pytest.approx(tree.communication.value)


def test_ideal_walls_are_those_of_the_rank_that_ends_last_and_has_most_to_do_in_a_phase(tmp_path):
    run = load(write_run(tmp_path / "run", [Point(ranks=2, transfer_s=0.05)], repeats=1))
    run = replace(run, ranks=run.ranks.assign(t_ideal_s=[2.2, 2.1], unaccounted_s=[0.02, 0.04]))
    (whole,) = records(launches(run))
    assert (whole["t_ideal_s"], whole["mean_unaccounted_s"]) == pytest.approx((2.2, 0.03))
    first = run.phases["rank"] == 0
    waited = run.phases.assign(ideal_wait_s=0.3 * first, copy_s=0.1 * first)  # of 20 steps
    backward = next(row for row in records(phases(replace(run, phases=waited))) if row["phase"] == "backward")
    assert backward["t_ideal_s"] == pytest.approx(20 * 0.060 + 0.3 + 0.1)


def test_strong_scaling_compares_core_seconds_of_the_same_work(tmp_path):
    points = [
        Point(ranks=1, scaling="strong", compute_s=0.8),
        Point(ranks=2, threads=2, scaling="strong", compute_s=0.25),
    ]
    summary = summary_of(tmp_path / "run", points)
    assert of_largest(summary, "efficiency").computation.value == pytest.approx(0.8 / (2 * 2 * 0.25))


def test_the_shares_of_a_step_name_every_loss_and_add_up_to_one(tmp_path):
    summary = summary_of(tmp_path / "run", WEAK)
    losses = of_largest(summary, "lost_time")
    assert losses.useful == pytest.approx(100 / 150)
    assert losses.scaling == pytest.approx(7.5 / 150)  # the mean of four ranks, one of them 30 ms slower
    assert losses.imbalance == pytest.approx(22.5 / 150)
    assert losses.transfer == pytest.approx(20 / 150)
    assert [losses.serialisation, losses.copy, losses.unaccounted] == pytest.approx([0] * 3, abs=1e-9)
    assert summary.rows("verdicts")[0].cause == "imbalance"


def test_work_that_costs_all_ranks_more_is_computation_scaling_and_not_imbalance(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=4, compute_s=0.125)])
    losses = of_largest(summary, "lost_time")
    assert losses.scaling == pytest.approx(0.2)
    assert losses.imbalance == pytest.approx(0, abs=1e-9)
    assert summary.rows("verdicts")[0].cause == "scaling"


def test_a_rank_with_less_to_do_is_imbalance_and_no_work_beyond_the_base_case(tmp_path):
    fewer = Point(ranks=4, compute_s=0.108, late_s={2: -0.032})  # the work of four, cut unfairly
    for name, points in (("based", [Point(ranks=1), fewer]), ("alone", [fewer])):
        summary = summary_of(tmp_path / name, points)
        losses = of_largest(summary, "lost_time")
        assert losses.imbalance == pytest.approx(0.008 / 0.108)
        assert (losses.scaling, losses.useful) == pytest.approx((0, 0.100 / 0.108), abs=1e-9)


@pytest.mark.parametrize("late_ms", [[0, 30], [10, 20, 70, 0], [-20, -20, -20, 60], [-20, -20, -20, -20]])
def test_lost_time_is_the_tree_read_as_shares_of_the_step(tmp_path, late_ms):
    late = {rank: ms / 1000 for rank, ms in enumerate(late_ms)}
    points = [Point(ranks=1), Point(ranks=len(late_ms), late_s=late, transfer_s=0.01)]
    summary = summary_of(tmp_path / "run", points)
    tree, lost = of_largest(summary, "efficiency"), of_largest(summary, "lost_time")
    assert lost.useful == pytest.approx(min(tree.overall.value, tree.parallel.value))
    assert lost.useful + lost.scaling == pytest.approx(tree.parallel.value)
    assert lost.imbalance == pytest.approx(tree.communication.value - tree.parallel.value)
    assert sum((getattr(lost, name) or 0.0) for name in ("useful", *LOSSES)) == pytest.approx(1)
    assert min((getattr(lost, name) or 0.0) for name in LOSSES) >= 0


def test_a_slow_rank_is_imbalance_though_it_costs_the_mean_of_two_ranks_as_much(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=2, late_s={1: 0.03})])
    assert summary.rows("verdicts")[0].cause == "imbalance"
    said = summary.headlines[0].text
    assert "load imbalance, 11.5% ± 0.0% of the step. Rank 1 on node computes 30.0% longer" in said


def test_threads_that_idle_are_no_useful_computing(tmp_path):
    threads = {"threads": 2, "thread_cpu_s": [2.0, 1.4]}  # of 2 s
    summary = summary_of(
        tmp_path / "idle", [Point(ranks=1, threads=2, scaling="throughput", rank_row=threads)]
    )
    losses = of_largest(summary, "lost_time")
    assert (losses.useful, losses.threads) == pytest.approx((0.85, 0.15))
    said = summary.headlines[0].text
    assert "idle threads, 15.0% ± 0.0% of the step. The cores of a rank lose 15.0% of" in said


def test_idle_threads_that_were_not_observed_are_unknown_and_the_other_shares_still_add_up(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=1, threads=2), Point(ranks=2, threads=2)])
    base, largest = summary.rows("lost_time")
    assert base.threads.value == 0, "no more than in the base case, which it is"
    assert largest.threads is None
    shares = [share.value for name in ("useful", *LOSSES) if (share := getattr(largest, name))]
    assert sum(shares) == pytest.approx(1)
    assert "idle threads" not in render_markdown(summary)


def test_the_time_of_launches_of_which_a_kind_is_unknown_is_not_split(tmp_path):
    points = [Point(ranks=1), Point(ranks=4, noise=0.3, rank_row={"unaccounted_s": 0.01})]
    run = summary_of(tmp_path / "run", points).source
    none, some = (run.ranks["unaccounted_s"].where(run.ranks["repeat"] >= first) for first in (3, 1))
    assert Findings(replace(run, ranks=run.ranks.assign(unaccounted_s=none))).lost_time.empty
    _, lost = Findings(replace(run, ranks=run.ranks.assign(unaccounted_s=some))).rows("lost_time")
    assert lost.unaccounted.value == pytest.approx(0.01 / 2, rel=0.5)


def test_ranks_late_by_turns_are_serialisation_and_not_imbalance(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=8, noise=0.2)], steps=200)
    losses = of_largest(summary, "lost_time")
    assert losses.serialisation > 5 * losses.imbalance
    assert summary.rows("verdicts")[0].cause == "serialisation"


def test_factors_are_ratios_of_medians_over_launches_and_multiply_exactly(tmp_path):
    ideal = {"rank_row": {"t_ideal_s": 20 * 0.115}}
    points = [Point(ranks=1), Point(ranks=2, transfer_s=0.1, noise=0.05, launch_noise=0.1, **ideal)]
    summary = summary_of(tmp_path / "run", points, repeats=5)
    table = launches(load(tmp_path / "run"))
    of_two = table[table["ranks"] == 2]
    assert of_two["wall_s"].nunique() == 5
    tree = of_largest(summary, "efficiency")
    assert tree.parallel.value == pytest.approx(of_two["mean_compute_s"].median() / of_two["wall_s"].median())
    factors = [tree.load_balance, tree.serialisation, tree.transfer]
    assert math.prod(factor.value for factor in factors) == pytest.approx(tree.parallel.value, rel=1e-12)
    assert tree.overall.value == pytest.approx(tree.parallel.value * tree.computation.value, rel=1e-12)
    for factor in (*factors, tree.parallel, tree.computation, tree.overall):
        assert factor.low < factor.value < factor.high


@pytest.mark.parametrize("slow_s", [1.0, 0.0])
def test_slow_steps_that_medians_do_not_show_are_noted(tmp_path, slow_s):
    points = [Point(ranks=1, noise=0.01), Point(ranks=2, noise=0.01, spikes_s={3: slow_s})]
    found = [note for note in summary_of(tmp_path / "run", points).notes if "relative to the median" in note]
    assert ["dp 2 ranks +4" in note for note in found] == [True] * (slow_s > 0)


def test_the_efficiency_is_one_number_in_table_tree_and_verdict(tmp_path):
    points = [Point(ranks=1, launch_noise=0.1), Point(ranks=2, launch_noise=0.1, spikes_s={3: 1.0})]
    summary = summary_of(tmp_path / "run", points)
    tree, point = of_largest(summary, "efficiency"), summary.rows("cases")[-1]
    assert tree.overall.value == pytest.approx(point.efficiency.value)
    assert (tree.overall.low, tree.overall.high) == pytest.approx(
        (point.efficiency.low, point.efficiency.high)
    )
    assert (
        f" is {point.efficiency.value:.1%} efficient relative to" in summary.rows("verdicts")[0].scaling_text
    )
    assert summary.rows("verdicts")[0].efficiency == point.efficiency


def test_shares_of_a_step_have_no_interval_above_all_of_it(tmp_path):
    late = {1: 0.002}
    points = [Point(ranks=1), Point(ranks=2, noise=0.05, late_s=late, transfer_s=0.001)]
    tree = of_largest(summary_of(tmp_path / "run", points, steps=8), "efficiency")
    assert max(known.high for known in (tree.load_balance, tree.parallel, tree.communication)) <= 1


def test_a_phase_that_only_communicates_is_given_no_efficiency(tmp_path):
    phases = {tree.phase for tree in summary_of(tmp_path / "run", WEAK).rows("efficiency")}
    assert phases == {"", "data", "forward", "backward", "update"}


def test_the_ideal_wall_tells_a_bubble_from_a_slow_network_whatever_the_clocks_say(tmp_path):
    shape = {"ranks": 2, "noise": 0.0, "clock_bound_s": 1.0}
    bubble = Point(series="bubble", transfer_s=0.05, rank_row={"t_ideal_s": 20 * 0.145}, **shape)
    network = Point(series="network", transfer_s=0.05, rank_row={"t_ideal_s": 20 * 0.105}, **shape)
    summary = summary_of(tmp_path / "run", [bubble, network])
    assert [verdict.cause for verdict in summary.rows("verdicts")] == ["serialisation", "transfer"]
    first, second = map(values, summary.rows("lost_time"))
    assert (first.serialisation, first.transfer) == pytest.approx((0.045 / 0.15, 0.005 / 0.15))
    assert (second.serialisation, second.transfer) == pytest.approx((0.005 / 0.15, 0.045 / 0.15))
    assert first.wait_or_transfer == second.wait_or_transfer == 0


def test_every_phase_and_every_axis_has_its_factors(tmp_path):
    summary = summary_of(tmp_path / "run", WEAK)
    case = summary.rows("cases")[-1].case
    backward = next(
        tree for tree in summary.rows("efficiency") if (tree.case, tree.phase) == (case, "backward")
    )
    assert backward.of_step == pytest.approx(0.090 / 0.150)
    assert backward.load_balance.value == pytest.approx((0.060 + 0.030 / 4) / 0.090)
    assert backward.computation.value == pytest.approx(0.060 / (0.060 + 0.030 / 4))
    assert backward.serialisation is None
    (axis,) = [tree for tree in summary.rows("axes") if tree.case == case]
    assert (axis.axis, axis.serialisation, axis.transfer) == ("dp", None, None)
    assert axis.parallel == pytest.approx(1 - (0.030 * 3 / 4 + 0.020) / 0.150)
    assert axis.load_balance == pytest.approx(0.1075 / 0.130)


def test_a_wait_for_nothing_is_on_no_axis(tmp_path):
    run, case = write_run(tmp_path / "run", WEAK, repeats=1, joined=False), WEAK[1].case.id
    calls = read_part(run / "data", "calls", case, 0).to_pylist()
    waits = [row | {"axis": "", "transfer_s": 0.0, "wait_s": 0.0} for row in calls]
    write_part(run / "data", "calls", case, 0, [*calls, *waits])
    assert {tree.axis for tree in Findings(load(run)).rows("axes")} == {"dp"}


def test_balance_along_an_axis_compares_the_ranks_that_meet_on_it():
    compute_s, sizes = [1.0, 2.0, 3.0, 4.0], Plan(pp=2, dp=2).sizes
    assert balance(sizes, "dp", compute_s) == pytest.approx(10 / (2 + 2 + 4 + 4))
    assert balance(sizes, "pp", compute_s) == pytest.approx(10 / (3 + 4 + 3 + 4))
    assert balance(sizes, "pp+dp", compute_s) == pytest.approx(10 / 16)


def test_what_a_launch_takes_outside_its_steps_is_a_loss_where_a_step_is_the_whole_launch(tmp_path):
    program = Workload(command="./a", watch=True, step_time="wall")

    def point(ranks, transfer_s, wall_s):
        times = {"step_s": wall_s, "wall_s": wall_s}
        return Point(
            ranks=ranks,
            scaling="strong",
            compute_s=0.1 / ranks,
            transfer_s=transfer_s,
            workload=program,
            row=times,
        )

    summary = summary_of(tmp_path / "run", [point(1, 0.0, 2.5), point(2, 0.01, 1.7)])  # 0.5 s beside 20 steps
    base, lost = summary.rows("lost_time")
    efficiency = 2.5 / (2 * 1.7)
    assert (base.outside.value, base.useful.value) == pytest.approx((0, 1))
    assert lost.useful.value == pytest.approx(efficiency)
    assert lost.transfer.value == pytest.approx(20 * 0.01 / 1.7)
    assert lost.outside.value == pytest.approx(0.5 / 1.7 - efficiency * 0.5 / 2.5)
    assert lost.scaling.value == pytest.approx(0)


def test_a_launch_that_is_watched_apart_says_what_is_lost_and_nothing_of_how_long_a_step_takes(tmp_path):
    points = [Point(ranks=ranks, bad_repeats=[0], bad_status="watched") for ranks in (1, 2)]
    summary = summary_of(tmp_path / "run", points)
    assert [case.step_s.value for case in summary.rows("cases")] == pytest.approx([0.1, 0.1])
    assert [case.launches for case in summary.rows("cases")] == [2, 2]
    assert [case.failed for case in summary.rows("cases")] == [0, 0]
    assert summary.complete
