"""Measure the overhead of a run, and prove that it survives `kill -9` at random instants.

    python benchmarks/runs.py [--cases 1000] [--kills 200] [--slurm]

First a suite of many cases whose jobs do nothing: time per case, the journal's share of it, the peak memory
of pscale, and the time of `pscale status`. With --slurm the cases are one job of the scheduler that answers
here (for example `tests/slurm/cluster start`). Then a suite of 20 cases is killed and continued until all
kills are spent; lost or repeated launches are printed and set the exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from pscale.runs.journal import Journal
from pscale.runs.run_events import Ended, Launched
from pscale.runs.store import read_table

LAUNCHER = """#!/bin/sh
[ "$1" = --version ] && echo "HYDRA build details: Version: 0" && exit
for folder; do :; done
echo "$(basename "$folder")" >> "{started}"
echo '{{"status": "ok", "reason": "", "columns": {{}}}}' > "$folder/result.json"
"""
SUITE = """
name: noop
scaling: throughput
data: {{kind: synthetic}}
train: {{steps: 1, warmup: 0}}
sweep: {{train.seed: [{seeds}]}}
repeat: 1
timing: {{gemm_peak: false, overhead_steps: 0}}
launch: {{launcher: "{launcher}", scheduler: {scheduler}, packing: all, job_time_limit: 1h}}
"""
_LOOK_S = 0.5
_REPORTED = 5  # one run of so many draws its report too
SITE = "here: {hosts: ['*'], poll: 1s}\n"


class Bench:
    """A folder with a suite of no-op cases."""

    def __init__(self, folder: Path, cases: int, scheduler: str):
        self.folder, self.cases = folder, cases
        self.started, launcher = folder / "started", folder / "mpiexec"
        launcher.write_text(LAUNCHER.format(started=self.started))
        launcher.chmod(0o755)
        seeds = ", ".join(map(str, range(1, cases + 1)))
        (folder / "noop.yaml").write_text(SUITE.format(seeds=seeds, launcher=launcher, scheduler=scheduler))
        (folder / "sites.yaml").write_text(SITE)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start pscale there."""
        log = (self.folder / "log").open("ab")
        command = [sys.executable, "-m", "pscale", *words]
        return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def journal(self) -> Journal | None:
        """Return the newest run."""
        runs = sorted(self.folder.glob("reports/noop/*/run.json"))
        return Journal.open(runs[-1].parent) if runs else None


def many(folder: Path, cases: int, scheduler: str) -> None:
    """Time a run of many cases."""
    bench = Bench(folder, cases, scheduler)
    start = time.perf_counter()
    process = bench.start("run", "noop.yaml")
    run_mib = _peak_mib(process)
    _, ended, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(ended)
    assert process.returncode in (0, 1), (folder / "log").read_text()[-2000:]
    wall_s, all_mib = time.perf_counter() - start, used.ru_maxrss / 1024
    journal = bench.journal()
    assert journal is not None
    assert journal.is_finished()
    start = time.perf_counter()
    bench.start("status").wait()
    status_s = time.perf_counter() - start
    print(f"{cases} cases in {wall_s:.1f} s, report included: {wall_s / cases * 1e3:.1f} ms per case")
    print(f"peak memory: {run_mib:.0f} MiB; of the largest process, which reports: {all_mib:.0f} MiB")
    print(f"pscale status: {status_s:.2f} s")
    scratch = Journal.create(folder / "scratch", "noop", journal.document)
    start = time.perf_counter()
    for number in range(cases):
        scratch.note(Launched(case="case", repeat=number, order=number))
        scratch.note(Ended(case="case", repeat=number, status="ok", reason="", wall_s=1.0))
    print(f"journal: {(time.perf_counter() - start) / cases * 1e3:.2f} ms per case, synced twice")


def _peak_mib(process: subprocess.Popen[bytes]) -> float:
    """Watch the memory of pscale, which a process of its own reports for, until it has ended."""
    watched, peak = psutil.Process(process.pid), 0
    while watched.status() != psutil.STATUS_ZOMBIE:
        peak = max(peak, watched.memory_info().rss)
        time.sleep(_LOOK_S)
    return peak / 2**20


def killed(folder: Path, kills: int) -> int:
    """Kill runs of 20 cases at random instants; return how many launches were lost or done twice.

    Most runs draw no report, so that most kills fall where launches begin and end. A life that ends by
    itself with an error counts too: going on has to work always.
    """
    source, moments, wrong, runs = random.Random(1), Counter[str](), 0, 0
    whole_s: dict[bool, float] = {}  # of a life from the start to the end, with and without a report
    while moments.total() < kills:
        runs += 1
        reported = runs % _REPORTED == 0
        place = folder / str(runs)
        place.mkdir()
        bench = Bench(place, 20, "none")
        finished: set[tuple[str, int]] = set()
        over = False
        while not over:
            before, begun = len(_lines(bench.started)), time.perf_counter()
            process = bench.start("run", "noop.yaml", *(() if reported else ("--no-report",)))
            may_kill = moments.total() < kills and reported in whole_s
            try:
                over = process.wait(source.uniform(0.0, whole_s[reported]) if may_kill else None) in (0, 1)
                wrong += not over
                if not finished:
                    whole_s[reported] = time.perf_counter() - begun
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                moments[_moment(bench)] += 1
            if (journal := bench.journal()) is None:
                continue
            again = set(_lines(bench.started)[before:])
            wrong += len(again & {f"{case}-{repeat}" for case, repeat in finished})
            wrong += len(finished - journal.finished())
            finished = journal.finished()
            over = over or journal.is_over()  # killed with nothing left to do
        wrong += _faults(bench)
    for moment, count in moments.items():
        print(f"killed {count} times {moment}")
    print(f"{runs} runs of 20 cases, killed {kills} times: {wrong} lost or repeated launches, or errors")
    return wrong


def _moment(bench: Bench) -> str:
    """Say when a run was killed."""
    journal = bench.journal()
    if journal is None:
        return "before there was a run"
    return "after the last launch" if journal.is_finished() else "while launches were left"


def _faults(bench: Bench) -> int:
    """Count what is wrong with a run that is over."""
    journal = bench.journal()
    assert journal is not None
    ended = Counter(event.key for event in journal.events() if isinstance(event, Ended))
    wrong = sum(count != 1 for count in ended.values()) + (len(ended) != 20)
    wrong += len(read_table(journal.folder / "data", "cases")) != 20  # a report joins their files
    return wrong + (len(list(bench.folder.glob("reports/noop/*/run.json"))) != 1)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main() -> int:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--slurm", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pscale-runs-") as name:
        folder = Path(name)
        if asked.cases:
            many(folder, asked.cases, "slurm" if asked.slurm else "none")
        (folder / "killed").mkdir()
        return min(1, killed(folder / "killed", asked.kills)) if asked.kills else 0


if __name__ == "__main__":
    print(json.dumps({"python": sys.version.split()[0]}))
    sys.exit(main())
