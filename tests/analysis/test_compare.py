import json
from dataclasses import replace

import pytest
from synthetic import Point, write_run

from pscale.analysis.compare import compare
from pscale.analysis.frames import load
from pscale.analysis.messages import compared
from pscale.config import Workload

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
