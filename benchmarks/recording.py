"""Measure the cost of recording: of one recorded call, and of steps with recording in real runs.

    python benchmarks/recording.py [--rounds 9] [--json FILE]

A round is a launch of every case on two ranks, in which steps with and without recording alternate. As a
control, steps that are all recorded are compared in the same way: its deviation from 1 is the resolution of
this machine. A call is timed with the two clock readings that any recorder needs, and against those readings
alone; its cost times the events of a rank is the cost of recording without noise.
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

import numpy as np
import pandas as pd
import yaml
from figures import Figure, figure, finish, parser
from numpy.typing import NDArray

from pscale.launch import launcher
from pscale.runs.store import read_table
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
    "train": {"batch": 4, "steps": 200, "warmup": 10},
    "sweep": {"cases": [{"dp": 2}, {"tp": 2, "sp": True}, {"pp": 2, "micro_batches": 4}]},
    "timing": {"gemm_peak": False, "overhead_steps": 100},
    "launch": {"oversubscribe": True},
}


def step_ratios(rounds: int) -> dict[str, list[float]]:
    """Return, launch by launch, the ratios of each case: with recording over without, and the control."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recording.yaml")
        path.write_text(yaml.safe_dump({**SUITE, "repeat": rounds}))
        command = [sys.executable, "-m", "pscale", "run", str(path), "--reports", folder, "--no-report"]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.stdout)
        (document,) = Path(folder).glob("recording/*/run.json")
        launches, steps, ranks = (
            read_table(document.parent / "data", table).to_pandas() for table in ("cases", "steps", "ranks")
        )
    found: dict[str, list[float]] = {}
    for row in launches.to_dict("records"):
        of_launch = {name: row[name] for name in ("case", "repeat")}
        ends_s = chosen(steps, **of_launch, rank=0, phase="sync").sort_values("step")["end_s"].to_numpy()
        seats = chosen(ranks, **of_launch)
        for what, ratio in (
            ("a step over one without recording", row["recording_ratio"]),
            ("control: a step over another with recording", alike(np.diff(ends_s, prepend=0.0))),
            (
                "1 and the events of a step",
                1 + (seats["events"] / seats["wall_s"]).max() * row["recording_call_s"],
            ),
        ):
            found.setdefault(f"{what}, {row['label']}", []).append(float(ratio))
    return found


def chosen(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows that have these values."""
    for name, value in values.items():
        rows = rows[rows[name] == value]
    return rows


def alike(times: NDArray[np.float64]) -> float:
    """Return the median ratio of steps in pairs, each second pair the other way round."""
    ratios = times[1::2] / times[::2]
    ratios[1::2] = 1 / ratios[1::2]
    return float(np.median(ratios))


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
    for name, ratios in step_ratios(args.rounds).items():
        found[name] = figure(ratios, "lower", None if "alike" in name else STEP)
    library = launcher.find()
    finish(args, found, {"suite": SUITE}, mpi=f"{library.flavour} {library.version}")


if __name__ == "__main__":
    main()
