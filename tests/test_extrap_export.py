"""Measurements for Extra-P: which numbers are its parameters, which cases share a file."""

import json

import numpy as np
import pytest
from synthetic import Point, write_run

from pscale.analysis.frames import load
from pscale.config import Plan, Workload
from pscale.export.extrap import write_extrap

SIZES, RANKS = (100, 200, 400, 800, 1600), (1, 2, 4, 8, 16)


def exported(folder, points):
    """Return the lines of each file that is written for a run of these cases."""
    run = load(write_run(folder / "run", points))
    (folder / "out").mkdir()
    return [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in write_extrap(run, folder / "out")
    ]


def program(n, ranks, step_s, **params):
    workload = Workload(command="./a {n}", params={"n": n, **params})
    label = f"{ranks} ranks, n {n} {params}"
    return Point(
        ranks=ranks, workload=workload, row={"step_s": step_s}, label=label, series=f"n {n} {params}"
    )


@pytest.mark.figure
def test_a_law_of_a_swept_number_and_the_ranks_is_read_back_from_one_file(tmp_path):
    def law(n, ranks):
        return 0.1 + 0.002 * n * np.log2(n) / ranks

    points = [program(n, ranks, law(n, ranks)) for n in SIZES for ranks in RANKS]
    (lines,) = exported(tmp_path, points)
    steps = [line for line in lines if line["callpath"] == "step"]
    assert len(steps) == 3 * len(points)
    assert {(line["params"]["n"], line["params"]["ranks"]) for line in steps} == {
        (n, ranks) for n in SIZES for ranks in RANKS
    }
    n, ranks = (np.array([line["params"][name] for line in steps]) for name in ("n", "ranks"))
    terms = np.stack([np.ones(len(n)), n * np.log2(n) / ranks], axis=1)
    found = np.linalg.lstsq(terms, np.array([line["value"] for line in steps]), rcond=None)[0]
    assert found == pytest.approx([0.1, 0.002])


@pytest.mark.figure
def test_a_number_that_follows_the_ranks_is_no_parameter_and_words_have_a_file_each(tmp_path):
    points = [program(100 * ranks, ranks, 1.0, mode=mode) for ranks in RANKS[:3] for mode in ("fast", "safe")]
    files = exported(tmp_path, points)
    assert len(files) == 2
    assert all(set(line["params"]) == {"ranks"} for lines in files for line in lines)


def test_a_plan_of_all_ranks_is_one_series_and_other_plans_are_others(tmp_path):
    same = [Point(ranks=ranks) for ranks in (1, 2, 4)]
    assert len(exported(tmp_path, same)) == 1
    other = Point(ranks=4, plan=Plan(dp=2, tp=2), label="other", series="tp")
    (tmp_path / "more").mkdir()
    assert len(exported(tmp_path / "more", [*same, other])) > 1
