"""Intervals and comparisons of programs whose truth is known: two sizes, or two runs, of printed step times.

    python benchmarks/known_truth.py [--seeds 3000]

Launches of a round share a drift of the machine and scatter beside it; programs print all digits, or the
first few. `coverage` is the share of intervals of the efficiency that contain the truth; `false alarms` that
of equal runs which `compare` calls different; `5 % found` that of runs with 5 % more time which it calls
slower. Of a figure about zero, `held` is the share of equal runs that meet what `check --update` writes.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from pscale.analysis.difference import difference
from pscale.analysis.expect import bounded
from pscale.analysis.stats import Sample, ratio

DRIFT = 0.02  # of the machine, from round to round
MORE = 1.05


def launches(random: np.random.Generator, time_s: float, count: int, scatter: float, digits: int) -> Sample:
    """Return the launches of a program, as it prints their times: with so many digits, 0 for all."""
    times = time_s * np.exp(scatter * random.normal(size=count))
    resolution = 10.0 ** (math.floor(math.log10(time_s)) + 1 - digits) if digits else 0.0
    printed = np.round(times / resolution) * resolution if digits else times
    return Sample(medians=tuple(printed.tolist()), repeats=tuple(range(count)), resolution=resolution)


def covers(random: np.random.Generator, count: int, scatter: float, digits: int) -> bool:
    """Tell whether the interval of an efficiency, of strong scaling from 1 to 4 ranks, contains the truth."""
    truth, one_s = random.uniform(0.5, 1.0), 10 ** random.uniform(-2, 2)
    drift = np.exp(DRIFT * random.normal(size=count))
    sizes = (one_s, one_s / 4 / truth)
    base, own = (launches(random, time_s, count, scatter, digits) for time_s in sizes)
    if not digits:
        base, own = (
            Sample(medians=tuple((np.array(each.medians) * drift).tolist()), repeats=each.repeats)
            for each in (base, own)
        )
    known = ratio(base, own, factor=1 / 4)
    return known.low is not None and known.high is not None and known.low <= truth <= known.high


def answer(random: np.random.Generator, more: float, count: int, scatter: float, digits: int) -> str:
    """Return what `compare` says of two runs, the second of which takes `more` times as long."""
    time_s = 10 ** random.uniform(-2, 2)
    a, b = (launches(random, each, count, scatter, digits) for each in (time_s, more * time_s))
    found = difference(a, b)
    return found.judge(found.p)


def about_zero(random: np.random.Generator, count: int) -> tuple[bool, bool]:
    """Tell if a figure about zero has the truth in its interval, and if an equal run meets its reference."""
    truth = random.uniform(-1, 1)
    first, second = (
        Sample(medians=tuple((truth + random.normal(size=count)).tolist())).estimate for _ in range(2)
    )
    covered = first.low is not None and first.high is not None and first.low <= truth <= first.high
    bound = bounded("", "figure", first, 1, "").upper
    return covered, bound is not None and second.high is not None and second.high <= bound


def shares(seeds: int, count: int, scatter: float, digits: int) -> dict[str, float]:
    """Return the shares of trials, by name."""
    trials = [np.random.default_rng([seed, count, digits, round(1e4 * scatter)]) for seed in range(seeds)]
    return {
        "coverage": float(np.mean([covers(each, count, scatter, digits) for each in trials])),
        "false alarms": float(
            np.mean([answer(each, 1.0, count, scatter, digits) in ("slower", "faster") for each in trials])
        ),
        "5 % found": float(
            np.mean([answer(each, MORE, count, scatter, digits) == "slower" for each in trials])
        ),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3000)
    seeds = parser.parse_args().seeds
    for digits in (0, 3, 2, 1):
        for count in (3, 5, 10):
            for scatter in (0.002, 0.01, 0.025):
                found = shares(seeds, count, scatter, digits)
                told = ", ".join(f"{name} {share:.1%}" for name, share in found.items())
                print(
                    f"{digits or 'all'} digits, {count} launches, scatter {scatter:.1%}: {told}", flush=True
                )
    for count in (3, 5, 10):
        covered, held = np.mean(
            [about_zero(np.random.default_rng([seed, count]), count) for seed in range(seeds)], axis=0
        )
        print(f"a figure about zero, {count} launches: coverage {covered:.1%}, held {held:.1%}")


if __name__ == "__main__":
    main()
