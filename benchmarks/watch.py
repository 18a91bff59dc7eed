"""What the recorder of `pscale watch` adds to a call of MPI.

    python benchmarks/watch.py [--rounds 15] [--json watch.json]

One rank makes calls that the library answers at once, with the recorder and without it, in alternation: a
broadcast to itself, nonblocking messages to itself with their completion, a test that finds nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pscale.watch.preload import FOLDER, beside, recorder

PROGRAM = """
import json, time
from mpi4py import MPI
import numpy as np
comm, x, y = MPI.COMM_SELF, np.zeros(1), np.zeros(1)
CALLS = 20_000

def of(body, calls):
    body(CALLS // 10)
    begin = time.perf_counter_ns()
    body(CALLS)
    return (time.perf_counter_ns() - begin) / (CALLS * calls)

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

print(json.dumps({"broadcast": of(broadcast, 1), "messages": of(messages, 3), "tests": of(tests, 1)}))
"""


def measure(environ: dict[str, str]) -> dict[str, float]:
    """Return how long each call takes, in ns."""
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Print medians of the time that a call takes longer, with quartiles."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    library = recorder(beside(Path(sys.executable)))
    added: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            recorded = measure({**os.environ, "LD_PRELOAD": str(library), FOLDER: folder})
        plain = measure(dict(os.environ))
        for name, with_it in recorded.items():
            added.setdefault(name, []).append(with_it - plain[name])
    figures = {name: statistics.quantiles(values, n=4) for name, values in added.items()}
    for name, (low, middle, high) in figures.items():
        print(f"{name:10} {middle:6.0f} ns a call (quartiles {low:.0f} to {high:.0f})")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


main()
