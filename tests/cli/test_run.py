"""Which run `pscale run` goes on with, and what `pscale status` shows of it; the launcher does nothing."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from noop_runs import make_suite

from pscale.cli import main
from pscale.cli import run as run_module
from pscale.cli import status as status_module
from pscale.launch import launcher
from pscale.launch.journal import Journal


@pytest.fixture
def pscale(tmp_path, monkeypatch, capsys):
    """Call the command line in a folder with a suite; return its exit code and what it said."""
    make_suite(tmp_path)
    monkeypatch.chdir(tmp_path)
    launcher.identify.cache_clear()

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["pscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, " ".join((captured.out + captured.err).split())

    return call


@pytest.fixture
def run(pscale, tmp_path):
    """Measure the suite and return what was said, and the run that has changed or is new."""

    def measure(*options, code=0):
        before = {path: path.read_bytes() for path in tmp_path.glob("reports/noop/*/journal.jsonl")}
        found, said = pscale("run", "noop.yaml", "--no-report", *options)
        assert found == code, said
        changed = [
            path.parent
            for path in tmp_path.glob("reports/noop/*/journal.jsonl")
            if path.read_bytes() != before.get(path)
        ]
        return said, changed

    return measure


def unfinish(folder):
    """Take the end of the last launch out of a run's journal."""
    journal = folder / "journal.jsonl"
    *kept, _, closed = journal.read_text().splitlines(keepends=True)
    assert '"closed"' in closed
    journal.write_text("".join(kept))


def test_a_run_that_is_not_finished_is_gone_on_with_and_a_finished_one_is_left_alone(run):
    said, (first,) = run()
    assert "continuing" not in said
    assert said.count("ok 21.95 s a step") == 3
    assert Journal.open(first).is_finished()
    said, (second,) = run()
    assert second != first
    assert "continuing" not in said
    unfinish(first)
    said, changed = run()
    assert changed == [first]
    assert f"continuing {first}, where 2 launches have ended (--new starts a new run)" in said


def test_a_command_that_a_dry_run_prints_starts_a_launch_again_where_it_is_pasted(run, pscale, tmp_path):
    run("--reports", "my reports")
    (folder,) = (tmp_path / "my reports" / "noop").iterdir()
    results = set(folder.glob("cases/*/result.json"))
    _, said = pscale("run", "noop.yaml", "--reports", "my reports", "--dry-run")
    commands = re.findall(r"BLIS_NUM_THREADS=1 .*?-0'", said)
    assert len(commands) == len(results) == 3
    for result in results:
        result.unlink()
    for text in commands:
        assert sys.executable in shlex.split(text)
        subprocess.run(text.replace("RUN", folder.name), shell=True, check=True)
    assert set(folder.glob("cases/*/result.json")) == results


def reporter(tmp_path, monkeypatch, text):
    """Have `text` for a program in place of what reports."""
    (tmp_path / "reporter.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(run_module, "REPORTER", "reporter")


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL (often: too little memory)"), (40, "signal 40")])
def test_a_report_that_is_killed_is_reported_and_the_run_is_reported_and_not_measured_again(  # noqa: PLR0917
    run, pscale, tmp_path, monkeypatch, number, name
):
    with monkeypatch.context() as patch:
        reporter(tmp_path, patch, f"import os; os.kill(os.getpid(), {number})")
        code, said = pscale("run", "noop.yaml")
    assert code == 1
    assert f"the report was killed by {name}; all launches are kept report them with: pscale report '" in said
    said, changed = run()
    assert "where 3 launches have ended" in said
    (folder,) = changed
    assert [record["event"] for record in Journal.open(folder).records()].count("launched") == 3
    _, (another,) = run()
    assert another != folder


def test_the_exit_code_of_what_reports_is_that_of_the_run(pscale, tmp_path, monkeypatch):
    reporter(tmp_path, monkeypatch, "import sys; sys.exit(5)")
    assert pscale("run", "noop.yaml")[0] == 5


def test_a_run_is_reported_when_it_has_ended_by_a_process_that_holds_no_lock_of_it(pscale, tmp_path):
    code, said = pscale("run", "noop.yaml")
    assert code == 0, said
    (folder,) = tmp_path.glob("reports/noop/*")
    assert (folder / "report.html").exists()
    with Journal.open(folder).locked() as works:
        assert works


def test_new_and_run_choose_what_is_gone_on_with(run, pscale):
    _, (first,) = run()
    _, (second,) = run("--new")
    for folder in (first, second):
        unfinish(folder)
    _, (third,) = run("--new")
    assert third not in (first, second)
    _, changed = run("--run", first)
    assert changed == [first]
    assert not Journal.open(second).is_finished()
    said, changed = run("--run", second, "--set", "train.batch=2", code=2)
    assert "is a run of another suite, or of this one with other settings" in said
    assert changed == []
    code, said = pscale("run", "noop.yaml", "noop.yaml", "--run", second)
    assert (code, "give one suite" in said) == (2, True)


def test_status_can_be_watched_until_the_run_has_finished(run, pscale, monkeypatch):
    monkeypatch.setattr(status_module, "_LOOK_S", 0.01)
    _, (folder,) = run()
    last = Journal.open(folder).records()[-2]
    label = next(
        f"{case['label']} #1" for case in Journal.open(folder).document["cases"] if case["id"] == last["case"]
    )
    unfinish(folder)
    assert "2 of 3 launches have ended: 2 ok running: seed " in pscale("status")[1]
    lock = folder / "lock"
    lock.write_text(lock.read_text().replace(f"process {os.getpid()}", f"process {2**30}"))
    assert f"interrupted: {label} not running" in pscale("status")[1]
    draw, journal = status_module._page, Journal.open(folder)

    def ends_once_it_is_drawn(document):
        drawn = draw(document)
        if not journal.is_finished():
            journal.ended((last["case"], last["repeat"]), "failed", "why", 1.0)
        return drawn

    monkeypatch.setattr(status_module, "_page", ends_once_it_is_drawn)
    code, said = pscale("status", folder, "--watch")
    assert code == 0
    assert "3 of 3 launches have ended: 2 ok, 1 failed" in said
