"""Measure start-up times: of a rank, the command line and a report; and the overhead of a launch.

    python benchmarks/startup.py [--rounds 9] [--ranks 2] [--json FILE]

All alternate in every round. Seconds have goals but are never compared between days; the ratios to the bare
import of the same libraries are. The overhead of a launch is its share of a run's wall time, with journal and
results; the report, made once per run, is excluded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from figures import Figure, figure, finish, parser

from pscale.launch import launcher
from pscale.report.brief import FILE as DRAWN
from pscale.runs.store import compact

TESTS = Path(__file__).parents[1] / "tests"
WEAK = Path(__file__).parents[1] / "suites" / "weak.yaml"
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
FEW, MANY = 1, 4  # launches of a run; the difference is free of what a run costs once
LIBRARIES = "import numpy, mpi4py, pyarrow"  # of a rank, before MPI_Init
DRAWING = "import pandas, matplotlib.figure, matplotlib.backends.backend_svg, matplotlib.backends.backend_agg"
RANK = "import pscale.worker.__main__ as job; print(job._imported - job._started)"


def python(*arguments: str) -> str:
    """Run this Python and return what it prints."""
    done = subprocess.run([sys.executable, "-P", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def timed(act: Callable[[], object]) -> float:
    start = perf_counter()
    act()
    return perf_counter() - start


def run_s(folder: Path, ranks: int, repeat: int) -> float:
    suite = folder / "noop.yaml"
    suite.write_text(SUITE.format(ranks=ranks, repeat=repeat))
    return timed(lambda: python("-m", "pscale", "run", str(suite), "--reports", str(folder), "--new"))


def bare_launch_s(ranks: int) -> float:
    program = [sys.executable, "-c", "import numpy, mpi4py.MPI, pyarrow"]
    return timed(lambda: subprocess.run([launcher.find().path, "-n", str(ranks), *program], check=True))


def ten_cases(folder: Path) -> Path:
    """Make up a run of ten cases, six launches each."""
    sys.path.insert(0, str(TESTS))
    from synthetic import Point, write_run  # noqa: PLC0415

    points = [
        Point(ranks=ranks, series=series, noise=0.01, transfer_s=0.002 * ranks, losses=[5.0, 4.0, 3.0])
        for series in ("bucketed", "all-reduce")
        for ranks in (1, 2, 4, 8, 16)
    ]
    run = write_run(folder / "run", points, repeats=6)
    compact(run / "data")  # as when a run has ended
    return run


def first_report_s(run: Path) -> float:
    (run / DRAWN).unlink(missing_ok=True)  # or it would find that nothing has changed
    return timed(lambda: python("-m", "pscale", "report", str(run)))


def one_round(folder: Path, run: Path, ranks: int) -> dict[str, float]:
    few, many = run_s(folder, ranks, FEW), run_s(folder, ranks, MANY)
    bare = bare_launch_s(ranks)
    return {
        "rank": float(python("-c", RANK)),
        "libraries": timed(lambda: python("-c", LIBRARIES)),
        "nothing": timed(lambda: python("-c", "pass")),
        "version": timed(lambda: python("-m", "pscale", "--version")),
        "help": timed(lambda: python("-m", "pscale", "--help")),
        "show": timed(lambda: python("-m", "pscale", "show", str(WEAK))),
        "report": first_report_s(run),
        "report again": timed(lambda: python("-m", "pscale", "report", str(run))),
        "drawing": timed(lambda: python("-c", DRAWING)),
        "launch": (many - few) / (MANY - FEW),
        "bare launch": bare,
    }


def figures_of(rounds: list[dict[str, float]]) -> dict[str, Figure]:
    def of(name: str, goal: float | None = None) -> Figure:
        return figure([one[name] for one in rounds], "lower", goal, unit="s")

    def over(name: str, other: str) -> Figure:
        return figure([one[name] / one[other] for one in rounds], "lower")

    return {
        "import of a rank": of("rank", 0.25),
        "command line": of("help", 0.15),
        "version": of("version", 0.15),
        "cases of a suite": of("show", 0.4),
        "report of ten cases": of("report", 1.5),
        "report of ten cases, unchanged": of("report again", 1.5),
        "launch beyond that of its libraries": figure(
            [one["launch"] - one["bare launch"] for one in rounds], "lower", unit="s"
        ),
        "import of a rank over that of its libraries": over("rank", "libraries"),
        "command line over bare Python": over("help", "nothing"),
        "cases of a suite over bare Python": over("show", "nothing"),
        "report of ten cases over the import of pandas and matplotlib": over("report", "drawing"),
        "launch over that of its libraries": over("launch", "bare launch"),
    }


def main() -> None:
    options = parser(__doc__, rounds=9)
    options.add_argument("--ranks", type=int, default=2, help="ranks of the launches")
    args = options.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # by default Python keeps what it has compiled
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = ten_cases(folder)
        python("-m", "pscale", "report", str(run))  # builds matplotlib's cache of fonts, if there is none
        rounds = [one_round(folder, run, args.ranks) for _ in range(args.rounds + 1)][1:]
    library = launcher.find()
    finish(args, figures_of(rounds), {"ranks": args.ranks}, mpi=f"{library.flavour} {library.version}")


if __name__ == "__main__":
    main()
