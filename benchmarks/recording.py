"""What recording costs: a call that is noted, and steps with recording beside steps without, in real runs.

    python benchmarks/recording.py [--rounds 9] [--json FILE]

A round is a launch of every case on two ranks, whose steps with and without recording take turns. A call is
timed with the two readings of the clock that no record can do without, and beside those readings alone.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import yaml
from figures import Figure, figure, finish, parser

from pscale.launch import mpi
from pscale.results.store import read_table
from pscale.worker.measure import recording_call_s

CALL_US, STEP = 1.5, 1.01  # goals
BATCHES, READINGS = 16, 1000
SUITE: Mapping[str, Any] = {
    "name": "recording",
    "scaling": "throughput",
    "ranks": 2,
    "model": {
        "kind": "gpt",
        "layers": 4,
        "width": 128,
        "heads": 4,
        "sequence": 128,
        "vocabulary": 256,
    },
    "data": {"kind": "synthetic"},
    "train": {"batch": 8, "steps": 2, "warmup": 5},
    "sweep": {"cases": [{"dp": 2}, {"tp": 2, "sp": True}, {"pp": 2, "micro_batches": 8}]},
    "timing": {"gemm_peak": False, "overhead_steps": 30},
    "launch": {"oversubscribe": True},
}


def step_ratios(rounds: int) -> dict[str, list[float]]:
    """Return by case how long a step with recording takes over one without, launch by launch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recording.yaml")
        path.write_text(yaml.safe_dump({**SUITE, "repeat": rounds}))
        command = [sys.executable, "-m", "pscale", "run", str(path), "--reports", folder, "--no-report"]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.stdout)
        (document,) = Path(folder).glob("recording/*/run.json")
        rows = read_table(document.parent / "data", "cases").to_pylist()
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["label"], []).append(row["recording_ratio"])
    return found


def two_readings_s() -> float:
    """Return what it takes to read the clock twice: the median of batches."""
    batches_ns = []
    for _ in range(BATCHES):
        start = perf_counter_ns()
        for _ in range(READINGS):
            perf_counter_ns(), perf_counter_ns()
        batches_ns.append(perf_counter_ns() - start)
    return statistics.median(batches_ns) * 1e-9 / READINGS


def calls(rounds: int) -> dict[str, Figure]:
    turns = [(recording_call_s(), two_readings_s()) for _ in range(rounds)]
    return {
        "a call": figure([call * 1e6 for call, _ in turns], "lower", CALL_US, unit="µs"),
        "a call over two readings of the clock": figure([call / bare for call, bare in turns], "lower"),
    }


def main() -> None:
    args = parser(__doc__, rounds=9).parse_args()
    found = calls(args.rounds)
    for label, ratios in step_ratios(args.rounds).items():
        found[f"a step over one without recording, {label}"] = figure(ratios, "lower", STEP)
    library = mpi.find()
    finish(args, found, {"suite": SUITE}, mpi=f"{library.flavour} {library.version}")


if __name__ == "__main__":
    main()
