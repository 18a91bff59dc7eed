"""What `pscale watch` costs the program that it records, and how much of what it records it settles.

    python benchmarks/watch.py [--rounds 7] [--calls 2e6] [--json FILE]

Processes with the recorder and without it take turns on one core, in blocks of some milliseconds: the
cost is CPU time, of the block that other work on the machine slowed down least. A block makes
calls that the library answers at once (a broadcast to itself, nonblocking messages to itself, a test that
finds nothing), or computes 100 µs between two calls. Two processes without the recorder are the control: how
far their ratio is from 1 is the resolution. `1 and what 10,000 calls/s cost` is what their number costs.

The weak suite is run with the recorder and without it in turns; its ranks wait for each other, so this is
real time, and certain only if nothing else runs. `1 and the calls of a step` is what their number costs.

The record that is settled is made up: two ranks, 10 million calls of each. Time is CPU time, memory the peak
of the process. Tables have rows for each step, of which some are drawn where steps have only four calls.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import yaml
from figures import Figure, figure, finish, parser

from pscale.launch import launcher
from pscale.runs.launch_folder import LaunchFolder
from pscale.runs.store import read_table
from pscale.watch.notes import NOTE, PART, Communicator, Facts, NotesFile, Recorded, calls
from pscale.watch.preload import FOLDER, recorder, sibling_library
from pscale.watch.tables import NOT_SPLIT, record_tables

CALL_NS, SLOWER, SETTLED, DELAY_OFF, SETTLE_S, SETTLE_GIB = 100, 1.005, 0.99, 0.02, 60, 2  # goals
HERE = Path(__file__).parent
EXAMPLES, PROGRAMS = HERE.parent / "examples", HERE.parent / "tests" / "watch" / "programs"
BLOCKS, DELAY_S, BLOCK = 120, 0.005, 1 << 14
MANY, RATE = 10_000_000, 10_000  # calls of a rank that goals are of; calls in a second
CALLS = {"broadcast": 1, "messages": 3, "tests": 1}  # in one turn of the loop
# So many notes that in every block pages of the file have to be prepared.
TURNS = {"broadcast": 10_000, "messages": 2500, "tests": 3000, "program": 15, "work": 15}

TAKES_TURNS = """
import mmap, sys, time
from mpi4py import MPI
import numpy as np
comm, x, y = MPI.COMM_SELF, np.zeros(1), np.zeros(1)
a, b = np.frombuffer(mmap.mmap(-1, 1 << 17)).reshape(2, -1)  # at the same place of a page in every process

def broadcast(count):
    for _ in range(count):
        comm.Bcast(x)

def messages(count):
    for _ in range(count):
        MPI.Request.Waitall([comm.Irecv(x, 0), comm.Isend(y, 0)])

def tests(count):
    request = comm.Irecv(x, 0)
    for _ in range(count):
        request.Test()
    comm.Send(y, 0)
    request.Wait()

def compute(count):
    for _ in range(count):
        np.add(a, b, out=b)

compute(100)
begin = time.thread_time_ns()
compute(2000)
each = max(1, round(100_000 * 2000 / (time.thread_time_ns() - begin)))
if len(sys.argv) > 1:
    each = int(sys.argv[1])
print(each, flush=True)

def work(count):
    for _ in range(count):
        compute(each)

def program(count):
    for _ in range(count):
        compute(each)
        comm.Bcast(x)

for line in sys.stdin:
    name, count = line.split()
    begin = time.thread_time_ns()
    globals()[name](int(count))
    print(time.thread_time_ns() - begin, flush=True)
"""

READS_CLOCK = """
#include <stdio.h>
#include <time.h>
enum { COUNT = 100000 };
static double block(void) {
  struct timespec begin, end, at;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  for (int i = 0; i < COUNT; i++) clock_gettime(CLOCK_MONOTONIC, &at);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / COUNT;
}
int main(void) {
  double best = block();
  for (int i = 0; i < 100; i++) {
    double took = block();
    if (took < best) best = took;
  }
  printf("%f", best);
}
"""


class Turns:
    """A process that makes calls when it is told to."""

    def __init__(self, each: str, environ: Mapping[str, str]):
        words, pipe = [sys.executable, "-c", TAKES_TURNS, *filter(None, [each])], subprocess.PIPE
        self._process = subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, text=True)
        self.each = self._said()

    def _said(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def take(self, name: str) -> int:
        """Return the CPU time of a block, in ns."""
        assert self._process.stdin
        print(name, TURNS[name], file=self._process.stdin, flush=True)
        return int(self._said())

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def costs(rounds: int) -> dict[str, Figure]:
    """Return what a call costs, and by how much a program of 10,000 calls in a second is slower."""
    library = str(recorder(sibling_library(Path(sys.executable))))
    added: dict[str, list[float]] = {name: [] for name in CALLS}
    slower: dict[str, list[float]] = {"plain": [], "recorded": []}
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            first = Turns("", os.environ)
            turns = {
                "first": first,
                "plain": Turns(first.each, os.environ),
                "recorded": Turns(first.each, {**os.environ, "LD_PRELOAD": library, FOLDER: folder}),
            }
            took = {name: blocks(turns, name) for name in TURNS}
            for each in turns.values():
                each.end()
        for name, calls_each in CALLS.items():
            apart = took[name]["recorded"] - took[name]["first"]
            added[name].append(apart / (TURNS[name] * calls_each))
        for name, ratios in slower.items():
            ratios.append(more(took, name) / more(took, "first"))
    os.sched_setaffinity(0, cores)
    return {
        **{f"a call, {name}": figure(values, "lower", CALL_NS, unit="ns") for name, values in added.items()},
        "a program of 10,000 calls/s over one without": figure(slower["recorded"], "lower", SLOWER),
        "control: the same program over itself": figure(slower["plain"], "lower"),
        "1 and what 10,000 calls/s cost": figure(
            [1 + RATE * ns * 1e-9 for values in added.values() for ns in values], "lower", SLOWER
        ),
    }


def reading(rounds: int) -> dict[str, Figure]:
    """Return what a reading of the clock costs: every recorded call has two."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "clock")
        command = ["cc", "-O2", "-x", "c", "-", "-o", str(program)]
        subprocess.run(command, input=READS_CLOCK, text=True, check=True)
        said = [subprocess.run([program], capture_output=True, check=True).stdout for _ in range(rounds)]
    return {"a reading of the clock": figure([float(each) for each in said], "lower", unit="ns")}


def more(took: Mapping[str, Mapping[str, float]], who: str) -> float:
    """Return how much longer work takes with calls in it than without, in one process, in the same memory."""
    return took["program"][who] / took["work"][who]


def blocks(turns: Mapping[str, Turns], name: str) -> dict[str, float]:
    """Return the CPU time of the quickest of many blocks of each, in ns; who comes first is drawn."""
    took: dict[str, list[int]] = {who: [] for who in turns}
    for _ in range(BLOCKS):
        for who in random.sample(list(turns), len(turns)):
            took[who].append(turns[who].take(name))
    return {who: float(min(times)) for who, times in took.items()}


@contextmanager
def run_of(*words: str | Path) -> Iterator[tuple[Path, str]]:
    """Run pscale; give the folder of the run, which lasts as long as the context, and what is printed."""
    with tempfile.TemporaryDirectory() as folder:
        command, *rest = words
        argv = [sys.executable, "-m", "pscale", command, "--reports", folder, "--no-report", *rest]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        (document,) = Path(folder).glob("*/*/run.json")
        yield document.parent, done.stdout


def weak(rounds: int, call_s: float) -> dict[str, Figure]:
    """Return how much slower a step of the weak suite is under the recorder."""
    suite = yaml.safe_load((HERE.parent / "suites" / "weak.yaml").read_text())
    for name in ("repeat", "known_to", "budget", "expect", "exclude"):
        suite.pop(name)
    suite["timing"], suite["repeat"] = {"overhead_steps": 0, "gemm_peak": False}, rounds
    ranks = min(2, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as notes:
        loads = {"LD_PRELOAD": str(recorder(sibling_library(Path(sys.executable)))), FOLDER: notes}
        recorded = {f"launch.env.{name}": value for name, value in loads.items()}
        suite["sweep"] = {"cases": [{"ranks": ranks}, {"ranks": ranks, **recorded}]}
        path = Path(notes, "weak.yaml")
        path.write_text(yaml.safe_dump(suite))
        with run_of("run", path) as (folder, _):
            rows = read_table(folder / "data", "cases").to_pylist()
            events = read_table(folder / "data", "ranks").to_pylist()
    plain = min(rows, key=lambda row: len(row["label"]))["case"]
    took = {(row["case"] == plain, row["repeat"]): row["step_s"] for row in rows}
    made = [(row["events"], row["wall_s"]) for row in events if row["case"] == plain]
    return {
        "a step of the weak suite over one without": figure(
            [took[False, repeat] / took[True, repeat] for repeat in range(rounds)], "lower", SLOWER
        ),
        "1 and the calls of a step of the weak suite": figure(
            [1 + call_s * number / wall_s for number, wall_s in made], "lower", SLOWER
        ),
    }


def settled(folder: Path) -> float:
    """Return how much of the time in MPI is not on the axis of what is not split."""
    rows = read_table(folder / "data", "calls").to_pylist()
    times = [(row["axis"] != NOT_SPLIT, row["wait_s"] + row["transfer_s"]) for row in rows]
    return sum(time for is_settled, time in times if is_settled) / sum(time for _, time in times)


def examples(rounds: int) -> dict[str, Figure]:
    """Return how much of the time in MPI is settled in the examples that can be built, and of 64 ranks."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        programs: dict[str, Sequence[str | Path]] = {
            "cg.py": (sys.executable, EXAMPLES / "cg.py", "200"),
            "ring.py": (sys.executable, EXAMPLES / "ring.py", "10000"),
        }
        for name in ("halo.c", "monte_carlo.c"):
            tool, program = Path(sys.executable).with_name("mpicc"), Path(folder, name).with_suffix("")
            if tool.exists():
                subprocess.run([tool, "-O2", "-o", program, EXAMPLES / name, "-lm"], check=True)
                programs[name] = (program,)
        for _ in range(rounds):
            for name, words in programs.items():
                with run_of("watch", "-n", "2", "--", *words) as (run, _):
                    found.setdefault(f"MPI time settled, {name}", []).append(settled(run))
            if "halo.c" in programs:
                with run_of("watch", "-n", "64", "--", *programs["halo.c"], "20", "5") as (run, _):
                    found.setdefault("MPI time settled, halo.c on 64 ranks", []).append(settled(run))
    return {name: figure(values, "higher", SETTLED) for name, values in found.items()}


def delay(rounds: int) -> dict[str, Figure]:
    """Return by how much the wait for a rank that is late differs from what the ranks' own clocks say."""
    off = []
    for _ in range(rounds):
        with run_of("watch", "-n", "2", "--", sys.executable, PROGRAMS / "delay.py", str(DELAY_S)) as (
            run,
            said,
        ):
            line = next(line for line in said.splitlines() if line.startswith("[["))
            rows = read_table(run / "data", "events").to_pylist()
        came = np.array(json.loads(line)) * 1e-9
        waits = [row["wait_s"] for row in rows if row["verb"] == "all_reduce" and row["rank"] == 0]
        expected = (came[1] - came[0])[1:]  # the first round ends where the first step begins
        off.append(float(np.median(np.abs(np.array(waits) - expected) / expected)))
    return {"a delay of 5 ms, deviation of the wait for it": figure(off, "lower", DELAY_OFF)}


def made_up(folder: Path, count: int, calls_of_step: int) -> Recorded:
    """Write and return the record of two ranks with so many calls each: messages and reductions."""
    number = {call.name: place for place, call in enumerate(calls())}
    world = Communicator(how="world", parent=0, members=(0, 1))
    turns = count // 4
    facts = [Facts(rank=rank, size=2, begin=(1, 2), end_ns=turns * 5000, comms={1: world}) for rank in (0, 1)]
    for rank in (0, 1):
        with Path(folder, f"notes.{rank}").open("wb") as file:
            np.zeros(1, NOTE).tofile(file)
            for first in range(0, turns, BLOCK):
                turn = np.arange(first, min(turns, first + BLOCK))[:, None]
                rows = np.zeros((len(turn), 5), NOTE)  # a call that completes two requests has two notes
                rows["enter"] = 1000 + 1000 * (5 * turn + np.arange(5))
                rows["leave"] = rows["enter"] + 400
                rows["flags"], rows["comm"], rows["peer"], rows["tag"] = 1 << 4, [1, 1, 0, 0, 1], -1, -1
                rows["call"] = [
                    number[name] for name in ("Isend", "Irecv", "Waitall", "Waitall", "Allreduce")
                ]
                rows["request"], rows["bytes"] = [1, 2, 1, 2, 0], [8, 0, 0, 0, 8]
                rows["peer"][:, :2], rows["tag"][:, :2] = 1 - rank, 0
                rows["bytes"][turn[:, 0] % (calls_of_step // 4) == 0, 4] = 16  # once in a step
                rows["flags"][:, 3] |= PART
                rows["bytes"][:, 3] = 1 + 5 * turn[:, 0] + 2
                rows.tofile(file)
            file.seek(0)
            np.array([1 + 5 * turns]).tofile(file)
    return Recorded(
        facts=facts, notes=[NotesFile(LaunchFolder(Path(folder)), f"notes.{rank}") for rank in (0, 1)]
    )


def settle_many(count: int, calls_of_step: int) -> None:
    """Settle a record and print what it took: CPU time in s, and peak memory in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = made_up(Path(folder), count, calls_of_step)
        begin = process_time()
        record_tables(recorded)
        print(process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def settling(rounds: int, count: int) -> dict[str, Figure]:
    """Return what settling so many calls of each of two ranks takes, in steps of many and of few calls."""
    found: dict[str, Figure] = {}
    for calls_of_step in (1000, 4):
        took = []
        for _ in range(rounds):
            words = [sys.executable, __file__, "--settle", str(count), "--step", str(calls_of_step)]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            took.append([float(word) for word in done.stdout.split()])
        seconds, memory = zip(*took, strict=True)
        name = f"{count:,} calls a rank in steps of {calls_of_step}"
        goals = (SETTLE_S, SETTLE_GIB) if count >= MANY else (None, None)
        found[f"{name}, settled in"] = figure(seconds, "lower", goals[0], unit="s")
        found[f"{name}, memory"] = figure(memory, "lower", goals[1], unit="GiB")
    return found


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--calls", type=float, default=1e7, help="of each rank that are settled")
    options.add_argument("--settle", type=int, help="settle so many calls here, and print what it takes")
    options.add_argument("--step", type=int, default=1000, help="calls of a step of these")
    args = options.parse_args()
    if args.settle:
        settle_many(args.settle, args.step)
        return
    found = costs(args.rounds) | reading(args.rounds)
    call_s = max(found[f"a call, {name}"].value for name in CALLS) * 1e-9
    few = max(2, args.rounds // 3)
    parts: Sequence[Callable[[], dict[str, Figure]]] = (
        lambda: weak(args.rounds, call_s),
        lambda: examples(few),
        lambda: delay(few),
        lambda: settling(2, int(args.calls)),
    )
    for part in parts:
        found |= part()
    library = launcher.find()
    setting: dict[str, Any] = {"blocks": BLOCKS, "turns": TURNS, "settled calls of a rank": int(args.calls)}
    finish(args, found, setting, mpi=f"{library.flavour} {library.version}")


if __name__ == "__main__":
    main()
