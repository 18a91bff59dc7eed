from types import SimpleNamespace

import pandas as pd
import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.caveats import MACHINE, said
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.resources import lost, observations, padded, spins, split
from pscale.config.metrics import METRICS, depends_on_time, unit_of
from pscale.report.brief import Answer, card
from pscale.report.topics.variants import ranking

COLUMNS = (
    "steal_s",
    "busy_s",
    "cgroup_throttled_s",
    "thermal_throttles",
    "clock_mhz",
    "load_average",
    "cpu_s",
    "gemm_cores",
    "unaccounted_s",
)


def told(*rows, cores=2, bound=False):
    """Return the interference that the given ranks observed, each one a launch of two seconds on CPU 0."""
    usual = {
        "case": "a",
        "host": "node",
        "cpus": "0",
        "threads": 1,
        "wall_s": 2.0,
        "involuntary_context_switches": 0,
        "governor": None,
    }
    ranks = [
        usual | dict.fromkeys(COLUMNS, None) | {"repeat": repeat} | row for repeat, row in enumerate(rows)
    ]
    table = pd.DataFrame(ranks).astype(dict.fromkeys(COLUMNS, "float64"))
    seen = SimpleNamespace(**observations(table)["a"])
    planned = {"launch": {"bind": "cores" if bound else "none"}}
    return dict(said(MACHINE, SimpleNamespace(seen=seen, cores=cores, planned=planned)))


def test_a_system_that_tells_nothing_is_not_accused():
    assert told({}, {}) == {}


def test_what_a_system_does_not_tell_is_unknown_and_no_cause(tmp_path):
    silent = dict.fromkeys((*COLUMNS, "cpus"), None)
    points = [
        Point(ranks=1, rank_row=silent),
        Point(ranks=2, rank_row=silent | {"steal_s": 0.0, "cpus": "0-1"}),
    ]
    (row,) = summary_of(tmp_path / "run", points).rows("interference")
    assert (row.label, row.cause, row.share, row.steal) == ("dp 2 ranks", "steal", 0.0, 0.0)
    assert row.others is row.limit is row.off_core is None


def test_cpus_shared_by_the_ranks_of_a_launch_are_counted_once():
    shared = {"repeat": 0, "cpus": "0-3", "busy_s": 4.0, "cpu_s": 2.0}
    assert told(shared, shared) == {}
    busy = shared | {"busy_s": 6.0}
    assert "used 1 of the ranks'" in told(busy, busy)["others"]


def test_cpus_of_each_rank_are_added_up():
    rows = [{"repeat": 0, "cpus": str(cpu), "busy_s": 2.0, "cpu_s": 1.5} for cpu in range(4)]
    assert "used 1 of the ranks'" in told(*rows)["others"]


def test_ranks_of_two_hosts_have_cpus_of_their_own():
    rows = [{"repeat": 0, "host": host, "busy_s": 2.0, "cpu_s": 1.9} for host in ("a", "b")]
    assert told(*rows) == {}


def test_ranks_that_are_bound_are_not_to_be_bound():
    for bound, advice in (
        (False, "Stop that process, bind ranks to cores, or leave"),
        (True, "Stop that process, or leave"),
    ):
        assert advice in told({"involuntary_context_switches": 100}, bound=bound)["switches"]


def test_a_clock_that_changes_between_launches_is_reported_with_its_governor():
    rows = [{"clock_mhz": 2000, "governor": "powersave"}, {"clock_mhz": 3100, "governor": "powersave"}]
    assert "between 2.00 and 3.10 GHz (governor: powersave)" in told(*rows)["frequency"]
    assert told({"clock_mhz": 3000}, {"clock_mhz": 3100}) == {}


@pytest.mark.parametrize(
    ("cpus", "share"), [("0", "10%"), ("0-3", "2%"), ("x", "10%"), ("0-9999999999", "10%")]
)
def test_stolen_time_is_a_share_of_all_cpus_of_a_rank(cpus, share):
    found = told({"cpus": cpus, "steal_s": 0.2})
    assert share in found["steal"]


BUSY = {"cpus": "0-1", "busy_s": 4.4, "cpu_s": 2.0}  # two ranks of 2.2 s on two CPUs: others have 0.4 s
SLOW = {"transfer_s": 0.01}


def verdict_of(folder, **rank_row):
    return summary_of(folder, [Point(ranks=1), Point(ranks=2, rank_row=rank_row, **SLOW)], repeats=5)


@pytest.mark.parametrize(
    ("rank_row", "said"),
    [
        (BUSY, "other processes used 9.1% of these cores"),
        ({"cpus": "0-1", "steal_s": 0.88}, "the hypervisor took 20.0% of the time of these cores"),
        ({"cgroup_throttled_s": 0.44}, "a limit on CPU time stopped the ranks for 20.0% of the time"),
        ({"gemm_cores": 0.5}, "the ranks had no core for 50.0% of the time"),
    ],
)
def test_what_others_took_from_the_cores_is_said_first_and_replaces_cause_and_advice(
    tmp_path, rank_row, said
):
    summary = verdict_of(tmp_path / "run", **rank_row)
    (headline,) = summary.headlines
    assert headline.text.startswith(f"Disturbed: {said}, so these times are not the program's alone.")
    assert (summary.rows("verdicts")[0].cause, summary.rows("verdicts")[0].advice) == ("", "")
    assert "The main loss" not in headline.text
    assert "Within a step, parallel efficiency is 90.9%" in headline.text
    assert Answer.of(summary).lines[0].causes == f"disturbed: {said}"


def test_times_of_cores_that_others_took_are_not_judged(tmp_path):
    taken = {"cpus": "0-1", "steal_s": 1.5}  # a third
    expect = [
        {"metric": metric, "at_most": 1e9} for metric in ("efficiency", "step_s", "wall_s", "loss_last")
    ]
    points = [Point(ranks=1, losses=[2.0], rank_row=taken), Point(ranks=2, losses=[2.0])]
    run = write_run(tmp_path / "run", points, expect=expect)
    summary = Findings(load(run), predict=None)
    answers = {(each.metric, each.label): each.answer for each in summary.rows("expectations")}
    assert {answer for (metric, _), answer in answers.items() if metric == "loss_last"} == {"holds"}
    assert {answer for (metric, _), answer in answers.items() if metric != "loss_last"} == {"undecided"}
    (verdict,) = summary.rows("verdicts")
    assert (verdict.answer, verdict.interference) == ("undecided", "steal")
    assert card(run).answer == "undecided", "the list of runs says what the report does"
    calm = write_run(tmp_path / "calm", [Point(ranks=1), Point(ranks=2)], expect=expect)
    assert card(calm).answer == "holds"
    assert summary.headlines[0].text.startswith("Disturbed: the hypervisor took ")


def test_threads_that_share_a_core_are_not_called_slow_memory(tmp_path):
    half = {"threads": 2, "gemm_cores": 1.0}
    points = [Point(ranks=1, scaling="strong"), Point(ranks=1, threads=2, scaling="strong", rank_row=half)]
    summary = summary_of(tmp_path / "run", points)
    assert summary.headlines[0].text.startswith("Disturbed: the ranks had no core for 50.0% of the time")
    assert "memory bandwidth" not in summary.headlines[0].text


def test_others_on_cores_that_a_case_leaves_free_take_nothing_from_it(tmp_path):
    summary = verdict_of(tmp_path / "run", **BUSY | {"cpus": "0-7", "busy_s": 9.0})
    assert {each.share for each in summary.rows("interference")} == {0.0}
    assert summary.rows("verdicts")[0].cause == "transfer"


def test_a_small_loss_may_come_of_little_interference(tmp_path):
    little = {"cpus": "0-1", "steal_s": 0.08}  # 2 %
    points = [Point(ranks=1), Point(ranks=2, rank_row=little, transfer_s=0.003)]
    assert summary_of(tmp_path / "small", points).rows("verdicts")[0].interference
    points = [Point(ranks=1), Point(ranks=2, rank_row=little, transfer_s=0.03)]
    assert summary_of(tmp_path / "large", points).rows("verdicts")[0].cause == "transfer"


def test_what_changes_with_the_speed_of_a_program_is_told_by_its_unit():
    judged = {"loss_first", "loss_last"}
    assert {metric for metric in METRICS if not depends_on_time(metric, unit_of(metric))} == judged
    told = {unit: depends_on_time("mine", unit) for unit in ("µs", "min", "GB/s", "1/s", "GFLOPS", "steps/s")}
    assert all(told.values()), told
    told = {unit: depends_on_time("mine", unit) for unit in ("", "%", "GiB", "eV", "iterations", "m/K")}
    assert not any(told.values()), told


SHARES = ("used", "in_mpi", "single", "imbalance", "off_core")


def test_the_cores_of_a_rank_are_accounted_for_to_the_last():
    # 10 s of which 2 in MPI; BLAS on all threads for 5 s, in which two of them idle for 1 and 2 s.
    found = split([8.0, 5.0, 4.0, 3.0], compute_s=8.0, wall_s=10.0)
    assert sum(found[name] for name in SHARES) == pytest.approx(1.0)
    assert found["efficiency"] == pytest.approx(20 / 32)
    assert found["in_mpi"] == pytest.approx(4 * 2 / 40)
    assert found["single"] == pytest.approx(3 * 3 / 40)
    assert found["imbalance"] == pytest.approx((1 + 2) / 40)
    assert found["off_core"] == 0


def test_spinning_counts_as_work_at_most_as_long_as_the_rank_computes():
    found = split([10.0, 10.0], compute_s=8.0, wall_s=10.0)  # both span in MPI, or waiting for work
    assert found["efficiency"] == 1.0
    assert sum(found[name] for name in SHARES) == pytest.approx(1.0)


def test_a_main_thread_that_is_kept_off_its_core_is_no_fault_of_blas():
    found = split(padded([6.0, 0.001, 0.0], 1), compute_s=8.0, wall_s=8.0)
    assert (found["off_core"], found["single"], found["imbalance"]) == (pytest.approx(0.25), 0, 0)


def test_threads_that_never_worked_have_all_of_blas_on_one():
    found = split(padded([8.0], 2), compute_s=8.0, wall_s=8.0)
    assert (found["single"], found["efficiency"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({}, True),
        ({"omp": {"wait_policy": "active"}}, True),
        ({"omp": {"wait_policy": "passive"}}, False),
        ({"env": {"OPENBLAS_THREAD_TIMEOUT": "4"}}, False),
        ({"env": {"OPENBLAS_THREAD_TIMEOUT": "26"}}, True),
    ],
)
def test_threads_spin_unless_the_launch_says_otherwise(launch, expected):
    assert spins({"launch": launch}) is expected


def hybrid(slower_s):
    """Two splits of four cores: four ranks, and one with four threads that is slower."""
    ranks = Point(ranks=4, scaling="strong", noise=0.001, rank_row={"thread_cpu_s": [2.0]})
    threads = {"threads": 4, "thread_cpu_s": [2.0, 1.0, 1.0, 0.8]}
    one = Point(ranks=1, threads=4, scaling="strong", compute_s=slower_s, noise=0.001, rank_row=threads)
    return [ranks, one]


def test_the_fastest_split_of_the_cores_is_named_and_why_the_other_is_not(tmp_path):
    summary = summary_of(tmp_path / "run", hybrid(0.12))
    answer = summary.answers[0].text
    assert answer.startswith("Of 2 splits of 4 cores, 4 ranks × 1 thread is fastest here (100.")
    assert answer.endswith("1 rank × 4 threads takes 1.2 times as long: 17% of its step is extra compute.")
    assert answer in [headline.text for headline in summary.headlines]
    (table,) = ranking(summary, "split")
    assert [cells[1] for _, cells in table.texts()] == ["4 ranks × 1 thread", "1 rank × 4 threads"]
    (time,) = [time for time in summary.rows("threads") if time.threads == 4]
    assert time.cpu_s == pytest.approx((0.1, 0.05, 0.05, 0.04))
    assert time.spins
    first, *others = lost(time).split(", ")
    assert first.endswith("% of their time to single-threaded NumPy")
    assert [other.partition("% ")[2] for other in others] == [
        "to other processes",
        "to imbalance within BLAS",
    ]
    assert summary.of_case("efficiency")[time.case].threads == time.efficiency


def test_splits_that_cannot_be_told_apart_are_not_ranked(tmp_path):
    summary = summary_of(tmp_path / "run", hybrid(0.1))
    assert [row.answer for row in summary.ranked("split")] == ["", "equal"]
    assert "within 5% of it: " in summary.answers[0].text


def test_cases_of_different_work_are_no_splits(tmp_path):
    points = [Point(ranks=4), Point(ranks=1, threads=4)]  # weak: four times the batch
    assert summary_of(tmp_path / "run", points).answers == ()
