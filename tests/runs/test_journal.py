import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from noop_runs import note_end, note_start
from patience import LIMIT_S, lives, wait_for

from pscale.errors import LaunchError, ResultsError, UsageError
from pscale.runs import journal as module
from pscale.runs.journal import Journal, are_alike, newest_unfinished
from pscale.runs.run_events import Ended, Launched
from pscale.runs.run_folders import newest, run_folder, run_folders


def document(cases=("aa", "bb"), repeats=2, width=64, cpu_model="CPU"):
    return {
        "suite": {"name": "weak", "given": "name: weak", "resolved": {"width": width}},
        "cases": [{"id": case} for case in cases],
        "repeats": repeats,
        "seed": 1,
        "provenance": {"machine": {"cpu_model": cpu_model, "cores": 2}},
    }


@pytest.fixture
def journal(tmp_path):
    return Journal.create(tmp_path, "weak", document())


def end(journal, *keys):
    for order, key in enumerate(keys):
        note_start(journal, key, order)
        note_end(journal, key, "ok", "", 1.0)


def test_a_run_reads_back_as_it_was_made(journal):
    again = Journal.open(journal.folder)
    assert again.document == {**document(), "format": 1, "run": journal.name}
    assert again.data.is_dir()
    assert again.case_folder(("aa", 1)) == journal.folder / "cases" / "aa-1"
    assert (again.finished(), again.interrupted(), again.is_finished()) == (set(), set(), False)


def test_what_was_launched_and_never_ended_is_neither_finished_nor_forgotten(journal):
    end(journal, ("aa", 0))
    note_start(journal, ("bb", 0), 1)
    note_end(journal, ("bb", 1), "failed", "rank 1: “x”\nsecond line", 2.0)
    again = Journal.open(journal.folder)
    assert again.finished() == {("aa", 0), ("bb", 1)}
    assert again.interrupted() == {("bb", 0)}
    assert [type(event) for event in again.events()] == [Launched, Ended, Launched, Ended]
    assert again.events()[-1].reason == "rank 1: “x”\nsecond line"


def test_a_run_is_finished_when_every_case_has_ended_as_often_as_asked(journal):
    end(journal, ("aa", 0), ("bb", 0), ("aa", 1))
    assert not journal.is_finished()
    end(journal, ("bb", 1))
    assert journal.is_finished()


def test_a_torn_last_line_is_ignored_and_does_not_spoil_the_next(journal):
    end(journal, ("aa", 0))
    path = journal.folder / "journal.jsonl"
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        left = Journal.open(journal.folder)
        assert left.finished() == set()
        with left.locked():
            end(left, ("bb", 0))
        assert left.finished() == {("bb", 0)}


def test_a_damaged_line_inside_is_reported_and_not_skipped(journal):
    (journal.folder / "journal.jsonl").write_text(
        '{"event": "laun\n{"event": "ended", "case": "a", "repeat": 0}\n'
    )
    with pytest.raises(ResultsError, match=r"journal\.jsonl: a line is damaged"):
        journal.events()


def test_the_second_of_two_pscale_on_one_run_is_told_who_the_first_is(journal):
    code = """
import sys, pathlib
from pscale.runs.journal import Journal
with Journal.open(pathlib.Path(sys.argv[1])).locked() as works:
    print(works, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, journal.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "True\n"
        with (
            pytest.raises(LaunchError, match=rf"another pscale \(process {other.pid} on .*--new"),
            journal.locked(),
        ):
            pass
        other.kill()  # a lock dies with its process, however that ends
        other.wait()
    with journal.locked() as works:
        assert works


def test_one_that_was_killed_while_it_started_a_program_leaves_its_lock_a_moment_later(journal, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", LIMIT_S)
    code = """
import os, pathlib, signal, sys, time
from pscale.runs.journal import Journal
with Journal.open(pathlib.Path(sys.argv[1])).locked():
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)  # and then it would become that program
    os._exit(0)
"""
    killed = subprocess.Popen([sys.executable, "-c", code, journal.folder])
    wait_for(lambda: not lives(killed.pid))  # a zombie so far
    assert journal.is_abandoned()
    with journal.locked() as works:
        assert works
    assert killed.wait() == -9
    assert journal.is_abandoned() is False


def test_a_file_system_without_locks_is_reported(journal, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    with journal.locked() as works:
        assert works is False


def test_the_newest_unfinished_run_of_the_same_work_is_found(tmp_path):
    wanted = document()
    runs = []
    for place, made in enumerate(
        (document(), document(), document(width=32), document(cpu_model="other"), document(), document())
    ):
        run = Journal.create(tmp_path, "weak", made)
        run.folder = run.folder.rename(run.folder.with_name(f"2026-01-01T00000{place}-0000"))
        runs.append(run)
    end(runs[4], ("aa", 0), ("bb", 0), ("aa", 1), ("bb", 1))
    assert newest_unfinished(tmp_path, "weak", wanted).folder == runs[5].folder
    (runs[5].folder / "run.json").write_text("{")
    assert newest_unfinished(tmp_path, "weak", wanted).folder == runs[4].folder, "nobody was told of its end"
    (runs[4].folder / "report.md").touch()
    (tmp_path / "weak" / "2027-notes").mkdir()
    found = newest_unfinished(tmp_path, "weak", wanted)
    assert found is not None
    assert found.folder == runs[1].folder
    assert newest_unfinished(tmp_path, "strong", wanted) is None


def test_a_run_that_was_killed_while_it_was_made_is_none_to_anybody(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.atomic_files.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        Journal.create(tmp_path, "weak", document())
    assert list(tmp_path.glob("weak/*/data"))
    assert newest_unfinished(tmp_path, "weak", document()) is None
    with pytest.raises(ResultsError, match="no runs here"):
        newest(tmp_path)


def test_comments_and_seeds_do_not_make_it_another_work_but_repeats_and_cases_do():
    base = document()
    same = {**base, "seed": 2, "suite": {**base["suite"], "given": "# new\nname: weak"}}
    assert are_alike(same, base)
    others = [document(repeats=3), document(cases=("aa",)), document(width=32), document(cpu_model="x")]
    assert not any(are_alike(other, base) for other in others)


def test_a_field_that_a_later_version_adds_makes_no_other_work_of_a_run():
    later = document()
    later["suite"]["resolved"] |= {"norm": "layer", "save": {"every": 0}}
    assert are_alike(document(), later)


def test_names_of_runs_made_in_one_second_differ(tmp_path):
    names = [Journal.create(tmp_path, "weak", document()).name for _ in range(3)]
    assert len(set(names)) == 3
    assert all(len(name) == len("2026-11-20T094107-7f3a") for name in names)


def test_what_is_no_run_and_what_is_too_new_is_refused(tmp_path, journal):
    with pytest.raises(ResultsError, match=r"is not a run of pscale: it has no run\.json$"):
        Journal.open(tmp_path)
    for text in ("[]", "{}", "\x00"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ResultsError, match="is not a run of pscale"):
            Journal.open(tmp_path)
    (journal.folder / "run.json").write_text(json.dumps({**journal.document, "format": 2}))
    with pytest.raises(ResultsError, match=r"format 2.*upgrade"):
        Journal.open(journal.folder)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc"])
def test_a_suite_cannot_put_its_runs_elsewhere(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be the name of a suite"):
        Journal.create(tmp_path, name, document())


def test_a_full_disk_is_reported_with_the_place(journal, monkeypatch):
    def fill(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(LaunchError, match=f"cannot write in {journal.folder}: No space left on device"):
        note_start(journal, ("aa", 0), 0)


def test_a_place_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(LaunchError, match=r"cannot write in .*reports.*; --reports FOLDER"):
        Journal.create(tmp_path / "reports", "weak", document())


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
