"""Drivers, launchers, ranks and reporters are killed at random instants: nothing is lost or done again."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from noop_runs import SUITE, make_launcher
from whole_runs import LIMIT_S, TINY, Cli, lives, wait_for, workers

from pscale.errors import LaunchError
from pscale.launch import launcher
from pscale.launch.journal import Journal
from pscale.launch.local import TAG
from pscale.results.store import read_table

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
TERMINAL = "a closed terminal"
# Notes who is at work and, for as long as any process of it lives, holds a lock that all others find free.
LAUNCH = """for folder; do :; done
exec 9>> "$0.lock"
flock -n 9 || echo "$folder" >> "$0.overlaps"
(sleep 0.2; echo '{"status": "ok", "reason": "", "columns": {"step_s": 21.95}}' > "$folder/result.json") &
echo "$$ $! $PPID $folder" >> "$0.ledger"
wait $!
"""


class Target:
    """A run of launches that do nothing for a while, and what they have noted."""

    def __init__(self, folder, launches):
        self.folder = folder
        make_launcher(folder / "mpiexec", LAUNCH)
        (folder / "noop.yaml").write_text(SUITE.replace("[1, 2, 3]", str([*range(launches)])))
        self.command = [sys.executable, "-m", "pscale", "run", "noop.yaml", "--no-report"]

    def start(self, **how):
        return subprocess.Popen(self.command, cwd=self.folder, **how)

    def noted(self):
        """Return the processes of launcher, rank and driver, and the folder, of each launch so far."""
        with suppress(FileNotFoundError):
            lines = (self.folder / "mpiexec.ledger").read_text().splitlines()
            parts = [each for line in lines if len(each := line.split(" ", 3)) == 4]
            return [(int(one), int(rank), int(driver), folder) for one, rank, driver, folder in parts]
        return []

    def journal(self):
        """Return the run's journal; None before there is one. A second run would be one too many."""
        found = [*self.folder.glob("reports/noop/*/run.json")]
        assert len(found) <= 1
        return Journal.open(found[0].parent) if found else None

    def processes(self):
        """Return what lives of all launches."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(TAG, "").startswith(str(self.folder.resolve())) and lives(process):
                    found.append(process)
        return found

    def check(self, statuses):
        """Look whether every launch has ended once, nothing was done after its end, and nothing is left."""
        journal, ended = self.journal(), set()
        assert journal.is_finished()
        for record in journal.records():
            if record["event"] in {"launched", "ended"}:
                key = record["case"], record["repeat"]
                assert key not in ended, f"{record} after its end"
                if record["event"] == "ended":
                    ended.add(key)
        rows = read_table(journal.data, "cases").to_pylist()
        assert Counter((row["case"], row["repeat"]) for row in rows) == Counter(ended)
        assert {row["status"] for row in rows} <= statuses
        assert all(row["reason"] for row in rows if row["status"] == "failed")
        assert not (self.folder / "mpiexec.overlaps").exists(), "two launches were at work at once"
        assert self.processes() == []
        with journal.locked() as works:
            assert works


class Terminal:
    """A terminal of a process, which is read so that nobody waits for it, and can be closed."""

    def __init__(self):
        self._ours, self.theirs = os.openpty()
        self._open = True
        self._reader = threading.Thread(target=self._read)

    def opened(self):
        """Leave the other end to the process that has been started."""
        os.close(self.theirs)
        self._reader.start()

    def _read(self):
        while self._open:
            if select.select([self._ours], [], [], 0.02)[0]:
                try:
                    os.read(self._ours, 4096)
                except OSError:  # nobody is at the other end
                    return

    def close(self):
        """Hang up."""
        self._open = False
        self._reader.join()
        os.close(self._ours)


def driver_killed(target, draw):
    """Start a driver, end it at a random instant, and return how; None: it came to its end before."""
    how, terminal = draw.choice([*SIGNALS, TERMINAL]), None
    if how == TERMINAL:
        terminal = Terminal()
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
        driver = subprocess.Popen(["setsid", "--ctty", *target.command], cwd=target.folder, **ends)
        terminal.opened()
    else:
        driver = target.start(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)

    def has_begun():
        return any(parent == driver.pid for _, _, parent, _ in target.noted())

    if draw.random() < 0.8:  # at work; else while it begins
        wait_for(lambda: has_begun() or driver.poll() is not None)
        time.sleep(draw.random() * 0.6)
    else:
        time.sleep(draw.random() * 2)
    is_over = driver.poll() is not None
    if terminal:
        terminal.close()
    else:
        driver.send_signal(how)
    _, said = driver.communicate(timeout=LIMIT_S)
    if has_begun() and how != signal.SIGKILL:
        assert not (said and b"Traceback" in said), said
        assert is_over or driver.returncode in {130, 0, 1, -how if how != TERMINAL else -signal.SIGHUP}
        assert target.processes() == [], "it ends its launch before itself"
    return None if is_over else how


def test_a_driver_that_is_killed_is_gone_on_with_and_does_nothing_twice(tmp_path, attack):
    target, kills = Target(tmp_path, 3 * (wanted := attack.times(16))), 0
    finished = set()
    while kills < wanted:
        kills += driver_killed(target, attack.draw) is not None
        if journal := target.journal():
            assert finished <= journal.finished()
            finished = journal.finished()
            if journal.is_finished():
                break
    else:
        done = subprocess.run(target.command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert kills > wanted / 2
    target.check({"ok"})


@pytest.mark.parametrize("victim", ["launcher", "rank"])
def test_a_launch_that_is_killed_is_a_row_and_the_run_goes_on(tmp_path, attack, victim):
    count = attack.times(100)
    target = Target(tmp_path, count)
    driver = target.start(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for number in range(count):
        while (over := driver.poll()) is None and len(target.noted()) <= number:
            time.sleep(0.005)
        assert over is None, driver.communicate()
        first, rank, *_ = target.noted()[number]
        time.sleep(attack.draw.random() * 0.25)
        with suppress(ProcessLookupError):
            os.kill(first if victim == "launcher" else rank, attack.draw.choice(SIGNALS))
    _, said = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode in {0, 1}, said
    assert b"Traceback" not in said
    assert len(target.noted()) == count, "none is tried again"
    target.check({"ok", "failed"})


@pytest.fixture
def cli(tmp_path):
    try:
        launcher.find()
    except LaunchError as error:
        pytest.skip(str(error))
    return Cli(tmp_path)


def test_real_ranks_that_are_killed_are_rows_and_the_run_goes_on(cli, attack):
    suite, count = cli.suite(TINY.replace("[1, 2, 4]", "[2]")), attack.times(4)
    options = (
        "--set",
        f"repeat={count}",
        "--set",
        "data={kind: synthetic}",
        "--set",
        "train.steps=2000",
        "--no-report",
    )
    driver = subprocess.Popen(
        cli.command("run", suite, "--reports", cli.reports, *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    killed = set()
    while driver.poll() is None:
        with suppress(psutil.Error):
            for rank in workers(driver):
                if (folder := rank.cmdline()[-1]) not in killed:
                    victim = attack.draw.choice([rank, *rank.parents()[:1]])
                    time.sleep(attack.draw.random())
                    killed.add(folder)
                    if "pscale.worker" in " ".join(victim.cmdline()):  # not the driver
                        victim.send_signal(attack.draw.choice(SIGNALS))
        time.sleep(0.02)
    _, said = driver.communicate()
    assert driver.returncode in {0, 1}, said
    assert b"Traceback" not in said
    assert len(killed) == count
    rows = cli.newest().rows("cases")
    assert sorted(row["repeat"] for row in rows) == [*range(count)]
    assert all(row["reason"] for row in rows if row["status"] != "ok")
    assert Journal.open(cli.newest().folder).is_finished()


def test_a_reporter_that_is_killed_costs_no_launch_and_leaves_whole_files(tmp_path, attack):
    target = Target(tmp_path, 2)
    command = [each for each in target.command if each != "--no-report"]
    for _ in range(attack.times(4)):
        driver = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        own = psutil.Process(driver.pid)

        def reporter(own=own, driver=driver):
            with suppress(psutil.Error):
                found = [each for each in own.children() if "pscale.cli.publish_process" in each.cmdline()]
                return found or driver.poll() is not None
            return driver.poll() is not None

        found = wait_for(reporter)
        time.sleep(attack.draw.random() * 2)
        with suppress(psutil.Error, TypeError):
            found[0].send_signal(attack.draw.choice(SIGNALS))
        _, said = driver.communicate(timeout=LIMIT_S)
        assert driver.returncode in {0, 1, 130}, said
        assert len(target.noted()) == 2, "nothing is measured again"
        page = target.journal().folder / "report.html"
        assert not page.exists() or page.read_text().rstrip().endswith("</html>")
        if driver.returncode == 0:
            break
    report = [sys.executable, "-m", "pscale", "report", str(target.journal().folder)]
    assert subprocess.run(report, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    target.check({"ok"})
