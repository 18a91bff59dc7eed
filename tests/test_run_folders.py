"""Which folders are runs, and which of them is the newest."""

import os
from pathlib import Path

import pytest

from pscale.errors import ResultsError
from pscale.run_folders import newest, run_folders


def run_in(root, name, begun=1):
    """Make the folder of a run."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    os.utime(folder / "run.json", (begun, begun))
    return folder


def test_the_newest_run_is_the_one_begun_last(tmp_path):
    run_in(tmp_path, "weak/b", begun=1)
    later = run_in(tmp_path, "strong/a", begun=2)
    assert newest(tmp_path) == later
    assert newest(tmp_path / "weak") == tmp_path / "weak" / "b"


def test_shipped_reports_are_runs_only_where_their_folder_is_named(tmp_path, monkeypatch):
    shipped = run_in(tmp_path, "gallery/weak", begun=9)
    with pytest.raises(ResultsError, match="no runs here"):
        newest(tmp_path)
    own = run_in(tmp_path, "weak/2026-01-01T000000-abcd")
    of_a_suite_of_that_name = run_in(tmp_path, "gallery/2026-01-01T000000-abcd", begun=2)
    assert sorted(run_folders(tmp_path)) == sorted([own, of_a_suite_of_that_name])
    assert newest(tmp_path) == of_a_suite_of_that_name
    assert newest(shipped.parent) == shipped
    monkeypatch.chdir(shipped.parent)
    assert Path("weak") in run_folders(Path())


def test_a_folder_without_runs_says_how_to_make_one(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ResultsError, match="pscale run SUITE"):
            newest(folder)
