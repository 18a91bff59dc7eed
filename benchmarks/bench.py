"""Run the benchmarks and compare their figures with the kept ones: the regression guard.

    python benchmarks/bench.py [NAME...] [--fail-if-worse] [--keep] [--torch-python PYTHON]

Kept figures are in folders of benchmarks/figures named after the kind of NumPy's BLAS threads (OpenMP, or its
own) and, if OPENBLAS_CORETYPE is set, its kernels; new ones go to benchmarks/figures/new. `worse` requires an
interval that lies below; if the interval is too wide, the answer is `too noisy to tell`. --keep makes the new
figures the baseline.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import figures

HERE = Path(__file__).parent
BLAS = figures.blas_kind()
KEPT, NEW = figures.COMMITTED / BLAS, figures.COMMITTED / "new" / BLAS
RIVALS = ("step", "data_parallel")  # programs that run PyTorch too
WIDE = ("--width", "1024", "--heads", "16", "--layers", "2")
BENCHMARKS = {  # the program with its arguments
    "startup": ("startup",),
    "blas": ("blas",),
    "recording": ("recording",),
    "one_rank": ("one_rank",),
    "collectives": ("collectives",),
    "copies": ("copies",),
    "overlap": ("overlap",),
    "watch": ("watch",),
    "memory": ("memory",),
    "firmness": ("firmness",),
    "history": ("history",),
    "predict": ("predict",),
    "data_parallel": ("data_parallel",),
    "attention": ("attention",),
    "attention_numpy": ("attention", "--kernels", "numpy"),
    "step": ("step", "--rounds", "9", "--goal", "0.88"),
    "step_2_threads": ("step", "--rounds", "15", "--threads", "2", "--goal", "0.82"),
    "step_wide": ("step", "--rounds", "7", *WIDE, "--goal", "0.92"),
    "step_wide_2_threads": ("step", "--rounds", "9", "--threads", "2", *WIDE, "--goal", "0.86"),
}


@dataclass(frozen=True)
class Change:
    """How a figure has changed."""

    name: str
    verdict: figures.Verdict
    ratio: tuple[float, float, float]

    def __str__(self) -> str:
        value, low, high = self.ratio
        return f"  {self.verdict:18} {value:.3f} ({low:.3f} to {high:.3f})  {self.name}"


def changes(before: dict[str, figures.Figure], now: dict[str, figures.Figure]) -> list[Change]:
    """Compare the figures that both have and that can be compared."""
    shared = [name for name in now if name in before and now[name].unit == "ratio"]
    return [Change(name, *figures.verdict(before[name], now[name])) for name in shared]


def chosen(names: list[str], torch_python: str) -> dict[str, list[str]]:
    """Return the commands of the benchmarks that are named, or of all that can run here."""
    wanted = names or list(BENCHMARKS)
    rivals = [name for name in wanted if BENCHMARKS[name][0] in RIVALS]
    find = [torch_python, "-c", "import torch"]
    if rivals and subprocess.run(find, check=False, capture_output=True).returncode:
        print("skipping what needs PyTorch: `pip install '.[torch]'`, or --torch-python")
        wanted = [name for name in wanted if name not in rivals]
    torch = ["--torch-python", torch_python]
    return {name: [*BENCHMARKS[name], *(torch if name in rivals else [])] for name in wanted}


def run(name: str, command: list[str]) -> Path | None:
    """Run one benchmark; returns its figures, or None if it failed."""
    path, (program, *arguments) = NEW / f"{name}.json", command
    path.unlink(missing_ok=True)
    start = perf_counter()
    print(f"== {name}", flush=True)
    argv = [*figures.python(), str(HERE / f"{program}.py"), *arguments, "--json", str(path)]
    done = subprocess.run(argv, check=False)
    print(f"   {perf_counter() - start:.0f} s", flush=True)
    return path if done.returncode == 0 and path.exists() else None


def compare(name: str, path: Path) -> list[Change]:
    """Print how the figures of a benchmark have changed."""
    kept = KEPT / path.name
    if not kept.exists():
        print(f"{name}: no kept figures to compare with")
        return []
    before, old = figures.read(kept)
    now, new = figures.read(path)
    print(f"{name}: against {before['date']}, above 1 is better")
    other = [key for key, value in now["machine"].items() if before["machine"].get(key) != value]
    if other:
        print(f"  measured on another machine or software: {', '.join(other)}")
    found = changes(old, new)
    for change in found:
        print(change)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--fail-if-worse", action="store_true", help="exit with 1 if a figure got worse")
    parser.add_argument("--keep", action="store_true", help="make the new figures the baseline")
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    print(f"NumPy {figures.np.__version__}, BLAS threads: {BLAS}")
    written = {name: run(name, command) for name, command in chosen(args.names, args.torch_python).items()}
    found = [change for name, path in written.items() if path for change in compare(name, path)]
    broken = [name for name, path in written.items() if path is None]
    counts = Counter(change.verdict for change in found)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "nothing compared")
    if broken:
        print(f"failed: {', '.join(broken)}")
    if args.keep:
        KEPT.mkdir(parents=True, exist_ok=True)
        for path in filter(None, written.values()):
            path.replace(KEPT / path.name)
    return int(bool(broken) or (args.fail_if_worse and counts["worse"] > 0))


if __name__ == "__main__":
    sys.exit(main())
