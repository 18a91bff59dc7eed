"""Drivers, launchers, ranks and reporters are killed at random instants: nothing is lost or done again."""

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest
from forked_runs import Copies
from noop_runs import SUITE, make_launcher
from patience import lives, wait_for
from synthetic import Point, write_run
from whole_runs import TINY, Cli, workers

from pscale.analysis.frames import load
from pscale.errors import LaunchError
from pscale.launch import launcher
from pscale.launch.local import TAG
from pscale.runs.journal import Journal
from pscale.runs.run_events import Ended, Launched
from pscale.runs.store import read_table

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
        folder.mkdir(exist_ok=True)
        make_launcher(folder / "mpiexec", LAUNCH)
        (folder / "noop.yaml").write_text(SUITE.replace("[1, 2, 3]", str([*range(launches)])))

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
        for event in journal.events():
            if isinstance(event, Launched | Ended):
                assert event.key not in ended, f"{event} after its end"
                if isinstance(event, Ended):
                    ended.add(event.key)
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
        os.close(self.theirs)


def copied(copies):
    """Return what starts a driver as a copy."""
    words = "pscale('run', 'noop.yaml', '--no-report')"
    return lambda target, end: copies.start(target.folder, words, end and os.ttyname(end.theirs))


def driver_killed(target, start, draw):
    """Start a driver, end it at a random instant, and tell whether it was at work until then."""
    how = draw.choice([*SIGNALS, TERMINAL])
    terminal = Terminal() if how == TERMINAL else None
    driver = start(target, terminal)

    def has_begun():
        return any(parent == driver.pid for _, _, parent, _ in target.noted())

    if draw.random() < 0.8:  # at work; else while it begins
        wait_for(lambda: has_begun() or driver.poll() is not None)
        time.sleep(draw.random() * 0.6)
    else:
        time.sleep(draw.random())
    is_over = driver.poll() is not None
    if terminal:
        terminal.close()
    else:
        with suppress(ProcessLookupError):
            driver.kill(how)
    code = driver.wait()
    if has_begun() and how != signal.SIGKILL:
        assert "Traceback" not in driver.said
        assert is_over or code in {130, 0, 1, -how if how != TERMINAL else -signal.SIGHUP}
        assert target.processes() == [], "it ends its launch before itself"
    return not is_over


def kept_killing(target, start, draw, wanted):
    """End the drivers of a run until it has been done or they were enough; return how many were at work."""
    kills, finished = 0, set()
    while kills < wanted:
        kills += driver_killed(target, start, draw)
        if journal := target.journal():
            assert finished <= journal.finished()
            finished = journal.finished()
            if journal.is_finished():
                return kills
    driver = start(target, None)
    assert driver.wait() == 0, driver.said
    return kills


@pytest.fixture
def servers():
    """Return two processes to make copies of, for as many runs at a time."""
    both = [Copies(), Copies()]
    yield both
    for each in both:
        each.close()


def at_once(act, *arguments):
    """Do something with each of the arguments at the same time; return what comes of it."""
    with ThreadPoolExecutor(len(arguments[0])) as pool:
        return list(pool.map(act, *arguments))


def test_drivers_that_are_killed_are_gone_on_with_and_do_nothing_twice(tmp_path, attack, servers):
    starts = [*map(copied, servers)]
    wanted = [attack.times(14), attack.times(13)]
    targets = [Target(tmp_path / f"{each}", 2 * count) for each, count in enumerate(wanted)]
    draws = [Random(attack.draw.random()) for _ in targets]
    kills = at_once(kept_killing, targets, starts, draws, wanted)
    assert sum(kills) > 0.8 * sum(wanted)
    for target in targets:
        target.check({"ok"})


@pytest.fixture
def cli(tmp_path):
    try:
        launcher.find()
    except LaunchError as error:
        pytest.skip(str(error))
    return Cli(tmp_path)


def shared_memory(ranks):
    """Return the files that ranks share. MPICH leaves those of killed ranks; containers have little room."""
    found = set()
    for rank in ranks:
        with suppress(psutil.Error):
            found |= {Path(each.path) for each in rank.memory_maps() if each.path.startswith("/dev/shm/")}
    return found


def kill_in(driver, folder, draw, *, of_rank):
    """End a rank of a launch, or else its launcher, at a random instant.

    MPICH lets ranks go on that lose their terminal, and waits for one that was interrupted before it joined
    the others; interrupted itself, it asks for another interrupt.
    """
    signals = [signal.SIGKILL, signal.SIGTERM]
    if draw.random() < 0.8:  # at work; else while it begins
        wait_for((folder / "born").exists)
        signals.append(signal.SIGINT)
    ranks = wait_for(lambda: workers(driver) or driver.poll() is not None)
    victim, shared = draw.choice(ranks), shared_memory(ranks)
    if not of_rank:
        victim = next(each for each in victim.parents() if each.ppid() == driver.pid)
    how = draw.choice(signals)
    time.sleep(draw.random() * 0.4)
    assert lives(victim)
    while lives(victim):
        victim.send_signal(how)
        psutil.wait_procs([victim], 0.5)
    wait_for(lambda: not any(map(lives, ranks)))
    for segment in shared:
        segment.unlink(missing_ok=True)


def test_real_ranks_and_launchers_that_are_killed_are_rows_and_the_run_goes_on(cli, attack):
    suite, count = cli.suite(TINY.replace("[1, 2, 4]", "[2]")), attack.times(25)
    endless = ("data={kind: synthetic}", "train.steps=20000", f"repeat={count}")
    options = [word for setting in endless for word in ("--set", setting)]
    driver = subprocess.Popen(
        cli.command("run", suite, "--reports", cli.reports, "--no-report", *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    done = set()

    def begun():
        return [*({*cli.reports.glob("*/*/cases/*")} - done)] or driver.poll() is not None

    while driver.poll() is None and (folders := wait_for(begun)) is not True:
        kill_in(driver, folders[0], attack.draw, of_rank=len(done) % 5 > 0)
        done.add(folders[0])
    _, said = driver.communicate()
    assert driver.returncode == 1, said
    assert b"Traceback" not in said
    assert len(done) == count
    rows = cli.newest().rows("cases")
    assert sorted(row["repeat"] for row in rows) == [*range(count)]
    assert [row for row in rows if row["status"] != "failed" or not row["reason"]] == []
    assert Journal.open(cli.newest().folder).is_finished()


REPORT = """
report.is_worthwhile = lambda: False  # it draws here
sys.exit(report.main(Path("run")))
"""


def reporters_killed(folder, copies, draw, count):
    """End what reports a run at random instants, `count` times while it is at work."""
    run, kills = write_run(folder / "run", [Point(ranks=1), Point(ranks=2)], steps=4), 0
    began = time.monotonic()
    assert copies.start(folder, REPORT).wait() == 0
    whole = pages(run)
    lasts_s = time.monotonic() - began
    while kills < count:
        shutil.rmtree(run / "figures", ignore_errors=True)
        for page in run.glob("report.*"):
            page.unlink()
        reporter = copies.start(folder, REPORT)
        time.sleep(after_s := draw.random() * lasts_s)
        with suppress(ProcessLookupError):
            reporter.kill(draw.choice(SIGNALS))
        if reporter.wait():
            kills += 1
        else:
            lasts_s = after_s  # at most
        assert "Traceback" not in reporter.said
        left = pages(run)
        assert {name: left[name] for name in left if not name.endswith(".tmp")}.items() <= whole.items()
    assert copies.start(folder, REPORT).wait() == 0
    assert pages(run) == whole
    assert len(load(run).cases) == 6


def pages(run):
    """Return the files of a report by name, also those that were written and not yet named."""
    files = [*run.glob("*report.*"), *run.glob("figures/*")]
    return {file.name: file.read_text() for file in files}


def test_what_a_reporter_leaves_that_is_killed_is_whole(tmp_path, attack, servers):
    folders = [tmp_path / name for name in "ab"]
    draws, count = [Random(attack.draw.random()) for _ in folders], [attack.times(8)] * 2
    at_once(reporters_killed, folders, servers, draws, count)
