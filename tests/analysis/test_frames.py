import json
import os

import pytest
from synthetic import Point, write_run

from pscale.analysis.frames import load, newest
from pscale.errors import ResultsError


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "suite" / "run", [Point(ranks=1), Point(ranks=2)], repeats=2, steps=3)


def test_a_run_is_read_with_small_keys_and_categories(run):
    found = load(run)
    assert len(found.cases) == 4
    assert str(found.steps["phase"].dtype) == "category"
    assert str(found.steps["rank"].dtype) == "int32"
    assert found.pending == ()


def test_launches_without_a_row_are_pending_and_half_written_parts_do_not_count(run):
    case = load(run).cases["case"][0]
    part = run / "data" / f"cases-{case}-1.parquet"
    part.rename(part.with_suffix(".tmp"))
    assert load(run).pending == ((case, 1),)


def test_a_run_without_any_row_is_all_pending(tmp_path):
    run = write_run(tmp_path / "run", [Point(ranks=1, only_repeats=())], repeats=3)
    assert [repeat for _, repeat in load(run).pending] == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "it has no run.json"),
        ("{", "cannot be read as JSON"),
        ("[]", "not written by pscale"),
        ('{"format": 99, "cases": []}', "upgrade pscale"),
        ('{"format": 1, "cases": [{}]}', "lists no cases"),
    ],
)
def test_a_folder_that_is_no_run_says_what_it_is_instead(run, content, said):
    file = run / "run.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(ResultsError, match=said):
        load(run)


def test_a_missing_folder_and_a_run_without_data_say_what_to_do(run, tmp_path):
    with pytest.raises(ResultsError, match="no such folder; name a run"):
        load(tmp_path / "nothing")
    (run / "data").rename(run / "elsewhere")
    with pytest.raises(ResultsError, match="run the suite again"):
        load(run)


def test_a_foreign_table_in_the_data_is_refused(run):
    (run / "data" / "steps-x-0.parquet").write_text("not Parquet")
    with pytest.raises(ResultsError, match="not a readable Parquet file"):
        load(run)


def test_the_newest_run_is_the_one_begun_last(run):
    later = run.parent.parent / "another" / "run"
    later.mkdir(parents=True)
    (later / "run.json").write_text(json.dumps({"format": 1, "cases": []}))
    os.utime(run / "run.json", (1, 1))
    assert newest(run.parent.parent) == later


def test_a_folder_without_runs_says_how_to_make_one(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ResultsError, match="pscale run SUITE"):
            newest(folder)
