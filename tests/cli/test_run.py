"""Which run `pscale run` goes on with, and what `pscale status` shows of it; the launcher does nothing."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from noop_runs import WRITES_RESULT, make_launcher, make_suite, note_end

from pscale.cli import run as run_module
from pscale.cli.status import watch
from pscale.launch import launcher
from pscale.launch.machine import inspect
from pscale.runs.journal import Journal
from pscale.runs.run_events import Launched, record_of
from pscale.suite.schema import event_schema


@pytest.fixture
def pscale(pscale, tmp_path):
    """Call the command line in a folder with a suite; return its exit code and what it said."""
    make_suite(tmp_path)
    launcher.identify.cache_clear()

    def call(*arguments):
        code, out, err = pscale(*arguments)
        return code, " ".join((out + err).split())

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
    assert sum(isinstance(event, Launched) for event in Journal.open(folder).events()) == 3
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


def test_status_can_be_watched_until_the_run_has_finished(run, pscale):
    _, (folder,) = run()
    last = Journal.open(folder).events()[-2]
    label = next(
        f"{case['label']} #1" for case in Journal.open(folder).document["cases"] if case["id"] == last.case
    )
    unfinish(folder)
    assert "2 of 3 launches have ended: 2 ok running: seed " in pscale("status")[1]
    lock = folder / "lock"
    lock.write_text(lock.read_text().replace(f"process {os.getpid()}", f"process {2**30}"))
    assert f"interrupted: {label} not running" in pscale("status")[1]
    journal, seen = Journal.open(folder), []

    def show(state):
        seen.append(state["ended"])
        if not journal.is_finished():
            note_end(journal, last.key, "failed", "why", 1.0)

    watch(journal, show, look_s=0.01)
    assert seen == [{"ok": 2}, {"ok": 2, "failed": 1}]
    code, said = pscale("status", folder, "--watch")
    assert code == 0
    assert "3 of 3 launches have ended: 2 ok, 1 failed" in said


UNFINISHED = Path(__file__).parent / "unfinished"  # pscale was killed during a launch of each
LAUNCHER = f"""case "$*" in *program.sh*) echo "time 2.5 s"; exit;; esac
{WRITES_RESULT}"""


@pytest.mark.parametrize(("name", "before", "after"), [("noop", 1, 3), ("rounds", 5, 12), ("program", 2, 3)])
def test_a_run_that_version_0_1_left_half_finished_is_finished(pscale, tmp_path, name, before, after):
    shutil.copytree(UNFINISHED, tmp_path, dirs_exist_ok=True)
    make_launcher(tmp_path / "mpiexec", LAUNCHER)
    folder = tmp_path / "reports" / name / "run"
    folder.parent.mkdir(parents=True)
    (tmp_path / name).rename(folder)
    (folder / "cases").mkdir()
    document = json.loads((folder / "run.json").read_text())
    document["provenance"]["machine"] = inspect().summary()
    (folder / "run.json").write_text(json.dumps(document))
    kept = {path: path.read_bytes() for path in folder.glob("data/*")}
    code, said = pscale("run", f"{name}.yaml", "--no-report", "--events", "events.jsonl")
    assert code == 0, said
    assert f"continuing {folder}, where {before} launch" in said
    journal = Journal.open(folder)
    assert journal.is_finished()
    assert len(journal.ends()) == after
    assert all(path.read_bytes() == content for path, content in kept.items())
    opened, *_, finished = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (opened["event"], opened["ended"]) == ("opened", before)
    assert (finished["event"], finished["complete"]) == ("finished", True)


def test_events_are_the_records_of_the_journal_between_the_first_line_and_the_last(run, tmp_path):
    _, (folder,) = run("--events", "events.jsonl")
    opened, *lines, finished = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    *records, closed = map(record_of, Journal.open(folder).events())
    assert lines == [{"run": folder.name, **record} for record in records]
    assert [line["event"] for line in lines] == ["launched", "ended"] * 3
    assert {line["step_s"] for line in lines[1::2]} == {21.95}
    assert {line["case"] for line in lines} == {case["id"] for case in opened["cases"]}
    assert (opened["folder"], opened["launches"], opened["ended"]) == (str(folder), 3, 0)
    assert finished["complete"]
    assert closed["event"] == "closed"
    kinds = {kind["properties"]["event"]["const"]: kind for kind in event_schema()["anyOf"]}
    for line in (opened, *lines, finished):
        kind = kinds[line["event"]]
        assert {*kind["required"]} <= {*line} <= {*kind["properties"]}


def test_events_that_are_printed_leave_nothing_else_on_standard_output(tmp_path):
    make_suite(tmp_path)
    argv = [sys.executable, "-m", "pscale", "run", "noop.yaml", "--events", "-"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert events == ["opened", *["launched", "ended"] * 3, "finished"]
    assert "report.html" in done.stderr


def test_a_file_of_events_that_cannot_be_written_any_more_ends_no_run(run, tmp_path):
    (tmp_path / "lines").mkdir()
    make_launcher(tmp_path / "mpiexec", f"rm -rf lines\n{WRITES_RESULT}")
    said, (folder,) = run("--events", "lines/events")
    assert said.count("--events: cannot write lines/events: No such file or directory; the run goes on") == 1
    assert Journal.open(folder).is_finished()


def test_a_file_of_events_that_cannot_be_made_is_refused_before_anything_starts(run):
    said, changed = run("--events", "none/events.jsonl", code=2)
    assert "cannot write none/events.jsonl: No such file or directory" in said
    assert changed == []
