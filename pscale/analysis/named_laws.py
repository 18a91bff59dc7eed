"""Amdahl's, Gustafson's and the universal scalability law of a series: its serial share and contention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pscale.analysis.fits import Choice, Space
from pscale.analysis.forecast import Bootstrap, Observed
from pscale.analysis.laws import AMDAHL, CONSTANT, INVERSE, OTHERS, PAIRS, SHARED, USL, Law, Term, gustafson
from pscale.analysis.stats import Estimate, estimate
from pscale.analysis.steady import Vector


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
    first = _amdahl if scaling == "strong" else _gustafson
    return tuple(make(scaling, space, observed.times, bootstrap.times) for make in (first, _usl))


def _amdahl(_: str, space: Space, times: Vector, draws: Vector) -> NamedLaw:
    """T(p) = T1 (s + (1 - s) / p)."""
    narrow = Space(_nested(AMDAHL, INVERSE), space.sizes, space.scale, spare=1)

    def fraction(parts: Mapping[Term, Vector]) -> Vector:
        return parts[CONSTANT] / (parts[CONSTANT] + parts[INVERSE])

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
        _estimated(own[term] / own[alone], many[term] / many[alone]) for term in (contention, coherency)
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


def _estimated(value: Vector, draws: Vector) -> Estimate:
    return estimate(float(value[0]), draws)
