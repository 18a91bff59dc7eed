"""Measure the cost of reporting and listing large runs: time and memory on generated data.

    python benchmarks/large.py [--rows 10000000] [--ranks 1024] [--cases 10000] [--listed 100000]

First a run with `--rows` rows of steps and calls from up to `--ranks` ranks, then one with `--cases` cases of
one launch each, then a folder of runs with `--listed` launches in all. Each command is a process of its own.
Data is written by Arrow in the schema that jobs write, and removed afterwards. Goals: 10 s and 1.5 GB for the
rows, 5 s for the cases, 0.5 s for the list.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from pscale.config import Case, Model, Plan, Train, to_dict
from pscale.runs.schema import Table
from pscale.runs.store import compact, part_paths, write_columns

PHASES = np.array(["data", "forward", "backward", "sync", "update"])
SHARES = np.array([0.02, 0.3, 0.55, 0.05, 0.08])
STEPS = 20
TOGETHER = 1000  # launches in a part
VERBS = 3  # all-reduce, all-gather, reduce-scatter: rows of calls of a rank and step
ROWS_OF_RANK = STEPS * (len(PHASES) + VERBS)


@dataclass(frozen=True)
class Cost:
    """What a command took; memory is the largest that it had resident."""

    wall_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return f"{self.wall_s:6.2f} s  {self.peak_bytes / 1e9:5.2f} GB"


def spent(*arguments: str) -> Cost:
    """Run the command line, and return what it took; its output goes nowhere."""
    start = perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "pscale", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, arguments
    return Cost(perf_counter() - start, usage.ru_maxrss * 1024)


def case_of(ranks: int, number: int = 0) -> Case:
    return Case(
        suite="large",
        label=f"{ranks} ranks · seed {number}" if number else f"{ranks} ranks",
        series=f"seed {number // 10}" if number else "",
        scaling="weak",
        ranks=ranks,
        model=Model(layers=2, width=64),
        train=Train(batch=4 * ranks, steps=STEPS, seed=number),
        plan=Plan(dp=ranks),
    )


def write_document(folder: Path, cases: list[Case], repeats: int) -> None:
    (folder / "data").mkdir(parents=True)
    document = {
        "format": 1,
        "run": folder.name,
        "suite": {"name": "large", "title": "Generated", "scaling": "weak"},
        "expect": [],
        "cases": [to_dict(case) | {"id": case.id} for case in cases],
        "repeats": repeats,
        "seed": 1,
        "provenance": {"machine": {"host": "host", "cpu_model": "CPU", "cores": 2}},
    }
    (folder / "run.json").write_text(json.dumps(document))


def launch_tables(
    case: Case, repeat: int, random: np.random.Generator, steps: int = STEPS
) -> dict[Table, dict[str, Any]]:
    """Return a launch in which every rank computes about 0.1 s a step, and waits for the slowest."""
    ranks, phases = case.ranks, len(PHASES)
    compute = 0.1 * SHARES * (1 + 0.02 * random.random((ranks, steps, phases)))
    busy = compute.sum(axis=2)
    wait = busy.max(axis=0) - busy
    ends = np.cumsum(busy.max(axis=0) + 0.004)
    zeros = np.zeros((ranks, steps, phases))
    waits, transfer, caused = zeros.copy(), zeros.copy(), zeros.copy()
    waits[:, :, 3], transfer[:, :, 3] = wait, 0.004
    caused[busy.argmax(axis=0), np.arange(steps), 3] = wait.sum(axis=0)
    columns: dict[str, Any] = {
        "rank": np.repeat(np.arange(ranks), steps * phases),
        "step": np.tile(np.repeat(np.arange(steps), phases), ranks),
        "phase": np.tile(PHASES, ranks * steps),
        "wall_s": compute + waits + transfer,
        "compute_s": compute,
        "transfer_s": transfer,
        "wait_s": waits,
        "copy_s": zeros,
        "hidden_s": zeros,
        "ideal_wait_s": waits,
        "caused_wait_s": caused,
        "injected_delay_s": zeros,
        "unaccounted_s": zeros,
        "end_s": np.broadcast_to(np.repeat(ends, phases), (ranks, steps * phases)),
        "ideal_end_s": np.broadcast_to(np.repeat(ends - 0.004, phases), (ranks, steps * phases)),
    }
    step_s = float(np.median(np.diff(ends, prepend=0)))
    tables: dict[Table, dict[str, Any]] = {
        "steps": {name: flat(values) for name, values in columns.items()},
        "ranks": rank_columns(ranks, float(ends[-1])),
        "cases": case_columns(case, repeat, step_s),
    }
    return tables | ({"calls": call_columns(ranks, steps, wait)} if ranks > 1 else {})


def write_together(data: Path, cases: list[Case], random: np.random.Generator, steps: int) -> None:
    """Write a launch of each case, all in one part a table: a file a launch would take minutes."""
    parts: dict[Table, list[dict[str, Any]]] = {}
    for case in cases:
        for table, columns in launch_tables(case, 0, random, steps).items():
            length = len(next(iter(columns.values())))
            parts.setdefault(table, []).append({"case": [case.id] * length, **columns})
    for table, launches in parts.items():
        joined = {name: [row for launch in launches for row in launch[name]] for name in launches[0]}
        write_columns(data, table, cases[0].id, 0, joined)


def flat(values: Any) -> Any:
    return np.ascontiguousarray(values).reshape(-1)


def call_columns(ranks: int, steps: int, wait: Any) -> dict[str, Any]:
    verbs = np.array(["all_reduce", "all_gather", "reduce_scatter"])
    rows = ranks * steps * VERBS
    zeros, third = np.zeros(rows), np.repeat(flat(wait) / VERBS, VERBS)
    return {
        "rank": np.repeat(np.arange(ranks), steps * VERBS),
        "step": np.tile(np.repeat(np.arange(steps), VERBS), ranks),
        "phase": np.full(rows, "sync"),
        "axis": np.full(rows, "dp"),
        "verb": np.tile(verbs, ranks * steps),
        "count": np.ones(rows, np.int64),
        "bytes": np.full(rows, 1 << 20),
        "transfer_s": np.full(rows, 0.004 / VERBS),
        "wait_s": third,
        "hidden_s": zeros,
        "exposed_s": zeros,
        "ideal_wait_s": third,
        "clock_bound_s": zeros,
    }


def rank_columns(ranks: int, wall_s: float) -> dict[str, Any]:
    texts = {"host": "host", "blas": "openblas", "blas_version": "0.3", "blas_threading": "pthreads"}
    return {
        "rank": np.arange(ranks),
        **{name: [value] * ranks for name, value in texts.items()},
        "cpus": [str(rank % 64) for rank in range(ranks)],
        "threads": np.ones(ranks, np.int64),
        "kernels": ["fused"] * ranks,
        "peak_rss_bytes": np.full(ranks, 300_000_000),
        "clock_bound_s": np.zeros(ranks),
        "t_ideal_s": np.full(ranks, 0.96 * wall_s),
        "wall_s": np.full(ranks, wall_s),
        "unaccounted_s": np.zeros(ranks),
        "cpu_s": np.full(ranks, 0.9 * wall_s),
        "thread_cpu_s": [[0.9 * wall_s]] * ranks,
        "involuntary_context_switches": np.zeros(ranks, np.int64),
    }


def case_columns(case: Case, repeat: int, step_s: float) -> dict[str, Any]:
    row = {
        "suite": "large",
        "label": case.label,
        "series": case.series,
        "base": False,
        "scaling": case.scaling,
        "status": "ok",
        "ranks": case.ranks,
        "threads": 1,
        "dp": case.ranks,
        "pp": 1,
        "batch": case.train.batch,
        "tokens": case.train.batch * 256,
        "dtype": "float32",
        "started_unix_s": 1.7e9 + repeat,
        "wall_s": 5.0,
        "step_s": step_s,
        "model_flops": 1e9 * case.train.batch,
        "executed_flops": 1.2e9 * case.train.batch,
        "gemm_peak_gflops": 100.0 * case.ranks,
        "recording_ratio": 1.001,
        "recording_call_s": 1e-6,
        "loss_first": 5.5,
        "loss_last": 2.5,
        "losses": [5.5, 4.0, 2.5],
    }
    return {name: [value] for name, value in row.items()}


def rows_run(folder: Path, rows: int, most: int) -> str:
    """Write launches of 1, 2, 4, … `most` ranks until there are so many rows."""
    sizes = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    repeats = max(1, round(rows / (ROWS_OF_RANK * sum(sizes))))
    cases = [case_of(ranks) for ranks in sizes]
    write_document(folder, cases, repeats)
    random = np.random.default_rng(1)
    for case in cases:
        for repeat in range(repeats):
            for table, columns in launch_tables(case, repeat, random).items():
                write_columns(folder / "data", table, case.id, repeat, columns)
    compact(folder / "data")  # as when a run has ended
    return f"{ROWS_OF_RANK * sum(sizes) * repeats:,} rows, {sizes[-1]} ranks, {len(cases) * repeats} launches"


def cases_run(folder: Path, count: int) -> str:
    """Write so many cases of 1 and 2 ranks, a launch and five steps each."""
    cases = [case_of(1 + number % 2, number) for number in range(1, count + 1)]
    write_document(folder, cases, 1)
    random = np.random.default_rng(1)
    for first in range(0, count, TOGETHER):
        write_together(folder / "data", cases[first : first + TOGETHER], random, steps=5)
    return f"{count:,} cases, one launch each"


def runs_folder(root: Path, launches: int, of_run: int = 1000) -> str:
    """Write runs of `of_run` launches; one is made, the others are copies under other names."""
    count = max(1, launches // of_run)
    first = root / "large" / "run-0"
    cases_run(first, of_run)
    for table in ("steps", "calls", "ranks"):
        for part in part_paths(first / "data", table):
            part.unlink()
    for number in range(1, count):
        other = root / "large" / f"run-{number}"
        (other / "data").mkdir(parents=True)
        for file in (first / "run.json", *part_paths(first / "data", "cases")):
            (other / file.relative_to(first)).write_bytes(file.read_bytes())
    return f"{count} runs, {count * of_run:,} launches"


def tell(write: Callable[[], str], *commands: Sequence[str]) -> None:
    """Write data, then print what each command takes."""
    start = perf_counter()
    print(f"{write()}, written in {perf_counter() - start:.0f} s", flush=True)
    for command in commands:
        print(f"  {spent(*command)}  pscale {' '.join(command)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of steps and calls; 0: skip")
    parser.add_argument("--ranks", type=int, default=1024, help="ranks of the largest case")
    parser.add_argument("--cases", type=int, default=10_000, help="0: skip")
    parser.add_argument("--listed", type=int, default=100_000, help="launches in a folder of runs; 0: skip")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pscale-large-") as name:
        folder = Path(name)
        rows, cases, listed = (str(folder / part) for part in ("rows", "cases", "listed"))
        if options.rows:
            tell(lambda: rows_run(Path(rows), options.rows, options.ranks), ["report", rows])
        if options.cases:
            report = ["report", cases]
            tell(lambda: cases_run(Path(cases), options.cases), report, [*report, "--no-figures"])
        if options.listed:
            again = ["list", "--reports", listed]
            tell(lambda: runs_folder(Path(listed), options.listed), again, again)


if __name__ == "__main__":
    main()
