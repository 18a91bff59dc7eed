"""Whether two cases of one run differ, round by round: launches that ran one after another are pairs.

A round has every case once, so that what the machine does meanwhile meets both of a pair alike and leaves
their ratio. What is tested are the logarithms of these ratios: by Wilcoxon's signed ranks, which ask no more
of their distribution than that it is symmetrical, as it is where the cases do not differ; few pairs, of which
no signs would be unlikely enough, by the paired t-test. The interval holds those ratios that the test
would not refuse (Hodges and Lehmann 1963, https://doi.org/10.1214/aoms/1177704172).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pscale.analysis.difference import ALPHA, Difference, student_tails
from pscale.analysis.stats import Estimate, Sample, estimate, student_quantile
from pscale.analysis.steady import Vector

_FEWEST_RANKED = 10  # pairs: 1,024 ways to sign them, so that p can be as small as 0.002


def paired(a: Sample, b: Sample) -> Difference:
    """Set the launches of one case against those of another in the same rounds; others are left out."""
    sides = [dict(zip(side.repeats, side.medians, strict=True)) for side in (a, b)]
    rounds = [repeat for repeat in a.repeats if repeat in sides[1]]
    logs = np.log([sides[1][repeat] / sides[0][repeat] for repeat in rounds])
    testable, ranked = len(logs) > 1, len(logs) >= _FEWEST_RANKED
    judge = _ranked if ranked else paired_t
    test = "signed ranks" if ranked else "paired t"
    known, p = judge(logs) if testable else (Estimate(value=b.value / a.value), None)
    return Difference(
        a=estimate(a.value, a.draws),
        b=estimate(b.value, b.draws),
        launches=(len(logs), len(logs)),
        ratio=known,
        effect=float(np.sign(logs).mean()) if testable else None,
        test=test if testable else "",
        p=p,
    )


def signed_ranks(values: Vector) -> float:
    """Return the exact two-sided p-value of Wilcoxon's test; zeros have no sign and are left out."""
    signed = values[values != 0]
    _, places, times = np.unique(np.abs(signed), return_inverse=True, return_counts=True)
    twice = (2 * np.cumsum(times) - times + 1)[places]  # ranks, of ties their mean
    chances = _sums(twice.tolist())
    above = int(twice[signed > 0].sum())
    return min(1.0, 2 * float(min(chances[: above + 1].sum(), chances[above:].sum())))


def _ranked(logs: Vector) -> tuple[Estimate, float]:
    rows, columns = np.triu_indices(len(logs))
    averages = np.sort((logs[rows] + logs[columns]) / 2)
    below = np.cumsum(_sums(range(1, len(logs) + 1)))
    cut = int(np.searchsorted(below, ALPHA / 2, side="right"))  # sums of ranks that are too small to believe
    known = np.exp([np.median(averages), averages[cut - 1], averages[-cut]])
    return Estimate(value=float(known[0]), low=float(known[1]), high=float(known[2])), signed_ranks(logs)


def _sums(ranks: Sequence[int]) -> Vector:
    """Return the chance of every sum of those ranks that a fair coin chooses."""
    chances = np.zeros(sum(ranks) + 1)
    chances[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(chances)
        shifted[rank:] = chances[: len(chances) - rank]
        chances = (chances + shifted) / 2
    return chances


def paired_t(logs: Vector) -> tuple[Estimate, float]:
    """Return the ratio of which `logs` have the mean, with its interval, and Student's two-sided p-value."""
    mean, degrees = float(logs.mean()), len(logs) - 1
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    reach = student_quantile(degrees) * error
    known = Estimate(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))
    if not error > 0:
        return known, 1.0 if mean == 0 else 0.0
    return known, student_tails(abs(mean) / error, degrees)
