import math
from dataclasses import replace

import pytest
from synthetic import Point, summary_of

from pscale.analysis.late import Late
from pscale.analysis.remedy import remedy
from pscale.analysis.verdict import Costs, verdict


def test_injected_imbalance_is_named_with_rank_and_phase(tmp_path):
    points = [
        Point(ranks=ranks, noise=0.01, transfer_s=0.002, late_s={ranks - 1: 0.02 * (ranks > 1)})
        for ranks in (1, 2)
    ]
    (verdict,) = summary_of(tmp_path / "run", points).verdicts
    assert verdict.cause == "imbalance"
    assert "rank 1 on node computes" in verdict.loss
    assert "most of it in backward" in verdict.loss
    assert verdict.remedy.startswith("What helps: a look at what else runs where that rank does")


def test_injected_transfer_is_named_with_its_phase(tmp_path):
    points = [Point(ranks=ranks, noise=0.01, transfer_s=0.03 * (ranks > 1)) for ranks in (1, 4)]
    (verdict,) = summary_of(tmp_path / "run", points).verdicts
    assert verdict.cause == "transfer"
    assert "transfer in sync, 23% of the step" in verdict.loss
    assert "At 4 ranks, weak scaling keeps 7" in verdict.efficiency
    assert "95% interval" in verdict.efficiency


def test_a_rank_that_is_waited_for_explains_a_loss_of_which_that_is_a_good_part(tmp_path):
    points = [Point(ranks=ranks, transfer_s=0.03 * (ranks > 1)) for ranks in (1, 4)]
    summary = summary_of(tmp_path / "run", points)
    late = Late(
        case=summary.points[-1].case,
        rank=3,
        host="node",
        step_share=0.1,
        wait_share=0.9,
        late_steps=2,
        steps=20,
        late_s=0.1,
        phase="forward",
    )
    costs = Costs(
        losses={losses.case: losses for losses in summary.losses},
        phases=summary.phases,
        ranks=summary.ranks,
        axes=summary.axis_trees,
    )
    for share, named in ((0.1, True), (0.01, False)):
        said = verdict("", summary.points, replace(costs, late=[replace(late, step_share=share)]), {})
        assert "transfer in sync, 23% of the step" in said.loss
        assert ("The others wait for rank 3" in said.loss) is named


def test_threads_that_idle_are_named_and_cores_that_are_slow_are_not_called_threads(tmp_path):
    alone = Point(ranks=1, scaling="strong", rank_row={"thread_cpu_s": [2.0]})
    for cpu_s, cause in (([1.0, 0.3, 0.3, 0.3], "threads"), ([1.0, 1.0, 1.0, 1.0], "scaling")):
        row = {"threads": 4, "thread_cpu_s": cpu_s}
        four = Point(ranks=1, threads=4, scaling="strong", compute_s=0.05, rank_row=row)
        (verdict,) = summary_of(tmp_path / cause, [alone, four]).verdicts
        assert verdict.cause == cause
        assert "50% of the step" in verdict.loss
        assert ("idle threads" in verdict.loss) == (cause == "threads")


BOUND, LOOSE = ({"launch": {"bind": bind}} for bind in ("core", "none"))
AT_ONCE, IN_BUCKETS = ({"plan": {"reduction": reduction}} for reduction in ("all-reduce", "bucketed"))


@pytest.mark.parametrize(
    ("cause", "axis", "planned", "said"),
    [
        ("scaling", "", LOOSE, "fewer ranks on a memory bus, ranks bound to cores, or larger matrices"),
        ("scaling", "", BOUND, "fewer ranks on a memory bus, or larger matrices"),
        ("serialisation", "dp", LOOSE, "cores that nothing else uses, or ranks bound to cores"),
        ("serialisation", "dp", BOUND, "cores that nothing else uses"),
        ("serialisation", "pp", LOOSE, "more micro-batches, or another schedule"),
        ("transfer", "dp", IN_BUCKETS, "larger batches, fewer or larger messages, or a faster network"),
        (
            *("transfer", "dp", AT_ONCE),
            "gradients reduced in buckets during backward (reduction: bucketed), larger batches, "
            "or a faster network",
        ),
        ("transfer", "tp", AT_ONCE, "larger batches, fewer or larger messages, or a faster network"),
        (
            "unaccounted",
            "",
            {"timing": {"trace": True}},
            "the timeline of what the ranks did, by pscale trace",
        ),
    ],
)
def test_what_helps_is_not_what_the_case_does_already(cause, axis, planned, said):
    assert remedy(cause, axis, planned) == f"What helps: {said}."


def test_a_healthy_run_is_said_to_lose_little(tmp_path):
    (verdict,) = summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=2, transfer_s=0.0005)]).verdicts
    assert verdict.cause == ""
    assert "No single loss reaches 1%" in verdict.loss
    assert verdict.remedy == ""


def test_one_size_says_plainly_that_nothing_is_known_of_scaling(tmp_path):
    (verdict,) = summary_of(tmp_path / "run", [Point(ranks=2, transfer_s=0.05)]).verdicts
    assert verdict.efficiency.startswith("Only one size was measured (2 ranks, 53.33 samples/s)")
    assert verdict.cause == "transfer"


def test_an_efficiency_from_single_launches_is_said_to_have_no_interval(tmp_path):
    points = [Point(ranks=ranks) for ranks in (1, 2)]
    (verdict,) = summary_of(tmp_path / "run", points, repeats=1).verdicts
    assert "100% of the efficiency of 1 rank (no interval: a case has one launch only)." in verdict.efficiency


def test_the_largest_case_that_ran_speaks_and_larger_ones_are_mentioned(tmp_path):
    points = [Point(ranks=1), Point(ranks=2), Point(ranks=4, status="timeout", reason="slow")]
    (verdict,) = summary_of(tmp_path / "run", points).verdicts
    assert verdict.efficiency.startswith("At 2 ranks")
    assert "1 larger case has no result" in verdict.efficiency


def test_a_run_in_which_all_failed_and_one_that_has_not_begun_are_told_apart(tmp_path):
    failed = summary_of(tmp_path / "failed", [Point(ranks=1, status="failed", reason="x")])
    assert "no case ended well" in failed.verdicts[0].efficiency
    begun = summary_of(tmp_path / "begun", [Point(ranks=1, only_repeats=())])
    assert begun.verdicts[0].efficiency == "Nothing has been measured yet."
    assert (begun.phases, begun.wait, begun.remarks) == ((), None, ())


def test_figures_that_are_not_numbers_do_not_stop_the_report(tmp_path):
    row = {"gemm_peak_gflops": math.nan, "recording_ratio": math.nan, "step_s": math.nan, "model_flops": 0.0}
    summary = summary_of(tmp_path / "run", [Point(ranks=1, row=row), Point(ranks=2, row=row)])
    assert summary.points[1].efficiency.value == 1.0
    assert summary.points[1].peak_fraction is None
