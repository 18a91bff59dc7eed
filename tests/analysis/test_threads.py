import pytest
from synthetic import Point, summary_of

from pscale.analysis.threads import lost, padded, spins, split

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
    (answer,) = summary.answers
    assert answer.startswith("Of the splits of 4 cores, 4 ranks × 1 thread (100.")
    assert answer.endswith(" takes 1.2 times as long.")
    assert "to single-threaded NumPy" in answer
    assert answer in [headline.text for headline in summary.headlines]
    (time,) = [time for time in summary.rows("threads") if time.threads == 4]
    assert time.cpu_s == pytest.approx((0.1, 0.05, 0.05, 0.04))
    assert time.spins
    first, *others = lost(time).split(", ")
    assert first.endswith("% of their time to single-threaded NumPy")
    assert [other.partition("% ")[2] for other in others] == [
        "to other processes",
        "to imbalance within BLAS",
    ]
    (tree,) = [tree for tree in summary.of_case("efficiency").values() if tree.case == time.case]
    assert tree.threads == time.efficiency


def test_splits_that_cannot_be_told_apart_are_not_ranked(tmp_path):
    (answer,) = summary_of(tmp_path / "run", hybrid(0.1)).answers
    assert (
        "1 rank × 4 threads (99.98 ms; its cores lose 37.5% of their time to single-threaded NumPy" in answer
    )
    assert "As fast: 4 ranks × 1 thread (100.1 ms)" in answer


def test_cases_of_different_work_are_no_splits(tmp_path):
    points = [Point(ranks=4), Point(ranks=1, threads=4)]  # weak: four times the batch
    assert summary_of(tmp_path / "run", points).answers == ()
