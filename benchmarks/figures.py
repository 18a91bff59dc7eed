"""The result of every benchmark: ratios with intervals, in a file, compared with an earlier one.

Contestants alternate, so that other work on the machine affects all of them alike; a figure is the median of
the ratios of all rounds. Seconds of different days cannot be compared; ratios can, within their intervals.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import threadpoolctl

from pscale.blas import forwarding

Verdict = Literal["worse", "same", "better", "too noisy to tell"]
Unit = Literal["ratio", "ns", "µs", "s", "MiB", "GiB"]

COMMITTED = Path(__file__).parent / "figures"
MARGIN = 0.03  # a change of a ratio by less than this is none


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The median of ratios, with its quartiles and the 95 % interval of the median."""

    value: float
    low: float
    high: float
    lower_quartile: float
    upper_quartile: float
    rounds: int
    better: Literal["higher", "lower"] = "higher"
    goal: float | None = None
    unit: Unit = "ratio"

    @property
    def reaches_goal(self) -> bool | None:
        """Whether the median is on the good side of the goal; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"  goal {'≥' if self.better == 'higher' else '≤'} {self.goal:g}"
        missed = "  MISSED" if self.reaches_goal is False else ""
        quartiles = f"quartiles {self.lower_quartile:.3f} to {self.upper_quartile:.3f}"
        unit = "" if self.unit == "ratio" else self.unit
        return f"{self.value:6.3f} {unit:2} {quartiles}, {self.rounds} rounds{goal}{missed}"


def figure(
    values: Sequence[float],
    better: Literal["higher", "lower"] = "higher",
    goal: float | None = None,
    *,
    unit: Unit = "ratio",
) -> Figure:
    """Return the figure of at least two values; ratios alone are ever compared."""
    ordered = sorted(values)
    low, high = median_interval(ordered)
    lower, _, upper = statistics.quantiles(ordered, n=4, method="inclusive")
    return Figure(
        value=statistics.median(ordered),
        low=low,
        high=high,
        lower_quartile=lower,
        upper_quartile=upper,
        rounds=len(ordered),
        better=better,
        goal=goal,
        unit=unit,
    )


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the order statistics between which the median lies with 95 %, whatever the distribution.

    The number of values below the median is binomial; with fewer than six values these are the extremes.
    """
    count, below, place = len(ordered), 0.0, 0
    while place < (count - 1) // 2:
        below += math.comb(count, place) / 2**count
        if below > 0.025:
            break
        place += 1
    place = max(place - 1, 0)
    return ordered[place], ordered[-1 - place]


def verdict(
    before: Figure, now: Figure, margin: float = MARGIN
) -> tuple[Verdict, tuple[float, float, float]]:
    """Return whether a figure got worse, and its change with the interval; above 1 is better.

    Worse: the whole interval is below 1 and the median beyond the margin. Too noisy: it could be worse.
    """
    sign = 1 if now.better == "higher" else -1
    change = sign * math.log(now.value / before.value)
    spread = math.hypot(*(math.log(each.high / each.low) / 2 for each in (before, now)))
    low, high, limit = change - spread, change + spread, math.log1p(margin)
    shown = (math.exp(change), math.exp(low), math.exp(high))
    if change < -limit and high < 0:
        return "worse", shown
    if low < -limit:
        return "too noisy to tell", shown
    return ("better" if change > limit and low > 0 else "same"), shown


def blas() -> list[dict[str, Any]]:
    """Return what threadpoolctl knows of the BLAS that computes for NumPy."""
    pools = (pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas")
    return [pool for pool in pools if forwarding.computes(Path(pool["filepath"]))]


def python() -> list[str]:
    """Return the command for a Python whose NumPy has the BLAS of this one."""
    return [sys.executable, "-m", "pscale.blas", str(forwarding.library() or "numpy")]


def machine() -> dict[str, Any]:
    """Return on what figures were measured: what they depend on, and nothing that names a host or a path."""
    model = platform.processor() or platform.machine()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), model)
    keep = ("internal_api", "version", "architecture", "threading_layer")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": [{key: pool.get(key) for key in keep} for pool in blas()],
    }


def blas_kind() -> str:
    """Return whose threads NumPy's BLAS has, and its kernels if it may not choose: openmp-haswell, say."""
    pools = blas()
    threads = pools[0].get("threading_layer", "unknown") if pools else "no"
    held = os.environ.get("OPENBLAS_CORETYPE", "")
    return f"{threads}-{held.lower()}" if held else threads


def write(
    path: Path, benchmark: str, found: Mapping[str, Figure], setting: Mapping[str, Any], **on: Any
) -> None:
    """Write the figures of a benchmark with its setting and the machine; `on` is what else they depend on."""
    content = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {**machine(), **on},
        "setting": setting,
        "figures": {name: asdict(each) for name, each in found.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> tuple[dict[str, Any], dict[str, Figure]]:
    """Return the whole content of a file and its figures."""
    content = json.loads(path.read_text())
    return content, {name: Figure(**values) for name, values in content["figures"].items()}


def show(found: Mapping[str, Figure]) -> None:
    """Print figures one a line."""
    width = max(map(len, found), default=0)
    for name, each in found.items():
        print(f"{name:{width}}  {each}")


def parser(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=rounds, help="rounds, in which contestants alternate")
    made.add_argument("--json", type=Path, help="write the figures to this file")
    return made


def finish(
    args: argparse.Namespace, found: Mapping[str, Figure], setting: Mapping[str, Any], **on: Any
) -> None:
    """Print the figures, and write them where the options say so."""
    show(found)
    if args.json:
        write(args.json, Path(sys.argv[0]).stem, found, setting, **on)
