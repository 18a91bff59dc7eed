"""What pscale adds to a launch: a no-op case beside the bare start of the same libraries under the same MPI.

    python benchmarks/harness.py [--rounds 15] [--ranks 2] [--json FILE]

The two alternate. A case's cost is its share of the run's wall time, journal and results included; the report
comes once a run and is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

SUITE = """
name: noop
scaling: strong
model: {{kind: linear}}
data: {{kind: linear, samples: 100}}
train: {{batch: 100, optimizer: sgd, clip: null, steps: 1, warmup: 0}}
plan: {{dp: ranks}}
ranks: {ranks}
repeat: {repeat}
timing: {{gemm_peak: false, overhead_steps: 0}}
launch: {{oversubscribe: true}}
"""
BARE = "import numpy, mpi4py.MPI, pyarrow"
FEW, MANY = 1, 4  # launches of a run; the difference is free of what a run costs once


def run_s(folder: Path, ranks: int, repeat: int) -> float:
    suite = folder / "noop.yaml"
    suite.write_text(SUITE.format(ranks=ranks, repeat=repeat))
    command = [sys.executable, "-m", "pscale", "run", str(suite), "--reports", str(folder), "--new"]
    start = perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return perf_counter() - start


def bare_s(ranks: int) -> float:
    mpiexec = Path(sys.executable).parent / "mpiexec"
    start = perf_counter()
    subprocess.run([str(mpiexec), "-n", str(ranks), sys.executable, "-c", BARE], check=True)
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    extra = []
    with tempfile.TemporaryDirectory() as name:
        for _ in range(options.rounds):
            few, many = run_s(Path(name), options.ranks, FEW), run_s(Path(name), options.ranks, MANY)
            extra.append((many - few) / (MANY - FEW) - bare_s(options.ranks))
    low, median, high = statistics.quantiles(extra, n=4)
    quartiles = f"quartiles {low * 1e3:.0f} to {high * 1e3:.0f}"
    print(f"a case costs {median * 1e3:.0f} ms ({quartiles}) beyond the bare start of the same libraries")
    if options.json:
        options.json.write_text(json.dumps({"ranks": options.ranks, "extra_s": extra, "median_s": median}))


if __name__ == "__main__":
    main()
