from dataclasses import replace

import numpy as np
import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.caveats import _of_trends
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Launch, Workload

FLAWS = {
    "deviation": ({"noise": 0.25}, "% of the mean"),
    "extreme": ({"spikes_s": {7: 0.2}}, "slowest 300 ms, mean 110 ms"),
    "interval": ({"launch_noise": 0.1}, "is only known to ±"),
    "unsteady": (
        {"spikes_s": {step: 0.001 * (20 - step) for step in range(20)}, "noise": 0.002},
        "second half of 3 of 3 launches",
    ),
    "recording": ({"row": {"recording_ratio": 1.034}}, "3.4% longer"),
    "replicas": ({"row": {"replica_spread": 1e-3}}, "1.0e-03"),
    "loss": ({"losses": [3.0, 2.0, float("nan")]}, "from step 2 of 3"),
    "threads": ({"rank_row": {"threads": 4}}, "4 threads instead of 1"),
    "idle": (
        {"threads": 2, "rank_row": {"gemm_cores": 1.02}},
        "2 threads of a rank kept only 1.0 cores busy",
    ),
    "unaccounted": ({"rank_row": {"unaccounted_s": 0.1, "wall_s": 2.0}}, "5.0% of step time"),
    "steal": ({"rank_row": {"steal_s": 0.4, "wall_s": 2.0}}, "20% of the time"),
    "switches": (
        {"rank_row": {"involuntary_context_switches": 100, "wall_s": 2.0}},
        "50 involuntary context switches per second",
    ),
    "quota": ({"rank_row": {"cgroup_throttled_s": 0.4, "wall_s": 2.0}}, "stopped the ranks for 20%"),
    "throttled": ({"rank_row": {"thermal_throttles": 3, "wall_s": 2.0}}, "18 times in 12 s"),
    "others": (
        {"rank_row": {"cpus": "0-1", "busy_s": 3.0, "cpu_s": 1.0, "wall_s": 2.0}},
        "used 0.5 of the ranks' cores",
    ),
    "load": ({"rank_row": {"load_average": 9.5}}, "load was 9.5, but the run uses at most 4 cores"),
    "oversubscribed": ({"rank_row": {"cpus": "3"}}, "2 ranks × 1 thread share 1 CPU,"),
    "clock": ({"transfer_s": 0.01, "clock_bound_s": 1e-3}, "agree only to 1 ms"),
}


@pytest.fixture(scope="module")
def flawed(tmp_path_factory):
    points = [
        Point(ranks=2, series="x" * (1 + place), label=kind, **flaw)
        for place, (kind, (flaw, _)) in enumerate(FLAWS.items())
    ]
    return summary_of(tmp_path_factory.mktemp("flawed") / "run", points)


@pytest.mark.parametrize("kind", FLAWS)
def test_a_flaw_is_reported_with_its_figure(flawed, kind):
    (warning,) = [
        warning for warning in flawed.rows("warnings") if warning.kind == kind and warning.label == kind
    ]
    assert FLAWS[kind][1] in warning.text


def test_a_flaw_is_reported_of_the_case_that_has_it_alone(flawed):
    foreign = {
        (warning.kind, warning.label) for warning in flawed.rows("warnings") if warning.kind != warning.label
    }
    assert foreign <= {("deviation", "extreme"), ("interval", "deviation"), ("extreme", "deviation")}


def test_a_healthy_run_has_no_warnings(tmp_path):
    point = Point(ranks=4, noise=0.01, transfer_s=0.01, late_s={0: 0.01}, rank_row={"cpus": "0-2,5"})
    assert summary_of(tmp_path / "run", [point]).rows("warnings") == []


@pytest.mark.parametrize(("ranks", "shared"), [(2, ""), (4, "4 ranks × 1 thread share 2 CPUs")])
def test_ranks_of_a_program_that_share_cores_are_reported_although_they_saw_no_cpus(tmp_path, ranks, shared):
    launch = Launch(oversubscribe=True)
    points = [Point(ranks=ranks, workload=Workload(command="./a.out"), launch=launch)]
    summary = summary_of(tmp_path / "run", points, cores=2)
    assert [
        each.text[: len(shared)] for each in summary.rows("warnings") if each.kind == "oversubscribed"
    ] == ([shared] if shared else [])
    assert bool(summary.oversubscribed) is bool(shared)


def test_what_recording_costs_is_the_price_of_an_event_times_the_events_of_the_busiest_rank(tmp_path):
    costs = {"recording_ratio": 0.997, "recording_call_s": 1e-6}
    points = [
        Point(ranks=ranks, row=costs, rank_row={"events": 500 * ranks, "wall_s": 2.0}) for ranks in (1, 2)
    ]
    (said,) = [note for note in summary_of(tmp_path / "run", points).notes if note.startswith("Recording")]
    assert "overhead in step time: -0.3% to -0.3% by case" in said
    assert said.endswith("; an event takes 1 µs, all events of a rank at most 0.05% of its steps.")


def test_launches_on_different_nodes_or_libraries_are_reported_once_for_the_run(tmp_path):
    points = [Point(ranks=1, hosts=("a",)), Point(ranks=2, hosts=("b",), rank_row={"blas": "mkl"})]
    warnings = summary_of(tmp_path / "run", points).rows("warnings")
    assert [(warning.kind, warning.case) for warning in warnings] == [("blas", ""), ("hosts", "")]
    assert "(a, b)" in warnings[1].text


def test_one_job_over_several_nodes_is_no_flaw(tmp_path):
    assert summary_of(tmp_path / "run", [Point(ranks=4, hosts=("a", "b"))]).rows("warnings") == []


def test_an_automatic_run_that_stayed_vaguer_than_asked_says_so(tmp_path):
    points = [
        Point(ranks=1, launch_noise=0.02),
        Point(ranks=2, launch_noise=0.03),
        Point(ranks=4, launch_noise=0.03, only_repeats=range(4)),
    ]
    auto = {"precision": 0.01, "most": 6, "least": 3, "budget_s": None}
    summary = summary_of(tmp_path / "run", points, repeats=6, auto=auto)
    told = {warning.label: warning.text for warning in summary.rows("warnings") if warning.kind == "interval"}
    assert set(told) == {points[1].case.label, points[2].case.label}
    assert "not to ±1% as requested: `max_repeats` was reached" in told[points[1].case.label]
    assert "the run is not finished" in told[points[2].case.label]
    assert any("known to ±1%, at most 6 per case" in note and "4 to 6" in note for note in summary.notes)
    spent = summary_of(tmp_path / "other", points, repeats=6, auto=auto | {"budget_s": 90.0})
    (text, _) = (warning.text for warning in spent.rows("warnings") if warning.kind == "interval")
    assert "The efficiency is only known to ±" in text
    assert "not to ±1% as requested: the budget was spent" in text


def begun(run, grown, noise=0.01, seed=1):
    """Return the run with launches that begin one after the other; at the end those of a case take longer."""
    cases, random = run.cases, np.random.default_rng(seed)
    order = np.lexsort((random.random(len(cases)), cases["repeat"])).argsort()
    longer = [
        1 + grown.get(label, 0.0) * at / len(cases) for label, at in zip(cases["label"], order, strict=True)
    ]
    times = 0.1 * np.array(longer) * np.exp(noise * random.normal(size=len(cases)))
    return replace(run, cases=cases.assign(started_unix_s=1e9 + 60.0 * order, step_s=times))


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    points = [Point(ranks=ranks) for ranks in (1, 2, 4, 8)]
    return load(write_run(tmp_path_factory.mktemp("begun") / "run", points, repeats=8, steps=3, joined=True))


def trends(run):
    return {
        (each.kind, each.label): each.text for each in Findings(run).rows("warnings") if each.kind == "trend"
    }


@pytest.mark.figure
def test_launches_that_take_longer_the_later_they_begin_are_a_trend_of_the_run_or_of_one_case(quiet):
    labels = quiet.cases["label"].unique()
    ((about, text),) = trends(begun(quiet, dict.fromkeys(labels, 0.15))).items()
    assert about == ("trend", "")
    assert text.startswith("Launches of all cases take 1")
    assert "% longer at the end of the run" in text
    ((about, text),) = trends(begun(quiet, dict.fromkeys(labels, -0.2))).items()
    assert "% less time at the end of the run" in text
    assert "--wait-idle" in text
    ((about, text),) = trends(begun(quiet, {labels[2]: 0.2})).items()
    assert about == ("trend", labels[2])
    assert text.startswith("Launches take ")


def test_noise_of_launches_and_of_rounds_is_hardly_ever_a_trend(quiet):
    found = sum(bool(_of_trends(begun(quiet, {}, noise=0.03, seed=seed).cases)) for seed in range(200))
    assert found <= 8  # 1 % of the run, 1 % of all cases: 4 on average
    by_round = begun(quiet, {}).cases
    factor = np.exp(0.05 * np.random.default_rng(2).normal(size=8))[by_round["repeat"]]
    assert not _of_trends(by_round.assign(step_s=by_round["step_s"] * factor))


@pytest.mark.figure
def test_an_efficiency_above_100_percent_by_more_than_its_interval_is_doubted(tmp_path):
    strong = {"scaling": "strong", "launch_noise": 0.01}
    points = [
        Point(ranks=1, compute_s=0.4, **strong),
        Point(ranks=2, compute_s=0.2, **strong),
        Point(ranks=4, compute_s=0.08, **strong),
    ]
    gains = [
        each
        for each in summary_of(tmp_path / "run", points, repeats=8).rows("warnings")
        if each.kind == "gain"
    ]
    (gain,) = gains  # 100 % of two ranks is none
    assert gain.case == points[2].case.id
    assert "above 100%" in gain.text
    assert "choose a larger `base`" in gain.text
