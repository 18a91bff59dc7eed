"""How firmly short runs answer: coverage and half-width of the intervals, and what else would do.

    python benchmarks/firmness.py [--rounds 200] [--json FILE]
    python benchmarks/firmness.py --machine 30 [--budget 90s] [--truth 30] [--json FILE]

First two equal cases are timed over and over by each design, in the same time, on noise that was recorded
(tests/analysis/recorded) and on noise that is drawn. A figure is half of an interval over its value. Coverage
is the share of intervals that hold the truth, so the rest call equal cases different; `found` is the share in
which a case that is 5 % slower is called different.

With --machine the suites run so often here, each within the budget, then once for `--truth` times as long.
Three more cases answer whether two equal programs, and one that is 5 % slower, are distinguished. Nothing
else should run meanwhile; 30 runs of two suites take three hours.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
import numpy as np
from numpy.typing import NDArray

from pscale.analysis import contrasts, scaling
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.stats import Estimate, Sample, ratio

Vector = NDArray[np.float64]
Shares = dict[str, dict[str, float]]
HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"
RECORDED = HERE.parent / "tests" / "analysis" / "recorded"
START_S, STEP_S, TICK_S = 1.2, 0.3, 0.06  # of a launch, of a step, and between the steps that were recorded
OWN, LAUNCH = 0.01, 0.01  # scatter of steps, and of launches beside that
SLOWER, NARROW = 1.05, 0.03
LONG_S = 240.0  # of noise


def recorded(random: np.random.Generator) -> Vector:
    """Return the logarithms of the machine's slowness as it was recorded, tick by tick, from anywhere."""
    file = RECORDED / f"{random.choice(['mpich', 'openmpi'])}.csv"
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [[int(cell) for cell in row] for row in csv.reader(lines)]
    ranks = random.integers(1, 3)
    logs = np.log(np.concatenate([row[2 : 1 + len(row) // 2] for row in rows if row[0] == ranks]))
    return np.roll(np.tile(logs - np.median(logs), 4), random.integers(len(logs)))


def drawn(drift: float, bursts: float) -> Callable[[np.random.Generator], Vector]:
    """Return noise that drifts within half a minute, and has a burst of other work every 20 s."""

    def noise(random: np.random.Generator) -> Vector:
        count = round(LONG_S / TICK_S)
        keep = math.exp(-TICK_S / 30)
        steps = drift * math.sqrt(1 - keep**2) * random.normal(size=count)
        level, logs = drift * random.normal(), np.empty(count)
        for place, step in enumerate(steps):
            level = keep * level + step
            logs[place] = level
        for start in np.flatnonzero(random.random(count) < TICK_S / 20):
            logs[start : start + int(random.exponential(2.0) / TICK_S)] += bursts * random.exponential()
        return logs

    return noise


NOISES = {
    "recorded": recorded,
    "quiet": drawn(0.005, 0.0),
    "drift and bursts": drawn(0.03, 0.2),
    "loud": drawn(0.1, 0.4),
}


class Machine:
    """Runs launches on noise; `now_s` is what they have taken."""

    def __init__(self, random: np.random.Generator, noise: Vector):
        self._random, self._slowness, self.now_s = (
            random,
            np.concatenate([[0], np.cumsum(np.exp(noise))]),
            0.0,
        )

    def start(self) -> float:
        """Start a launch; return by what all of its steps differ."""
        self.now_s += START_S
        return float(LAUNCH * self._random.normal())

    def steps(self, count: int) -> float:
        """Return the logarithm of the median of some steps."""
        edges = ((self.now_s + STEP_S * np.arange(count + 1)) / TICK_S).round().astype(int)
        edges %= len(self._slowness) - 1
        times = np.diff(self._slowness[edges]) / np.maximum(np.diff(edges), 1)
        kept = times[np.diff(edges) > 0]
        self.now_s += STEP_S * count
        return float(np.median(np.log(kept) + OWN * self._random.normal(size=len(kept))))


Pairs = NDArray[np.float64]  # logarithms of the values of both cases, a row a round


def rounds(machine: Machine, random: np.random.Generator, count: int, steps: int, warmup: int = 2) -> Pairs:
    """Return rounds of one launch of each case."""
    found = np.empty((count, 2))
    for row in found:
        for case in random.permutation(2):
            own = machine.start()
            machine.steps(warmup)
            row[case] = machine.steps(steps) + own
    return found


def interleaved(machine: Machine, random: np.random.Generator, jobs: int, blocks: int, steps: int) -> Pairs:
    """Return jobs that each run both cases in turn, in blocks of some steps."""
    found = np.empty((jobs, blocks, 2))
    for job in found:
        machine.start()
        own = LAUNCH * random.normal(size=2)
        machine.steps(4)
        for row in job:
            for case in random.permutation(2):
                row[case] = machine.steps(steps) + own[case]
    return found.mean(axis=1)


def in_pairs(found: Pairs) -> Estimate:
    """Return the ratio of the second case to the first as reports state it."""
    sides = [
        Sample(medians=tuple(np.exp(side).tolist()), repeats=tuple(range(len(side)))) for side in found.T
    ]
    return ratio(sides[1], sides[0])


def of_medians(found: Pairs) -> Estimate:
    """Return the ratio of medians of few launches: a bootstrap, widened so that it covers."""
    random = np.random.default_rng(1)
    widened = {3: 4.25}.get(len(found), 1.6)
    centre = np.median(found, axis=0)
    draws = random.integers(0, len(found), (2, 2000, len(found)))
    apart = [np.median(widened * (found[draws[side], side] - centre[side]), axis=1) for side in (0, 1)]
    value = centre[1] - centre[0]
    low, high = np.quantile(value + apart[1] - apart[0], [0.025, 0.975])
    return Estimate(value=math.exp(value), low=math.exp(low), high=math.exp(high))


@dataclass(frozen=True)
class Design:
    """How launches are made, and what follows from them."""

    measure: Callable[[Machine, np.random.Generator], Pairs]
    estimate: Callable[[Pairs], Estimate]


DESIGNS = {  # about 85 s each
    "3 rounds of 40 steps, medians": Design(lambda m, r: rounds(m, r, 3, 40), of_medians),
    "3 rounds of 40 steps": Design(lambda m, r: rounds(m, r, 3, 40), in_pairs),
    "6 rounds of 17 steps": Design(lambda m, r: rounds(m, r, 6, 17), in_pairs),
    "10 rounds of 8 steps": Design(lambda m, r: rounds(m, r, 10, 8), in_pairs),
    "14 rounds of 4 steps": Design(lambda m, r: rounds(m, r, 14, 4), in_pairs),
    "8 jobs of 3 x 2 blocks of 4 steps": Design(lambda m, r: interleaved(m, r, 8, 3, 4), in_pairs),
}


def simulated(trials: int) -> tuple[dict[str, figures.Figure], Shares]:
    """Return the half-widths of every design on every noise, and how often it is right."""
    found, shares = {}, {}
    for noise, make in NOISES.items():
        for name, design in DESIGNS.items():
            known, took_s = [], []
            for trial in range(trials):
                random = np.random.default_rng([1, trial])
                machine = Machine(random, make(random))
                known.append(design.estimate(design.measure(machine, random)))
                took_s.append(machine.now_s)
            widths = np.array([one.half_width for one in known])
            low, high = np.array([(one.low, one.high) for one in known], np.float64).T
            key = f"{noise}: {name}"
            found[key] = figures.figure(widths.tolist(), better="lower")
            shares[key] = {
                "seconds": float(np.mean(took_s)),
                "nine in ten below": float(np.quantile(widths, 0.9)),
                "coverage": float(np.mean((low <= 1) & (high >= 1))),
                "found": float(np.mean(low * SLOWER > 1)),
            }
            print(f"{key}: {found[key]}\n    {listed(shares[key])}", flush=True)
    return found, shares


def run(suite: Path, reports: Path, *options: str) -> tuple[Path, float]:
    """Run a suite once more; return the folder of its run and the seconds it took."""
    begun = time.perf_counter()
    argv = [sys.executable, "-m", "pscale", "run", str(suite), "--reports", str(reports), "--new"]
    subprocess.run([*argv, "--no-report", *options], check=True, capture_output=True)
    folders = reports.glob("*/*/run.json")
    return max(folders, key=lambda file: file.stat().st_mtime_ns).parent, time.perf_counter() - begun


def efficiency(folder: Path) -> Estimate:
    """Return the efficiency of the largest case of a run."""
    points = [point for point in Findings(load(folder)).rows("cases") if point.efficiency]
    known = max(points, key=lambda point: point.cores).efficiency
    assert known is not None
    return known


TWINS = """
name: twins
extends: {weak}
scaling: throughput
plan: {{dp: 1}}
sweep:
  cases:
  - {{plan.bucket: 4MiB}}
  - {{plan.bucket: 5MiB}}
  - {{plan.bucket: 6MiB, inject.delay: {delay_ms:.3f}ms}}
exclude: []
expect: []
"""


def on_machine(
    names: Sequence[str], runs: int, budget: str, truth: int, reports: Path
) -> tuple[dict[str, figures.Figure], Shares]:
    """Run the suites; return the half-widths of the efficiencies, and how often they are narrow and right."""
    found, shares = {}, {}
    for name in names:
        suite = SUITES / f"{name}.yaml"
        short = [run(suite, reports, "--budget", budget) for _ in range(runs)]
        known = [efficiency(path) for path, _ in short]
        rounds = 1 + max(int(load(path).cases["repeat"].max()) for path, _ in short)
        true = efficiency(run(suite, reports, "--set", f"repeat={truth * rounds}")[0])
        widths = [one.half_width or math.inf for one in known]
        held = [bool(one.low and one.high and one.low <= true.value <= one.high) for one in known]
        found[name] = figures.figure(widths, better="lower", goal=NARROW)
        shares[name] = {
            f"known to {NARROW:.0%}": float(np.mean([width <= NARROW for width in widths])),
            "nine in ten below": float(np.quantile(widths, 0.9, method="higher")),
            "seconds a run": float(np.mean([took_s for _, took_s in short])),
            "coverage": float(np.mean(held)),
            "truth": true.value,
            "half-width of the truth": true.half_width or math.inf,
        }
        print(f"{name}: {found[name]}\n    {listed(shares[name])}", flush=True)
    return found, shares


def on_twins(runs: int, budget: str, reports: Path) -> dict[str, float]:
    """Compare a program with its equal, with itself delayed by 5 %; return how often they differ."""
    known = load(run(SUITES / "weak.yaml", reports, "--quick", "--only", "ranks == 1")[0])
    step_s = next(iter(scaling.step_samples(known).values())).value
    twins = reports / "twins.yaml"
    twins.write_text(TWINS.format(weak=SUITES / "weak.yaml", delay_ms=1e3 * step_s * (SLOWER - 1)))
    said = []
    for _ in range(runs):
        folder, _ = run(twins, reports, "--budget", budget)
        said.append([one.answer for one in contrasts.variants(load(folder)).compared])
    equal, slower = zip(*said, strict=True)
    shares = {
        "equal called different": float(np.mean([answer in ("slower", "faster") for answer in equal])),
        "5 % slower called slower": float(np.mean([answer == "slower" for answer in slower])),
    }
    print(f"twins\n    {listed(shares)}")
    return shares


def listed(shares: Mapping[str, float]) -> str:
    """Write shares in a line."""
    return ", ".join(f"{name} {value:.3g}" for name, value in shares.items())


def main() -> None:
    parser = figures.parser(__doc__, 200)
    parser.add_argument("--machine", type=int, metavar="N", help="run the suites N times here")
    parser.add_argument("--budget", default="90s", help="of a run")
    parser.add_argument(
        "--truth", type=int, default=30, help="how many times as long the run for the truth is"
    )
    parser.add_argument("--suites", default="weak,strong", help="in `suites`")
    args = parser.parse_args()
    setting: dict[str, Any] = {"rounds": args.rounds, "start_s": START_S, "step_s": STEP_S}
    if args.machine:
        setting = {"runs": args.machine, "budget": args.budget, "truth": args.truth}
        with tempfile.TemporaryDirectory() as folder:
            suites = args.suites.split(",")
            found, shares = on_machine(suites, args.machine, args.budget, args.truth, Path(folder))
            shares["twins"] = on_twins(args.machine, args.budget, Path(folder))
    else:
        found, shares = simulated(args.rounds)
    if args.json:
        figures.write(args.json, "firmness", found, {**setting, "shares": shares})


if __name__ == "__main__":
    main()
