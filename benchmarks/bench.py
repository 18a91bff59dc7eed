"""Run the benchmarks and compare their figures with those that are kept: the regression guard.

    python benchmarks/bench.py [NAME...] [--fail-if-worse] [--keep]

Each benchmark writes a file into benchmarks/figures/new; those in benchmarks/figures are the ones to compare
with. `worse` needs an interval that lies below; where it is too wide, the answer is `too noisy to tell`.
--keep makes the new figures the ones to compare with.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import figures

HERE = Path(__file__).parent
NEW = figures.COMMITTED / "new"
BENCHMARKS = ("startup", "one_rank", "collectives", "copies", "overlap", "memory", "step")


@dataclass(frozen=True)
class Change:
    """What became of a figure."""

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


def chosen(names: list[str]) -> list[str]:
    """Return the benchmarks to run: those named, or all for which there is what they need."""
    if names or importlib.util.find_spec("torch"):
        return names or list(BENCHMARKS)
    print("step is left out: it needs PyTorch, `pip install '.[torch]'`")
    return [name for name in BENCHMARKS if name != "step"]


def run(name: str) -> Path | None:
    """Run one benchmark; returns its figures, or None if it failed."""
    path = NEW / f"{name}.json"
    path.unlink(missing_ok=True)
    start = perf_counter()
    print(f"== {name}", flush=True)
    done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), "--json", str(path)], check=False)
    print(f"   {perf_counter() - start:.0f} s", flush=True)
    return path if done.returncode == 0 and path.exists() else None


def compare(name: str, path: Path) -> list[Change]:
    """Print how the figures of a benchmark have changed."""
    kept = figures.COMMITTED / path.name
    if not kept.exists():
        print(f"{name}: no figures are kept to compare with")
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
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)}")
    parser.add_argument("--fail-if-worse", action="store_true", help="exit code 1 if a figure got worse")
    parser.add_argument("--keep", action="store_true", help="compare with these figures from now on")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    written = {name: run(name) for name in chosen(args.names)}
    found = [change for name, path in written.items() if path for change in compare(name, path)]
    broken = [name for name, path in written.items() if path is None]
    counts = Counter(change.verdict for change in found)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "nothing compared")
    if broken:
        print(f"did not run: {', '.join(broken)}")
    if args.keep:
        for path in filter(None, written.values()):
            path.replace(figures.COMMITTED / path.name)
    return int(bool(broken) or (args.fail_if_worse and counts["worse"] > 0))


if __name__ == "__main__":
    sys.exit(main())
