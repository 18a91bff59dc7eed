"""Which folders are runs, and which of them is the newest."""

import os
from pathlib import Path

import pytest

from pscale.errors import ResultsError, UsageError
from pscale.runs.run_folders import newest, run_folder, run_folders


def run_in(root, name, begun=1):
    """Make the folder of a run."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    os.utime(folder / "run.json", (begun, begun))
    return folder


@pytest.mark.figure
def test_the_newest_run_is_the_one_begun_last(tmp_path):
    run_in(tmp_path, "weak/b", begun=1)
    later = run_in(tmp_path, "strong/a", begun=2)
    assert newest(tmp_path) == later
    assert newest(tmp_path / "weak") == tmp_path / "weak" / "b"


def test_shipped_reports_are_runs_only_where_their_folder_is_named(tmp_path, monkeypatch):
    shipped = run_in(tmp_path, "gallery/weak", begun=2**31)
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


@pytest.mark.figure
def test_a_suite_means_its_newest_run_by_name_by_folder_and_counted_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reports = Path("reports")
    first = run_in(reports, "weak/2026-01-01T000000-aaaa", begun=9e9)  # resumed or copied later
    second = run_in(reports, "weak/2026-01-02T000000-bbbb")
    other = run_in(reports, "strong/2026-01-03T000000-cccc")
    meant = {
        None: other,
        "weak": second,
        "reports/weak": second,
        "weak~0": second,
        "weak~1": first,
        "reports/weak~1": first,
        "strong": other,
        "reports": other,
        first.name: first,
        str(first): first,
    }
    for word, folder in meant.items():
        assert run_folder(word and Path(word), reports) == folder, word


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("wek", ResultsError, "did you mean 'weak'"),
        ("weak~2", ResultsError, "has 1 run, so there is no ~2"),
        ("nothing like it", ResultsError, "reports has runs of weak"),
        ("weak.yaml", UsageError, "pscale show SUITE"),
        ("2026-01-01T000000-aaaa~1", ResultsError, "is a run, not a suite"),
    ],
)
def test_a_word_that_means_no_run_is_answered_with_what_is_there(tmp_path, monkeypatch, word, error, said):
    monkeypatch.chdir(tmp_path)
    run_in(Path("reports"), "weak/2026-01-01T000000-aaaa")
    with pytest.raises(error, match=said):
        run_folder(Path(word), Path("reports"))
