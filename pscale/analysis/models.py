"""A law for the time of a step of every series, and for each of its parts: the cost of larger sizes.

Cases that differ in one swept number alone have laws over that, which say nothing of efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.columns import Row
from pscale.analysis.fits import FEWEST_SIZES, Choice, Scatter, Space
from pscale.analysis.forecast import Bootstrap, NamedLaw, Observed, named_laws
from pscale.analysis.frames import KINDS, Run, grouped
from pscale.analysis.laws import CONSTANT, laws
from pscale.analysis.scaling import by_series
from pscale.analysis.settings import SIZES, Case, apart_from, following, of_cases, swept_numbers
from pscale.analysis.stats import Estimate, Sample
from pscale.analysis.wording import in_common
from pscale.config import JOINT
from pscale.results.events import PHASES
from pscale.results.step_time import Vector

REACH = 4  # times the largest size measured: beyond, no interval is given
MOST_SERIES = 8
_LARGEST = 1e60  # value of a swept number: squares of its terms are finite
_CURVE = 33  # sizes of the line in the figure


@dataclass(frozen=True, kw_only=True)
class FittedTerm:
    """One term of a law; `form` writes its product with the coefficient, {}."""

    form: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a law says of one size; without an interval where that is too far away to be believed."""

    size: float  # or value of the swept number
    time_s: Estimate
    efficiency: Estimate | None  # of whole steps
    beyond: bool  # more than `REACH` times the largest size measured


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The law of one part of a step: `step` itself, a phase, or a kind of time (mean over ranks)."""

    part: str
    kind: str  # of the law: amdahl gustafson usl pmnf
    terms: tuple[FittedTerm, ...]
    r_squared: float | None  # None of a constant, which explains no difference
    error: float  # root mean square of leave-one-out errors, as a share of the step
    misfit: float  # root mean square by degrees of freedom of what the law misses, as a share of the step
    scatter: float | None  # standard deviation of launches, likewise; None where sizes have one each
    fits: bool  # whether that explains the misfit
    measured_s: tuple[float, ...]  # at every size
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What the parts of the steps measured say of a size that was asked for; `refusal`: why nothing.

    The ends of `step_s` are those of nine in ten launches. `first_loss` is the kind of time, other than
    computing, that takes most. `unchecked`: no prediction of so many ranks was ever checked.
    """

    size: int
    step_s: Estimate | None = None
    first_loss: str = ""
    unchecked: bool = False
    notes: tuple[str, ...] = ()
    refusal: str = ""

    def agrees(self, law: Prediction) -> bool:
        """Tell whether this and a law allow the same time; a law without interval, its value alone."""
        return self.step_s is not None and all(
            mine is not None and mine * sign <= (law.time_s.value if its is None else its) * sign
            for mine, its, sign in (
                (self.step_s.low, law.time_s.high, 1),
                (self.step_s.high, law.time_s.low, -1),
            )
        )


@dataclass(frozen=True, kw_only=True)
class Model:
    """The laws of one series, or over one swept number; `refusal` says why there are none."""

    series: str
    scaling: str  # empty over a swept number
    unit: str  # of sizes: ranks, or cores where ranks have differing numbers of threads; or the number
    threads: int  # cores of one unit
    sizes: tuple[float, ...]  # measured
    asked: tuple[int, ...] = ()  # sizes that were asked for
    projected: tuple[Projection, ...] = ()  # of these sizes, by parts and not by laws
    refusal: str = ""
    step: Fit | None = None
    parts: tuple[Fit, ...] = ()  # phases in the order of a step, then kinds of time
    named: tuple[NamedLaw, ...] = ()
    curve: tuple[Prediction, ...] = ()  # to `REACH` times the largest size
    first: str | None = (
        None  # phase that costs most beyond ideal scaling at the largest size predicted; "": none
    )
    first_share: float | None = None  # of the phases there
    first_measured_share: float | None = None  # the same at the largest size measured


def models(
    points: Sequence[Row],
    times: Mapping[str, Sample],
    phases: pd.DataFrame,
    *,
    asked: Sequence[int] | None,
    sharing: Collection[str],
    seed: int,
    curves: Iterable[Curve] = (),
) -> tuple[Model, ...]:
    """Return the laws of every series that compares sizes, and those over swept numbers.

    `phases` is the table of `efficiency.phases`, `asked` are sizes to predict (None: no laws at all), and
    `sharing` the cases whose ranks share cores.
    """
    if asked is None:
        return ()
    made: list[Model] = []
    for series, members in by_series(p for p in points if p.scaling in {"strong", "weak"}).items():
        measured = [point for point in members if point.step_s and 0 < point.step_s.value < math.inf]
        model = _unfitted(series, members[0].scaling, measured, asked)
        refusal = _refusal(measured, model, sharing)
        if not refusal and sum(not known.refusal for known in made) == MOST_SERIES:
            refusal = f"only the first {MOST_SERIES} series are modelled"
        if refusal:
            made.append(replace(model, refusal=refusal))
        else:
            spent = Spent(model.sizes, measured, times, phases)
            made.append(_fitted(model, measured, spent, (seed, *series.encode())))
    left = MOST_SERIES - sum(not known.refusal for known in made)
    for curve in islice(curves, left):
        model = Model(series=curve.label, scaling="", unit=curve.unit, threads=1, sizes=tuple(curve.points))
        measured = list(curve.points.values())
        spent = Spent(model.sizes, measured, times, phases)
        made.append(_fitted(model, measured, spent, (seed, *curve.unit.encode(), *curve.label.encode())))
    return tuple(made)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Cases that differ in one number, and in others that follow it; `label` is what they have in common."""

    unit: str  # the number
    label: str
    points: Mapping[float, Row]  # by value, in order


def curves(run: Run, points: Sequence[Row]) -> Iterator[Curve]:
    """Yield the curves over swept numbers, at as many ranks and threads, that a law can be fitted to."""
    cases = of_cases(run)
    timed = [point for point in points if point.step_s and 0 < point.step_s.value < math.inf]
    measured = [point for point in timed if point.case in cases]
    known = set[frozenset[str]]()  # of numbers that follow each other one is enough
    for name in swept_numbers(run, cases):
        for members in [] if name in SIZES else _alike(name, measured, cases):
            by_value = {float(cases[point.case][name]): point for point in members}
            alike = frozenset(point.case for point in members)
            if len(by_value) < len(members) or len(members) < FEWEST_SIZES or alike in known:
                continue
            if min(by_value) >= 1 and max(by_value) <= _LARGEST:
                known.add(alike)
                label = JOINT.join(in_common([point.label.split(JOINT) for point in members]))
                ordered = dict(sorted(by_value.items()))
                yield Curve(unit=name.rpartition(".")[2], label=label, points=ordered)


def _alike(name: str, points: Sequence[Row], cases: Mapping[str, Case]) -> Iterable[Sequence[Row]]:
    """Return the points that differ in a number, and what follows it, alone."""
    decided = following(name, list(cases.values())).difference(SIZES)
    return grouped(points, lambda point: apart_from(cases[point.case], name, decided)).values()


def _unfitted(series: str, scaling: str, measured: Sequence[Row], asked: Sequence[int]) -> Model:
    threads = {point.threads for point in measured}
    same = len(threads) == 1
    return Model(
        series=series,
        scaling=scaling,
        unit="ranks" if same else "cores",
        threads=threads.pop() if same else 1,
        sizes=tuple(point.ranks if same else point.cores for point in measured),
        asked=tuple(sorted(set(asked))),
    )


def _refusal(measured: Sequence[Row], model: Model, sharing: Collection[str]) -> str:
    """Say why no law can be fitted; empty if one can."""
    distinct = len(set(model.sizes))
    if distinct < FEWEST_SIZES:
        return f"{distinct} size{'s' * (distinct != 1)} measured; a law needs at least {FEWEST_SIZES}"
    if distinct < len(model.sizes):
        return "several cases have the same size, so time depends on more than size"
    if any(point.case in sharing for point in measured):
        return "ranks share cores, so times do not carry over to larger machines"
    return ""


def _fitted(model: Model, measured: Sequence[Row], spent: Spent, seed: Sequence[int]) -> Model:
    largest = max(model.sizes)
    ahead = np.array(model.asked or [2 * largest, REACH * largest], dtype=np.float64)
    space = Space(laws(model.scaling), spent.sizes, spent.scale)
    choice = space.choose(spent.step.times[None], spent.step.scatter)
    bootstrap = Bootstrap(spent.step, choice, seed)
    line = np.unique(np.geomspace(min(model.sizes), REACH * largest, _CURVE).round())
    every = np.concatenate([ahead, line])
    predicted_s = choice.at(every)[0]
    estimates = bootstrap.at(space, choice, every, predicted_s)
    base = next((point for point in measured if point.base and model.scaling), None)
    place = _Place(model=model, base=base)
    found = [place.prediction(float(size), time) for size, time in zip(every, estimates, strict=True)]
    parts = {
        name: _part(
            name,
            observed,
            space,
            ahead=(ahead, predicted_s[: len(ahead)]),
            place=place,
            seed=(*seed, *name.encode()),
        )
        for name, observed in (_in_order(spent.phases) | spent.kinds).items()
    }
    step = _fit("step", spent.step, choice, found[: len(ahead)])
    first, share, measured_share = _first(model, [parts[name] for name in spent.phases], base)
    return replace(
        model,
        step=step,
        parts=tuple(parts.values()),
        named=named_laws(model.scaling, space, spent.step, bootstrap),
        curve=tuple(found[len(ahead) :]),
        first=first,
        first_share=share,
        first_measured_share=measured_share,
    )


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where predictions stand: how far they reach, and what their efficiency is relative to."""

    model: Model
    base: Row | None

    def prediction(self, size: float, time_s: Estimate, *, whole: bool = True) -> Prediction:
        beyond = size > REACH * max(self.model.sizes) * (1 + 1e-9)
        known = Estimate(value=time_s.value) if beyond else time_s
        efficiency = self._efficiency(size, known) if whole else None
        size = round(size) if size.is_integer() else size
        return Prediction(size=size, time_s=known, efficiency=efficiency, beyond=beyond)

    def _efficiency(self, size: float, time_s: Estimate) -> Estimate | None:
        if self.base is None or self.base.step_s is None or not time_s.value > 0:
            return None
        ideal = self.base.step_s.value
        if self.model.scaling == "strong":
            ideal *= self.base.cores / (size * self.model.threads)
        low, high = time_s.low, time_s.high
        return Estimate(
            value=ideal / time_s.value,
            low=ideal / high if low and high else None,
            high=ideal / low if low and high else None,
        )


def _in_order(phases: Mapping[str, Observed]) -> dict[str, Observed]:
    places = {name: place for place, name in enumerate(PHASES)}
    return dict(sorted(phases.items(), key=lambda item: (places.get(item[0], len(places)), item[0])))


def _part(
    name: str,
    observed: Observed,
    space: Space,
    *,
    ahead: tuple[Vector, Vector],
    place: _Place,
    seed: Sequence[int],
) -> Fit:
    """Return the law of a part; `ahead` are sizes to predict and the time of a whole step there."""
    sizes, steps_s = ahead
    choice = space.choose(observed.times[None], observed.scatter)
    times = Bootstrap(observed, choice, seed).at(space, choice, sizes, steps_s)
    found = [
        place.prediction(float(size), time, whole=False) for size, time in zip(sizes, times, strict=True)
    ]
    return _fit(name, observed, choice, found)


def _fit(part: str, observed: Observed, choice: Choice, predictions: Sequence[Prediction]) -> Fit:
    law, weights = choice.law(), observed.scale**-2
    mean = np.average(observed.times, weights=weights)
    spread = float(np.sum(weights * (observed.times - mean) ** 2))
    squares, scatter = float(choice.residuals[0]) ** 2, observed.scatter
    free = max(len(observed.sizes) - law.parameters, 1)
    return Fit(
        part=part,
        kind=law.kind,
        terms=tuple(
            FittedTerm(form=term.text, seconds=float(seconds))
            for term, seconds in zip(law.terms, choice.coefficients[0], strict=False)
        ),
        r_squared=None if law.terms == (CONSTANT,) or not spread > 0 else 1 - squares / spread,
        error=float(choice.errors[0]),
        misfit=math.sqrt(squares / free),
        scatter=scatter.launch if scatter.degrees else None,
        fits=_explained(squares / free, free, scatter),
        measured_s=tuple(observed.times.tolist()),
        predictions=tuple(predictions),
    )


def _explained(variance: float, free: int, scatter: Scatter) -> bool:
    """Tell whether launches scatter by as much as a law misses, by an F test; small misfit is let pass."""
    if not scatter.degrees or variance <= max(MISFIT, _OBVIOUS * scatter.size) ** 2:
        return True
    from scipy.special import fdtrc  # noqa: PLC0415 - reports seldom need it

    return bool(scatter.size) and float(fdtrc(free, scatter.degrees, variance / scatter.size**2)) > MISFIT_P


def _first(
    model: Model, phases: Sequence[Fit], base: Row | None
) -> tuple[str | None, float | None, float | None]:
    """Return the phase that will cost most beyond ideal scaling, and its shares there and as measured.

    Empty: none will; None without phases or a base, as nothing is known then.
    """
    if not phases or base is None:
        return None, None, None
    smallest = model.sizes.index(base.cores // model.threads)
    last = len(model.sizes) - 1

    def excess(fit: Fit) -> float:
        ahead = fit.predictions[-1]
        shrunk = model.sizes[smallest] / ahead.size if model.scaling == "strong" else 1.0
        return ahead.time_s.value - fit.measured_s[smallest] * shrunk

    total = sum(fit.predictions[-1].time_s.value for fit in phases)
    first = max(phases, key=excess)
    if not excess(first) > SMALL * total:
        return "", None, None
    largest = sum(fit.measured_s[last] for fit in phases)
    return (
        first.part,
        first.predictions[-1].time_s.value / total,
        first.measured_s[last] / largest if largest else None,
    )


MISFIT = 0.02  # of the step: a law that misses less fits well enough
MISFIT_P = 0.01
_OBVIOUS = 1.5  # times what launches scatter by: no test finds less
SMALL = 0.01  # of the step, at every size: not worth a law
_KINDS = tuple(kind for kind in KINDS if kind != "hidden_s")


class Spent:
    """The times of a series, whole and in parts, launch by launch."""

    def __init__(
        self,
        sizes: Sequence[float],
        measured: Sequence[Row],
        times: Mapping[str, Sample],
        phases: pd.DataFrame,
    ) -> None:
        self.sizes = np.array(sizes, dtype=np.float64)
        cases = [point.case for point in measured]
        samples = [times[case] for case in cases]
        self.scale = np.array([sample.value for sample in samples])
        self.step = Observed(
            sizes=self.sizes,
            times=self.scale,
            scale=self.scale,
            launches=[np.array(sample.medians or (sample.value,)) for sample in samples],
        )
        own = phases[phases["case"].isin(cases)]
        kinds = own[[f"mean_{kind}" for kind in _KINDS]].div(own["steps"], axis=0)
        keys = [own["case"], own["repeat"]]
        by_phase = kinds.sum(axis=1).groupby([own["phase"].astype(str), *keys]).sum()
        self.phases = self._observed(by_phase, cases)
        by_kind = kinds.rename(columns=lambda name: name.removeprefix("mean_").removesuffix("_s"))
        of_launches = by_kind.groupby(keys).sum().stack().reorder_levels([2, 0, 1])
        self.kinds = self._observed(of_launches, cases)

    def _observed(self, table: Any, cases: Sequence[str]) -> dict[str, Observed]:
        """Return the times of each part that is worth a law; `table` is by part, case and launch."""
        found = {}
        for part, rows in table.groupby(level=0, sort=False):
            by_case = {case: np.asarray(of_case, np.float64) for case, of_case in rows.groupby(level=1)}
            launches = [by_case.get(case, np.zeros(1)) for case in cases]
            medians = np.array([np.median(seconds) for seconds in launches])
            if np.isfinite(medians).all() and (medians > SMALL * self.scale).any():
                found[str(part)] = Observed(
                    sizes=self.sizes, times=medians, scale=self.scale, launches=launches
                )
        return found
