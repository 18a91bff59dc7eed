"""What a fitted law says of other sizes, with intervals by a bootstrap that selects laws in every draw.

A draw perturbs the times at all sizes as launches scatter, fits and chooses among all laws again, and
perturbs the predicted time in the same way: the interval is one for a measurement there, and holds how
uncertain the choice of the law is. What the law misses beyond the scatter of launches counts as noise too.
The same draws give the intervals of Amdahl's, Gustafson's and the universal scalability law of a series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pscale.analysis.fits import Choice, Scatter, Space
from pscale.analysis.laws import AMDAHL, CONSTANT, INVERSE, OTHERS, PAIRS, SHARED, USL, Law, Term, gustafson
from pscale.analysis.stats import Estimate, estimate
from pscale.results.step_time import Vector

DRAWS = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """Times of one kind at every size: of each launch, and their median; all in seconds."""

    sizes: Vector
    times: Vector
    scale: Vector  # what errors are relative to: the time of a whole step
    launches: Sequence[Vector]

    @property
    def scatter(self) -> Scatter:
        """What is known of the times by what launches of a size differ by."""
        pool, counts = _deviations(self), [len(times) for times in self.launches]
        if not len(pool):
            return Scatter()
        launch = float((pool**2).mean() ** 0.5)
        size = launch * float(np.mean([1 / count for count in counts])) ** 0.5
        return Scatter(launch=launch, size=size, degrees=len(pool) - sum(count > 1 for count in counts))


class Bootstrap:
    """Draws of the times that might have been measured, and of those that might be at other sizes."""

    def __init__(self, observed: Observed, choice: Choice, seed: Sequence[int]) -> None:
        self._noise = _Noise(observed, choice, np.random.default_rng(list(seed)))
        perturbed = choice.at(observed.sizes)[0] + observed.scale * self._noise.of_sizes()
        self.times = np.maximum(perturbed, 0.0)  # draws x sizes

    def at(self, space: Space, choice: Choice, sizes: Vector, scale: Vector) -> list[Estimate]:
        """Return the time that `choice` predicts at each size, with its interval; errors are of `scale`."""
        drawn = space.likeliest(self.times).at(sizes) + scale * self._noise.of_new(len(sizes))
        values = choice.at(sizes)[0]
        return [
            estimate(float(value), np.maximum(draws, 0.0))
            for value, draws in zip(values, drawn.T, strict=True)
        ]


class _Noise:
    """Draws of relative errors: launches resampled over all sizes, and what the law misses beyond them."""

    def __init__(self, observed: Observed, choice: Choice, random: np.random.Generator) -> None:
        self._random = random
        self._counts = [len(times) for times in observed.launches]
        self._pool = _deviations(observed)
        free = max(len(observed.sizes) - choice.law().parameters, 1)
        missed = float(choice.residuals[0]) ** 2 / free
        launches = self._medians(max(set(self._counts), key=self._counts.count)).var()
        self._missed = max(missed - launches, 0.0) ** 0.5
        degrees = free if missed > launches else max(len(self._pool) - len(self._counts), 1)
        self._widen = np.sqrt(degrees / random.chisquare(degrees, DRAWS))

    def of_sizes(self) -> Vector:
        """Return errors of the times measured, draws x sizes."""
        return np.stack([self._errors(count) for count in self._counts], axis=1)

    def of_new(self, count: int) -> Vector:
        """Return errors of a measurement of as many launches at other sizes, draws x sizes."""
        usual = int(np.median(self._counts))
        return np.stack([self._errors(usual) for _ in range(count)], axis=1)

    def _errors(self, count: int) -> Vector:
        missed = self._missed * self._random.normal(size=DRAWS)
        return np.asarray(self._widen * (self._medians(count) + missed))

    def _medians(self, count: int) -> Vector:
        if not len(self._pool):
            return np.zeros(DRAWS)
        return np.asarray(np.median(self._random.choice(self._pool, (DRAWS, count)), axis=1))


def _deviations(observed: Observed) -> Vector:
    """Return what launches differ by from their mean, relative, spread as single launches are."""
    found = [
        (times - times.mean()) / scale * np.sqrt(len(times) / (len(times) - 1))
        for times, scale in zip(observed.launches, observed.scale, strict=True)
        if len(times) > 1
    ]
    return np.concatenate(found) if found else np.empty(0)


@dataclass(frozen=True, kw_only=True)
class NamedLaw:
    """One law by its name, by least squares; None for numbers that it does not have."""

    law: str  # amdahl gustafson usl
    error: float  # root mean square of leave-one-out errors, as a share of the step
    serial_fraction: Estimate | None = None  # Amdahl, Gustafson
    contention: Estimate | None = None  # sigma of the USL
    coherency: Estimate | None = None  # kappa of the USL
    peak: float | None = None  # size of the largest throughput; of the USL with coherency above 0


def named_laws(scaling: str, space: Space, observed: Observed, bootstrap: Bootstrap) -> tuple[NamedLaw, ...]:
    """Return the laws that are meant for this kind of scaling, with intervals by the bootstrap's draws."""
    if scaling not in USL:
        return ()
    first = _amdahl if scaling == "strong" else _gustafson
    return tuple(make(scaling, space, observed.times, bootstrap.times) for make in (first, _usl))


def _amdahl(_: str, space: Space, times: Vector, draws: Vector) -> NamedLaw:
    """T(p) = T1 (s + (1 - s) / p)."""
    narrow = Space(_nested(AMDAHL, INVERSE), space.sizes, space.scale, spare=1)

    def fraction(parts: Mapping[Term, Vector]) -> Vector:
        return _ratio(parts[CONSTANT], parts[CONSTANT] + parts[INVERSE])

    choice, drawn = narrow.closest(times[None]), narrow.closest(draws)
    known = _estimated(fraction(_parts(choice, AMDAHL)), fraction(_parts(drawn, AMDAHL)))
    return NamedLaw(law="amdahl", error=float(choice.errors[0]), serial_fraction=known)


def _gustafson(_: str, space: Space, times: Vector, draws: Vector) -> NamedLaw:
    """S(p) = s + (1 - s) p, with S(p) = p T1 / T(p): fitted as T(p) = T1 / (1 - s + s / p)."""
    constant = Law(kind="gustafson", terms=(CONSTANT,))
    narrow = Space((constant, *gustafson()), space.sizes, space.scale, spare=1)
    choice, drawn = narrow.closest(times[None]), narrow.closest(draws)
    fractions = np.array([law.serial_fraction or 0.0 for law in narrow.laws])
    known = _estimated(fractions[choice.chosen], fractions[drawn.chosen])
    return NamedLaw(law="gustafson", error=float(choice.errors[0]), serial_fraction=known)


def _usl(scaling: str, space: Space, times: Vector, draws: Vector) -> NamedLaw:
    """Throughput p / (T1 (1 + sigma (p - 1) + kappa p (p - 1))) (Gunther 2007)."""
    law = USL[scaling]
    alone, contention, coherency = (
        (INVERSE, SHARED, OTHERS) if scaling == "strong" else (CONSTANT, OTHERS, PAIRS)
    )
    narrow = Space(_nested(law, alone), space.sizes, space.scale, spare=1)
    choice, drawn = narrow.closest(times[None]), narrow.closest(draws)
    own, many = _parts(choice, law), _parts(drawn, law)
    sigma, kappa = (
        _estimated(_ratio(own[term], own[alone]), _ratio(many[term], many[alone]))
        for term in (contention, coherency)
    )
    peak = ((1 - sigma.value) / kappa.value) ** 0.5 if kappa.value > 0 and sigma.value < 1 else None
    return NamedLaw(law="usl", error=float(choice.errors[0]), contention=sigma, coherency=kappa, peak=peak)


def _nested(law: Law, always: Term) -> tuple[Law, ...]:
    """Return the law and those with some of its terms at zero, but for one that never is."""
    others = [term for term in law.terms if term is not always]
    return tuple(_with(law, chosen, always) for chosen in _subsets(others))


def _with(law: Law, chosen: tuple[Term, ...], always: Term) -> Law:
    return Law(kind=law.kind, terms=(always, *chosen))


def _subsets(terms: list[Term]) -> Iterator[tuple[Term, ...]]:
    for count in range(len(terms) + 1):
        yield from combinations(terms, count)


def _parts(choice: Choice, law: Law) -> dict[Term, Vector]:
    """Return the coefficient of every term of a law, zero where the choice does not have it."""
    found = {term: np.zeros(len(choice.chosen)) for term in law.terms}
    for index in np.unique(choice.chosen):
        rows = choice.chosen == index
        for place, term in enumerate(choice.laws[index].terms):
            found[term][rows] = choice.coefficients[rows, place]
    return found


def _ratio(part: Vector, whole: Vector) -> Vector:
    """Return part / whole: NaN for a draw in which no size took any time, which tells nothing of a law."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(part / whole)


def _estimated(value: Vector, draws: Vector) -> Estimate:
    return estimate(float(value[0]), draws[~np.isnan(draws)])
