"""Fit every law to times and choose one: by leave-one-out error, and how many parameters by likelihood.

How likely a law is follows from its misfit, whose variance is known where launches were repeated and the law
misses them by no more than they scatter; else it is a parameter too, by AICc.
All laws are sums of known terms, so that a fit is a projection, and so is what it says of a size left out. A
law of which a coefficient would be negative is out: the same law without that term is another of the space.
Many series of times (draws of a bootstrap) are fitted at once, each with a choice of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pscale.analysis.laws import MOST_TERMS, Law
from pscale.results.step_time import Vector

FEWEST_SIZES = 5
_FINEST = 1e-4  # relative: no difference below it is worth a parameter
_LEVERAGE = 1e-9
_AT_ONCE = 100  # series that are fitted together
_PRICE = 7  # of a parameter, as Akaike's is 2: each count offers the best of many laws
_FOR_AICC = 3  # the variance is one more parameter, and AICc needs a degree of freedom beyond

Whole = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """How uncertain times are by what launches differ by, relative to the scale of their sizes."""

    launch: float = 0.0  # standard deviation of one
    size: float = 0.0  # of the time of a size
    degrees: int = 0  # of freedom; 0: unknown, as sizes have one launch each


UNKNOWN = Scatter()


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """The law chosen for each of D series of times; residuals are relative to the scale of the sizes."""

    laws: Sequence[Law]
    chosen: Whole  # D places in `laws`
    coefficients: Vector  # D x MOST_TERMS, zero beyond the terms of a law
    errors: Vector  # D: root of the mean squared leave-one-out error
    residuals: Vector  # D: root of the sum of squared residuals

    def law(self, draw: int = 0) -> Law:
        """Return the law of one series."""
        return self.laws[int(self.chosen[draw])]

    def at(self, sizes: Vector) -> Vector:
        """Return the times at some sizes, D x sizes."""
        used, places = np.unique(self.chosen, return_inverse=True)
        columns = np.zeros((len(used), MOST_TERMS, len(sizes)))
        for place, index in enumerate(used):
            for term, known in enumerate(self.laws[int(index)].terms):
                columns[place, term] = known.value(sizes)
        return np.asarray(np.einsum("dk,dks->ds", self.coefficients, columns[places]))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Family:
    """Laws of equally many terms, with their projections."""

    places: Whole  # among all laws
    parameters: Whole
    solve: Vector  # laws x terms x sizes: from times to coefficients
    columns: Vector  # laws x sizes x terms
    free: Vector  # laws x sizes: one minus the leverage


@dataclass(frozen=True, kw_only=True, eq=False)
class _Fitted:
    """All laws fitted to D series of times; rows are laws, the plainest first."""

    places: Whole
    parameters: Whole
    coefficients: Vector  # laws x MOST_TERMS x D
    squares: Vector  # laws x D: sums of squared residuals
    errors: Vector  # laws x D: mean squared leave-one-out errors, infinite where a coefficient is negative
    spread: Vector  # laws x D: their standard errors


class Space:
    """The laws over given sizes, the plainest first; `scale` is what errors are relative to at each size.

    Laws that do not leave `spare` sizes beyond their parameters are left out.
    """

    def __init__(self, laws: Sequence[Law], sizes: Vector, scale: Vector, spare: int = _FOR_AICC) -> None:
        self.laws, self.sizes, self.scale = laws, sizes, scale
        by_terms: dict[int, list[int]] = {}
        for place, law in enumerate(laws):
            if law.parameters <= len(sizes) - spare:
                by_terms.setdefault(len(law.terms), []).append(place)
        self._families = [self._family(places) for places in by_terms.values()]

    def choose(self, times: Vector, scatter: Scatter = UNKNOWN) -> Choice:
        """Choose a law for each row of times, draws x sizes, by leave-one-out error and likelihood."""
        found = self._fitted(times)
        return self._choice(found, _best(found, len(self.sizes), scatter))

    def likeliest(self, times: Vector) -> Choice:
        """Choose the law of least leave-one-out error, however many parameters it has.

        Draws of a bootstrap that preferred plain laws would all agree on one where sizes are few.
        """
        return self._chosen(times, lambda found: found.errors)

    def closest(self, times: Vector) -> Choice:
        """Choose the law of least squares for each row of times."""
        return self._chosen(times, lambda found: np.where(np.isfinite(found.errors), found.squares, np.inf))

    def _chosen(self, times: Vector, cost: Callable[[_Fitted], Vector]) -> Choice:
        """Choose the law of least cost for each row of times; few rows at once, which fit in a cache."""
        choices = []
        for first in range(0, len(times), _AT_ONCE):
            found = self._fitted(times[first : first + _AT_ONCE])
            choices.append(self._choice(found, np.asarray(cost(found).argmin(axis=0))))
        names = ("chosen", "coefficients", "errors", "residuals")
        joined = {name: np.concatenate([getattr(one, name) for one in choices]) for name in names}
        return Choice(laws=self.laws, **joined)

    def _family(self, places: list[int]) -> _Family:
        laws = [self.laws[place] for place in places]
        columns = np.stack([np.stack([term.value(self.sizes) for term in law.terms], axis=1) for law in laws])
        columns = columns / self.scale[None, :, None]
        lengths = np.linalg.norm(columns, axis=1)  # of terms: p² of a large p is no more than the constant
        solve = np.linalg.pinv(columns / lengths[:, None, :]) / lengths[..., None]
        leverage = np.einsum("lsk,lks->ls", columns, solve)
        return _Family(
            places=np.array(places),
            parameters=np.array([law.parameters for law in laws]),
            solve=solve,
            columns=columns,
            free=np.maximum(1 - leverage, _LEVERAGE),
        )

    def _fitted(self, times: Vector) -> _Fitted:
        scaled = np.asarray((times / self.scale).T)
        places, parameters = (
            np.concatenate([getattr(family, name) for family in self._families])
            for name in ("places", "parameters")
        )
        solved = zip(*(_solved(family, scaled) for family in self._families), strict=True)
        order = np.argsort(places)
        coefficients, squares, errors, spread = (np.concatenate(parts)[order] for parts in solved)
        return _Fitted(
            places=places[order],
            parameters=parameters[order],
            coefficients=coefficients,
            squares=squares,
            errors=errors,
            spread=spread,
        )

    def _choice(self, found: _Fitted, rows: Whole) -> Choice:
        draws = np.arange(len(rows))
        return Choice(
            laws=self.laws,
            chosen=found.places[rows],
            coefficients=found.coefficients[rows, :, draws],
            errors=np.sqrt(found.errors[rows, draws]),
            residuals=np.sqrt(found.squares[rows, draws]),
        )


def _solved(family: _Family, scaled: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    """Return coefficients, sums of squares, and mean and standard error of squared leave-one-out errors."""
    found = family.solve @ scaled
    residuals = scaled - family.columns @ found
    left_out = np.square(residuals / family.free[..., None])
    means, count = left_out.mean(axis=1), left_out.shape[1]
    errors = np.where(found.min(axis=1) < 0, np.inf, means)
    variance = np.square(left_out, out=left_out).mean(axis=1) - np.square(means)
    spread = np.sqrt(np.maximum(variance, 0.0) / (count - 1))
    padded = np.zeros((len(found), MOST_TERMS, scaled.shape[1]))
    padded[:, : found.shape[1]] = found
    return padded, (residuals**2).sum(axis=1), errors, spread


def _best(found: _Fitted, sizes: int, scatter: Scatter) -> Whole:
    """Return the row of the law to choose for each draw.

    Of laws with as many parameters, the plainest within one standard error of the least leave-one-out error
    (Breiman et al. 1984, "Classification and regression trees"), or within what launches scatter by; of
    these, the likeliest.
    """
    draws = np.arange(found.errors.shape[1])
    candidates = []
    for count in np.unique(found.parameters):
        rows = np.flatnonzero(found.parameters == count)
        own = found.errors[rows]
        least = own.argmin(axis=0)
        limit = own[least, draws] + found.spread[rows][least, draws] + _FINEST**2
        candidates.append(rows[(own <= np.maximum(limit, scatter.size**2)).argmax(axis=0)])
    chosen = np.stack(candidates)
    unlikely = _unlikely(found.squares[chosen, draws], found.parameters[chosen], sizes, scatter)
    scores = np.where(np.isfinite(found.errors[chosen, draws]), unlikely, np.inf)
    return np.asarray(chosen[scores.argmin(axis=0), draws])


def _unlikely(squares: Vector, parameters: Whole, sizes: int, scatter: Scatter) -> Vector:
    """Return minus twice the logarithm of the likelihood, with a price of parameters.

    A law that misses more than launches scatter by has a variance of its own, which few sizes tell: Akaike's
    criterion for few observations (Hurvich and Tsai 1989). The variance of launches is an estimate too, so
    that errors have Student's distribution.
    """
    known = parameters + 1
    own = sizes * (np.log(squares / sizes + _FINEST**2) + 1)
    own = own + 2 * known + 2 * known * (known + 1) / (sizes - known - 1)
    if not scatter.degrees:
        return np.asarray(own)
    variance, degrees = max(scatter.size, _FINEST) ** 2, scatter.degrees
    shared = sizes * math.log(variance) + (degrees + sizes) * np.log1p(squares / variance / degrees)
    return np.minimum(own, shared + _PRICE * parameters)
