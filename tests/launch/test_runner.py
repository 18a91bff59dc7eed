import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
from noop_runs import make_journal, note_end, settling
from patience import LIMIT_S, lives, wait_for

from pscale.config import Case, Launch, Plan, to_dict
from pscale.errors import LaunchError, PlanError
from pscale.launch import local, machine
from pscale.launch.launcher import Launcher
from pscale.launch.runner import plan_launches, run
from pscale.runs.journal import UNLOCKED

JOB = """#!/bin/sh
for folder; do :; done
echo "$(basename "$folder")" >> "$(dirname "$0")/started"
"""
RESULT = 'echo "{}" > "$folder/result.json"\n'
CAMPAIGN = """
import os, pathlib, sys
from pscale.config import Case, from_dict
from pscale.launch import runner, machine
from pscale.runs.journal import Journal
from pscale.launch.launcher import Launcher

folder, program = map(pathlib.Path, sys.argv[1:])
journal = Journal.open(folder)
cases = [from_dict(Case, {k: v for k, v in case.items() if k != "id"}) for case in journal.document["cases"]]
jobs = runner.plan_launches(cases, journal.document["repeats"], journal.document["seed"])

launcher = Launcher(path=str(program), flavour="mpich", version="0")
settle = lambda job, outcome: runner.ended(job.key, outcome)
runner.run(journal, jobs, launcher, machine.inspect(), settle=settle)
"""


def cases(count):
    shared = Launch(oversubscribe=True)
    return [
        Case(suite="s", label=f"case {n}", plan=Plan(bucket_bytes=n), launch=shared)
        for n in range(1, count + 1)
    ]


@pytest.fixture
def start(tmp_path):
    """Make a run of some cases whose job is a shell script."""

    def make(count, repeats, script):
        program = tmp_path / "launcher"
        program.write_text(JOB + script)
        program.chmod(0o755)
        listed = cases(count)
        jobs = plan_launches(listed, repeats, 7)
        launcher = Launcher(path=str(program), flavour="mpich", version="0")
        return make_journal(tmp_path / "my reports", listed, repeats, 7), jobs, launcher

    return make


def ignore(*_):
    pass


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def runner(journal, program):
    return subprocess.Popen([sys.executable, "-c", CAMPAIGN, str(journal.folder), str(program)])


def test_every_round_has_all_cases_in_an_order_of_its_own_that_the_seed_repeats():
    listed = cases(8)
    jobs = plan_launches(listed, 3, 42)
    assert [job.index for job in jobs] == list(range(24))
    rounds = [jobs[8 * repeat : 8 * repeat + 8] for repeat in range(3)]
    for repeat, one in enumerate(rounds):
        assert {job.repeat for job in one} == {repeat}
        assert {job.case.id for job in one} == {case.id for case in listed}
    assert len({tuple(job.case.id for job in one) for one in rounds}) == 3
    assert jobs == plan_launches(listed, 3, 42) != plan_launches(listed, 3, 43)


def test_the_worker_finds_its_order_and_the_row_is_written_before_the_end_is_noted(start):
    journal, jobs, launcher = start(2, 1, RESULT)
    begun, seen = time.time(), []

    def row(job, outcome):
        assert job.key in journal.interrupted()
        order = json.loads((journal.case_folder(job.key) / "case.json").read_text())
        seen.append((job, outcome.status, order))

    run(journal, jobs, launcher, machine.inspect(), settle=settling(row))
    assert journal.is_finished()
    for job, status, order in seen:
        assert status == "ok"
        assert order["case"] == json.loads(json.dumps(to_dict(job.case)))
        assert (order["format"], order["repeat"], order["data"]) == (1, job.repeat, str(journal.data))
        assert begun <= order["launched_unix_s"] <= time.time()


def test_a_case_that_fails_is_a_row_and_the_others_go_on(start):
    journal, jobs, launcher = start(3, 1, f'case "$folder" in *{cases(3)[1].id}-0) exit 3;; esac\n{RESULT}')
    rows = {}
    run(
        journal,
        jobs,
        launcher,
        machine.inspect(),
        settle=settling(lambda job, outcome: rows.update({job.case.label: outcome.status})),
    )
    assert rows == {"case 1": "ok", "case 2": "failed", "case 3": "ok"}
    assert {end.status for end in journal.ends().values()} == {"ok", "failed"}


@pytest.mark.parametrize(
    ("script", "started", "status"),
    [
        ("exit 3", 2, "failed"),
        (f'[ $(wc -l < "$(dirname "$0")/started") = 1 ] && exit 3\n{RESULT}', 2, "ok"),
        ('echo > "$folder/born"; exit 3', 1, "failed"),
        ('echo > "$folder/born"', 1, "failed"),
    ],
    ids=["never meets", "meets the second time", "fails later", "has no result"],
)
def test_only_what_fails_before_its_ranks_have_met_is_tried_again(start, tmp_path, script, started, status):
    journal, jobs, launcher = start(1, 1, script)
    rows = []
    here = machine.inspect()
    run(journal, jobs, launcher, here, settle=settling(lambda *row: rows.append(row)), attempts=2)
    assert len(lines(tmp_path / "started")) == started
    assert [outcome.status for _, outcome in rows] == [status]


def test_what_a_row_says_is_what_is_noted(start):
    journal, jobs, launcher = start(1, 1, RESULT)
    here = machine.inspect()
    doubt = lambda _, outcome: replace(outcome, status="invalid", reason="no")  # noqa: E731
    run(journal, jobs, launcher, here, settle=settling(doubt))
    assert [(end.status, end.reason) for end in journal.ends().values()] == [("invalid", "no")]


def test_nothing_starts_if_one_case_cannot(start):
    journal, jobs, launcher = start(1, 1, RESULT)
    [big] = plan_launches([Case(suite="s", label="big", ranks=10**6)], 1, 1)
    with pytest.raises(PlanError, match="big: ranks 1000000"):
        run(journal, [*jobs, big], launcher, machine.inspect(), settle=settling(ignore))
    assert journal.events() == []


def test_what_has_ended_is_not_started_again(start, tmp_path):
    journal, jobs, launcher = start(3, 2, RESULT)
    note_end(journal, jobs[0].key, "failed", "", 1.0)
    run(journal, jobs, launcher, machine.inspect(), settle=settling(ignore))
    assert len(lines(tmp_path / "started")) == 5
    run(journal, jobs, launcher, machine.inspect(), settle=settling(ignore))
    assert len(lines(tmp_path / "started")) == 5


def test_a_row_that_could_not_be_written_is_measured_again(start, tmp_path):
    journal, jobs, launcher = start(2, 1, RESULT)

    def full(*_):
        raise LaunchError("the disk is full")

    with pytest.raises(LaunchError):
        run(journal, jobs, launcher, machine.inspect(), settle=settling(full))
    run(journal, jobs, launcher, machine.inspect(), settle=settling(ignore))
    assert [count for _, count in Counter(lines(tmp_path / "started")).items()] == [2, 1]
    assert journal.is_finished()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_after_an_interrupt_what_is_finished_is_kept_and_no_process_is_left(start, number):
    journal, jobs, launcher = start(
        3, 1, f'case "$folder" in *{cases(3)[2].id}-0) sleep 1000;; esac\n{RESULT}'
    )
    slow = next(job for job in jobs if job.case.label == "case 3")
    with runner(journal, launcher.path) as child:
        wait_for(lambda: slow.key in journal.interrupted())
        for _ in range(
            1 if number == signal.SIGINT else 20
        ):  # schedulers signal some processes several times
            child.send_signal(number)  # a batch system, a lost terminal, Ctrl-C
            time.sleep(0.001)
        assert child.wait(LIMIT_S) != 0
    assert journal.finished() == {job.key for job in jobs[: slow.index]}
    assert local.tagged(local.tag(journal.case_folder(slow.key))) == []


def test_a_file_system_without_locks_is_reported(start, monkeypatch):
    journal, jobs, launcher = start(1, 1, RESULT)
    monkeypatch.setattr("pscale.runs.journal.try_lock", lambda _: False)
    said = []
    run(journal, jobs, launcher, machine.inspect(), settle=settling(ignore), tell=said.append)
    assert said == [UNLOCKED]
    assert journal.is_finished()


def test_a_job_that_outlived_a_killed_pscale_is_ended_before_others_are_measured(start, tmp_path):
    journal, jobs, launcher = start(
        1, 1, f'mkdir "$(dirname "$0")/once" && exec setsid -w sleep 1000\n{RESULT}'
    )
    with runner(journal, launcher.path) as child:
        wait_for((tmp_path / "once").exists)
        child.kill()
    orphans = local.tagged(local.tag(journal.case_folder(jobs[0].key)))
    assert orphans
    run(journal, jobs, launcher, machine.inspect(), settle=settling(ignore))
    assert journal.is_finished()
    assert not any(map(lives, orphans))
