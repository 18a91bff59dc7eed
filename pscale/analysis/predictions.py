"""Steps predicted: laws of every series that compares sizes, and predictions held to what was measured since.

Cases that differ in one swept number alone have laws over that, which say nothing of efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.columns import Row, row
from pscale.analysis.frames import KINDS, Run, grouped, load
from pscale.analysis.scaling import by_series
from pscale.analysis.settings import SIZES, apart_from, following, of_cases, swept_numbers
from pscale.analysis.stats import Estimate, Sample, estimate
from pscale.analysis.text import duration_3, in_common, plural
from pscale.config import JOINT
from pscale.errors import ResultsError
from pscale.runs.predictions import Predicted, read
from pscale.runs.run_folders import predicted_suites, prediction_file
from pscale.runs.schema import PHASES
from pscale.runs.step_time import Vector

REACH = 4  # times the largest size measured: beyond, no interval is given
MOST_SERIES = 8
_FITTED = ("models", "laws", "law_predictions", "named_laws")  # frames
_MISFIT = 0.02  # of the step: a law that misses less fits well enough
_MISFIT_P = 0.01
_OBVIOUS = 1.5  # times what launches scatter by: no test finds less
_SMALL = 0.01  # of the step, at every size: not worth a law
_LARGEST = 1e60  # value of a swept number: squares of its terms are finite
_CURVE = 33  # sizes of the line in the figure
_SHARES = {f"mean_{kind}": kind.removesuffix("_s") for kind in KINDS if kind != "hidden_s"}
_PARTS: Mapping[str, tuple[str, ...]] = {  # measured kinds of time, and those predicted kinds that they are
    "compute": ("compute", "injected"),
    "transfer": ("transfer",),
    "wait": ("bubble", "imbalance", "jitter"),
    "copy": ("copy",),
    "offload": ("offload",),
}
_MODEL = ("series", "scaling", "unit", "threads", "sizes", "asked", "refusal")
Record = dict[str, Any]
Recorded = Sequence[tuple[Predicted, pd.DataFrame]]  # predictions of cases, with their launches
Measured = tuple[Record, list[Row]]  # a row of `models`, and its cases


def models(
    run: Run,
    points: Sequence[Row],
    times: Mapping[str, Sample],
    phases: pd.DataFrame,
    *,
    asked: Sequence[int] | None,
    sharing: Collection[str],
) -> dict[str, list[Record]]:
    """Return the rows of the frames `_FITTED`: of series that compare sizes, then of swept numbers.

    `phases` is the table of `efficiency.phases`, `asked` are sizes to predict (None: no laws at all), and
    `sharing` the cases whose ranks share cores.
    """
    found: dict[str, list[Record]] = {name: [] for name in _FITTED}
    room = MOST_SERIES
    every = () if asked is None else chain(_series(points, asked, sharing), _curves(run, points))
    for model, measured in every:
        if not room and not model["scaling"]:
            break
        if not room and not model["refusal"]:
            model["refusal"] = f"only the first {MOST_SERIES} series are modelled"
        model["model"] = len(found["models"]) + 1
        found["models"].append(model)
        if not model["refusal"]:
            room -= 1
            key = {name: model[name] for name in ("model", "series", "unit")}
            for name, row in _fitted(model, measured, _observed(model, measured, times, phases), run.seed):
                found[name].append(key | row)
    return found


def _timed(points: Iterable[Row]) -> list[Row]:
    return [point for point in points if point.step_s and 0 < point.step_s.value < math.inf]


def _series(points: Sequence[Row], asked: Sequence[int], sharing: Collection[str]) -> Iterator[Measured]:
    """Yield every series that compares sizes, in ranks, or in cores where their threads differ."""
    for series, members in by_series(p for p in points if p.scaling in {"strong", "weak"}).items():
        measured = _timed(members)
        threads = {point.threads for point in measured}
        alike = len(threads) == 1
        sizes = [point.ranks if alike else point.cores for point in measured]
        distinct, refusal = len(set(sizes)), ""
        if distinct < _FEWEST_SIZES:
            refusal = f"{plural(distinct, 'size')} measured; a law needs at least {_FEWEST_SIZES}"
        elif distinct < len(sizes):
            refusal = "several cases have the same size, so time depends on more than size"
        elif any(point.case in sharing for point in measured):
            refusal = "ranks share cores, so times do not carry over to larger machines"
        unit = ("ranks", threads.pop()) if alike else ("cores", 1)
        values = (series, members[0].scaling, *unit, sizes, sorted(set(asked)), refusal)
        yield dict(zip(_MODEL, values, strict=True)), measured


def _curves(run: Run, points: Sequence[Row]) -> Iterator[Measured]:
    """Yield cases that differ in one swept number, and what follows it, if a law can be fitted to them."""
    cases = of_cases(run)
    measured = [point for point in _timed(points) if point.case in cases]
    known = set[frozenset[str]]()  # of numbers that follow each other one is enough
    for name in (name for name in swept_numbers(run, cases) if name not in SIZES):
        decided = following(name, list(cases.values())).difference(SIZES)
        shared = {point.case: apart_from(cases[point.case], name, decided) for point in measured}
        for members in grouped(measured, lambda point: shared[point.case]).values():  # noqa: B023 - used at once
            by_value = {float(cases[point.case][name]): point for point in members}
            these, values = frozenset(point.case for point in members), sorted(by_value)
            wide = _FEWEST_SIZES <= len(members) == len(by_value)
            if wide and these not in known and values[0] >= 1 and values[-1] <= _LARGEST:
                known.add(these)
                common = JOINT.join(in_common([point.label.split(JOINT) for point in members]))
                model = (common, "", name.rpartition(".")[2], None, values, (), "")
                yield dict(zip(_MODEL, model, strict=True)), [by_value[value] for value in values]


def _observed(
    model: Record, measured: Sequence[Row], times: Mapping[str, Sample], phases: pd.DataFrame
) -> dict[str, Observed]:
    """Return the times of the step, of its phases in their order, and of kinds of time, at every size."""
    cases = [point.case for point in measured]
    samples = [times[case] for case in cases]
    scale = np.array([sample.value for sample in samples])
    sizes = np.array(model["sizes"], np.float64)

    def observed(launches: Sequence[Any]) -> Observed:
        medians = np.array([np.median(seconds) for seconds in launches])
        return Observed(sizes=sizes, times=medians, scale=scale, launches=launches)

    whole = observed([np.array(sample.medians or (sample.value,)) for sample in samples])
    found = {"step": replace(whole, times=scale)}
    table = phases[phases["case"].isin(cases)]
    kinds = table[[*_SHARES]].div(table["steps"], axis=0).rename(columns=_SHARES)
    launch = [table["case"], table["repeat"]]
    by_phase = kinds.sum(axis=1).groupby([table["phase"].astype(str), *launch]).sum()
    by_kind = kinds.groupby(launch).sum().stack().reorder_levels([2, 0, 1])
    order = {phase: place for place, phase in enumerate(PHASES)}
    for parts in (by_phase, by_kind):
        of_parts = {}
        for part, rows in parts.groupby(level=0, sort=False):
            by_case = {case: np.asarray(of_case, np.float64) for case, of_case in rows.groupby(level=1)}
            each = observed([by_case.get(case, np.zeros(1)) for case in cases])
            if np.isfinite(each.times).all() and (each.times > _SMALL * scale).any():
                of_parts[str(part)] = each
        names = (
            sorted(of_parts, key=lambda name: (order.get(name, len(order)), name))
            if parts is by_phase
            else of_parts
        )
        found |= {name: of_parts[name] for name in names}
    return found


def _fitted(
    model: Record, measured: Sequence[Row], observed: Mapping[str, Observed], run_seed: int
) -> Iterator[tuple[str, Record]]:
    """Yield the rows of laws by frame, and add the first bottleneck to the row of the model."""
    step, base = observed["step"], next((each for each in measured if each.base and model["scaling"]), None)
    largest = max(step.sizes)
    ahead = np.array(model["asked"] or [2 * largest, REACH * largest], np.float64)
    line = np.unique(np.geomspace(min(step.sizes), REACH * largest, _CURVE).round())
    space = Space(laws(model["scaling"]), step.sizes, step.scale)
    seed = (run_seed, *(() if model["scaling"] else model["unit"].encode()), *model["series"].encode())
    expected_s: Any = None
    predicted: dict[str, float] = {}
    for part, own in observed.items():
        whole = own is step
        choice = fit(space, own.times[None], likely(len(own.sizes), own.scatter))
        bootstrap = Bootstrap(own, choice, seed if whole else (*seed, *part.encode()))
        sizes = np.concatenate([ahead, line]) if whole else ahead
        expected_s = choice.at(sizes)[0] if whole else expected_s
        yield "laws", {"part": part, "law": choice.law().name(model["scaling"]), **_law(own, choice)}
        times = bootstrap.at(space, choice, sizes, expected_s[: len(sizes)])
        for place, (size, time_s) in enumerate(zip(sizes.tolist(), times, strict=True)):
            beyond = size > REACH * largest * (1 + 1e-9)
            known = Estimate(value=time_s.value) if beyond else time_s
            at = {"part": part, "size": size, "beyond": beyond, "curve": place >= len(ahead)}
            at["cores"] = size * model["threads"] if model["scaling"] else None
            at["efficiency"] = _efficiency(model, base, size, known) if whole else None
            yield "law_predictions", {**at, "time_s": known}
        predicted[part] = times[len(ahead) - 1].value
        if whole:
            for row in named_laws(model["scaling"], own, bootstrap.times):
                yield "named_laws", row
    phases = [part for part in observed if part != "step" and part not in _SHARES.values()]
    if base and phases:
        model |= _bottleneck(
            model, {part: (observed[part], predicted[part]) for part in phases}, base, ahead[-1]
        )


def _efficiency(model: Record, base: Row | None, size: float, time_s: Estimate) -> Estimate | None:
    if base is None or not time_s.value > 0:
        return None
    ideal = base.step_s.value
    if model["scaling"] == "strong":
        ideal *= base.cores / (size * model["threads"])
    low, high = time_s.low, time_s.high
    ends = {"low": ideal / high, "high": ideal / low} if low and high else {}
    return Estimate(value=ideal / time_s.value, **ends)


def _law(observed: Observed, choice: Choice) -> Record:
    """Return the law chosen for a part, and how well it fits."""
    law, weights = choice.law(), observed.scale**-2
    mean = np.average(observed.times, weights=weights)
    spread = float(np.sum(weights * (observed.times - mean) ** 2))
    squares, scatter = float(choice.residuals[0]) ** 2, observed.scatter
    free = max(len(observed.sizes) - law.parameters, 1)
    variance, fits = squares / free, True
    if scatter.degrees and variance > max(_MISFIT, _OBVIOUS * scatter.size) ** 2:
        from scipy.special import fdtrc  # noqa: PLC0415 - reports seldom need it

        fits = (
            bool(scatter.size) and float(fdtrc(free, scatter.degrees, variance / scatter.size**2)) > _MISFIT_P
        )
    seconds = choice.coefficients[0, : len(law.terms)].tolist()
    forms = [term.text for term in law.terms]
    return {
        "formula": " + ".join(form.format(duration_3(s)) for form, s in zip(forms, seconds, strict=True)),
        "terms": forms,
        "coefficients_s": seconds,
        "r_squared": None if law.terms == (CONSTANT,) or not spread > 0 else 1 - squares / spread,
        "error": float(choice.errors[0]),
        "misfit": math.sqrt(variance),
        "scatter": scatter.launch if scatter.degrees else None,
        "fits": fits,
        "measured_s": observed.times.tolist(),
    }


def _bottleneck(
    model: Record, phases: Mapping[str, tuple[Observed, float]], base: Row, size: float
) -> Record:
    """Return the phase that will cost most beyond ideal scaling, and its shares there and as measured."""
    smallest = model["sizes"].index(base.cores // model["threads"])
    shrunk = model["sizes"][smallest] / size if model["scaling"] == "strong" else 1.0
    excess = {part: time_s - own.times[smallest] * shrunk for part, (own, time_s) in phases.items()}
    first = max(excess, key=lambda part: excess[part])
    total = sum(time_s for _, time_s in phases.values())
    if not excess[first] > _SMALL * total:
        return {"first": "none"}
    largest = sum(float(own.times[-1]) for own, _ in phases.values())
    return {
        "first": first,
        "first_share": phases[first][1] / total,
        "first_measured_share": float(phases[first][0].times[-1]) / largest if largest else None,
    }


def agreement(one: Estimate, other: Estimate) -> str:
    """Return agree or disagree, by whether two predictions allow the same time.

    One without interval allows its value alone; where neither has one, the answer is empty.
    """
    if one.low is None and other.low is None:
        return ""
    (low, high), (least, most) = (
        (each.value if each.low is None else each.low, each.value if each.high is None else each.high)
        for each in (one, other)
    )
    return "agree" if low <= most and least <= high else "disagree"


def held(recorded: Recorded) -> Iterator[dict[str, Any]]:
    """Yield predictions beside the launches of their cases."""
    for made, launches in recorded:
        steps_s = launches["step_s"]
        measured_s = float(steps_s.median())
        yield {
            **{name: getattr(made, name) for name in ("case", "ranks", "made_unix_s", "low_s", "high_s")},
            "predicted_s": made.step_s,
            "measured_s": measured_s,
            "error": made.step_s / measured_s - 1,
            "launches": len(steps_s),
            "inside": int(steps_s.between(made.low_s, made.high_s).sum()),
        }


def kinds(recorded: Recorded, times: Mapping[str, Sequence[Row]]) -> Iterator[dict[str, Any]]:
    """Yield every kind of time of those cases, predicted and, by the `times` of their phases, measured."""
    for made, _ in recorded:
        for kind, parts in _PARTS.items():
            predicted_s = sum(made.losses_s.get(part, 0.0) for part in parts)
            phases = times.get(made.case, ())
            unclear = kind in ("transfer", "wait") and any(time.wait_or_transfer_s for time in phases)
            known = phases and not unclear  # by the clocks
            measured_s = sum(getattr(time, f"{kind}_s") for time in phases) if known else None
            if predicted_s or measured_s:
                yield {"case": made.case, "kind": kind, "predicted_s": predicted_s, "measured_s": measured_s}


def recorded(run: Run) -> Recorded:
    """Return the last prediction of each case that was made before its first launch, and its launches."""
    folder = run.path.absolute().parent
    if not prediction_file(folder).exists():
        return []
    good = run.good[run.good["step_s"] > 0]
    launches = {str(case): rows for case, rows in good.groupby("case", observed=True)}
    last: dict[str, Predicted] = {}
    for each in sorted(read(folder), key=lambda each: each.made_unix_s):
        if each.case in launches and each.made_unix_s < launches[each.case]["started_unix_s"].min():
            last[each.case] = each
    return [(each, launches[case]) for case, each in last.items()]


def score(predictions: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield how well predictions held; nothing without any."""
    if predictions:
        errors = [abs(each.error) for each in predictions]
        yield {
            "cases": len(predictions),
            "largest_ranks": max(each.ranks for each in predictions),
            "mean_error": sum(errors) / len(errors),
            "largest_error": max(errors),
            **{name: sum(getattr(each, name) for each in predictions) for name in ("launches", "inside")},
        }


def score_in(reports: Path, machine: tuple[str, str]) -> Row | None:
    """Return how well predictions held of all runs in a folder on a machine: its host and processor."""
    found: list[Row] = []
    for folder in predicted_suites(reports):
        for document in folder.glob("*/run.json"):
            try:
                run = load(document.parent)
            except ResultsError:
                continue
            if machine_of(run) == machine:
                found += (row("predicted", **each) for each in held(recorded(run)))
    return next((row("prediction_score", **each) for each in score(found)), None)


def machine_of(run: Run) -> tuple[str, str]:
    """Return host and processor of the machine that a run was started on."""
    return str(run.machine.get("host", "")), str(run.machine.get("cpu_model", ""))


# Laws
#
# The space is the performance-model normal form of Calotoiu et al. 2013 ("Using automated performance
# modeling to find scalability bugs in complex codes"), sums of c p^i log2(p)^j, with negative exponents for
# strong scaling, plus the two terms of a ring, p - 1 (latency) and 1 - 1/p (bytes), which vanish on one rank.
# Amdahl's and Gustafson's laws and the universal scalability law are names of some sums.
#
# As all terms are known, a fit is a projection, and so is what it says of a size left out. A law of which a
# coefficient would be negative is out: the same law without that term is another of the space.

_FEWEST_SIZES = 5
DRAWS = 400
_MOST_TERMS = 3  # the constant and two that depend on the size
_POWERS = {  # of p, by exponent of log2 p
    0: ("-1", "-2/3", "-1/2", "-1/3", "1/3", "1/2", "2/3", "1", "3/2", "2"),
    1: ("-1", "-1/2", "0", "1/2", "1"),
    2: ("0", "1"),
}
_SERIAL_FRACTIONS = np.arange(0.005, 1.0, 0.005)
_FINEST = 1e-4  # relative: no difference below it is worth a parameter
_LEVERAGE = 1e-9
_PRICE = 7  # of a parameter, as Akaike's is 2: each count offers the best of many laws
_FOR_AICC = 3  # the variance is one more parameter, and AICc needs a degree of freedom beyond

Whole = NDArray[np.int64]


class Term(NamedTuple):
    """A function of the size; `text` writes its product with a coefficient, {}."""

    text: str
    value: Callable[[Vector], Vector]
    complexity: int  # of terms that fit equally well the plainest is taken


class Law(NamedTuple):
    """A sum of terms; its name follows from these."""

    terms: tuple[Term, ...]
    serial_fraction: float | None = None  # of Gustafson's, where it is part of the term

    def name(self, scaling: str) -> str:
        """Return amdahl, gustafson, usl, or pmnf for sums without a name."""
        if self.serial_fraction is not None:
            return "gustafson"
        named = _NAMED.get(scaling, {}).items()
        return next((name for name, terms in named if {*terms} == {*self.terms} and len(terms) > 1), "pmnf")

    @property
    def parameters(self) -> int:
        """How many numbers are fitted."""
        return len(self.terms) + (self.serial_fraction is not None)

    @property
    def complexity(self) -> tuple[int, int]:
        """How plain the law is: fewer parameters first, then plainer terms."""
        return self.parameters, sum(term.complexity for term in self.terms)


_NONE = Term("", np.zeros_like, 0)
CONSTANT = Term("{}", np.ones_like, 0)
_INVERSE = Term("{}/p", lambda size: 1 / size, 1)
SHARED = Term("{}·(1 − 1/p)", lambda size: 1 - 1 / size, 1)
OTHERS = Term("{}·(p − 1)", lambda size: size - 1, 1)
_PAIRS = Term("{}·p(p − 1)", lambda size: size * (size - 1), 2)
_NAMED = {  # by scaling: the terms of laws with a name, the one that all of them have first
    "strong": {"amdahl": (_INVERSE, CONSTANT), "usl": (_INVERSE, SHARED, OTHERS)},
    "weak": {"gustafson": (CONSTANT,), "usl": (CONSTANT, OTHERS, _PAIRS)},
}


@cache
def laws(scaling: str) -> tuple[Law, ...]:
    """Return every law for strong or weak scaling, or else for any number, the plainest first."""
    ring = (SHARED, OTHERS) if scaling in _NAMED else ()
    every = (_INVERSE, *ring, *_powers())
    sums: list[tuple[Term, ...]] = [
        each for count in range(_MOST_TERMS) for each in combinations(every, count)
    ]
    same = {CONSTANT, SHARED, _INVERSE}  # three terms for two shapes
    sums = [terms for chosen in sums for terms in (chosen, (CONSTANT, *chosen)) if terms and {*terms} != same]
    found = [*map(Law, sums), *([Law(_NAMED[scaling]["usl"])] if scaling in _NAMED else [])]
    return tuple(sorted([*found, *(_gustafson() * (scaling == "weak"))], key=lambda law: law.complexity))


@cache
def _gustafson() -> tuple[Law, ...]:
    """Return S(p) = s + (1 - s) p, with S(p) = p T1 / T(p), for every serial fraction s."""

    def term(s: float) -> Term:
        return Term(f"{{}}/({1 - s:.3g} + {s:.3g}/p)", lambda size: 1 / (1 - s + s / size), 1)

    return tuple(Law((term(s),), s) for s in map(float, _SERIAL_FRACTIONS))


def _powers() -> Iterator[Term]:
    for logs, powers in _POWERS.items():
        for power in powers:
            if (power, logs) != ("-1", 0):  # the inverse has a name of its own
                yield _power(Fraction(power), logs)


def _power(power: Fraction, logs: int) -> Term:
    value, plain = float(power), power.denominator == 1
    text = {0: "", 1: "log₂ p", 2: "log₂² p"}[logs]
    if power:
        exponent = "" if power == 1 else f"^{power}" if plain and power > 0 else f"^({power})"
        text = f"p{exponent} {text}".rstrip()
    return Term(
        "{}·" + text,
        lambda size: size**value * np.log2(size) ** logs,
        (1 if plain and value < 2 else 3 if power.denominator == 3 else 2)
        + (logs if power else logs - 1 if logs else 0),
    )


class Scatter(NamedTuple):
    """How uncertain times are by what launches differ by, relative to the scale of their sizes."""

    launch: float = 0.0  # standard deviation of one
    size: float = 0.0  # of the time of a size
    degrees: int = 0  # of freedom; 0: unknown, as sizes have one launch each


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """Times of one kind at every size: of each launch, and their median; all in seconds."""

    sizes: Vector
    times: Vector
    scale: Vector  # what errors are relative to: the time of a whole step
    launches: Sequence[Vector]

    @cached_property
    def deviations(self) -> Vector:
        """What launches differ by from their mean, relative, spread as single launches are."""
        found = [
            (times - times.mean()) / scale * np.sqrt(len(times) / (len(times) - 1))
            for times, scale in zip(self.launches, self.scale, strict=True)
            if len(times) > 1
        ]
        return np.concatenate(found) if found else np.empty(0)

    @property
    def scatter(self) -> Scatter:
        """What is known of the times by what launches of a size differ by."""
        pool, counts = self.deviations, [len(times) for times in self.launches]
        if not len(pool):
            return Scatter()
        launch = float((pool**2).mean() ** 0.5)
        size = launch * float(np.mean([1 / count for count in counts])) ** 0.5
        return Scatter(launch, size, len(pool) - sum(count > 1 for count in counts))


class Choice(NamedTuple):
    """The law chosen for each of D series of times; residuals are relative to the scale of the sizes."""

    laws: Sequence[Law]
    chosen: Whole  # D places in `laws`
    coefficients: Vector  # D × most terms, zero beyond the terms of a law
    errors: Vector  # D: root of the mean squared leave-one-out error
    residuals: Vector  # D: root of the sum of squared residuals

    def law(self, draw: int = 0) -> Law:
        """Return the law of one series."""
        return self.laws[int(self.chosen[draw])]

    def at(self, sizes: Vector) -> Vector:
        """Return the times at some sizes, D × sizes."""
        used, places = np.unique(self.chosen, return_inverse=True)
        columns = np.zeros((len(used), _MOST_TERMS, len(sizes)))
        for place, index in enumerate(used):
            for term, known in enumerate(self.laws[int(index)].terms):
                columns[place, term] = known.value(sizes)
        return np.asarray(np.einsum("dk,dks->ds", self.coefficients, columns[places]))

    def part(self, term: Term) -> Vector:
        """Return the coefficient of a term in each law, zero in those without it."""
        places = [[*law.terms, term].index(term) for law in self.laws]
        padded = np.pad(self.coefficients, ((0, 0), (0, 1)))
        return np.asarray(padded[np.arange(len(self.chosen)), np.array(places)[self.chosen]])


class Fits(NamedTuple):
    """All laws fitted to D series of times; rows are laws, the plainest first."""

    parameters: Whole
    coefficients: Vector  # laws × most terms × D
    squares: Vector  # laws × D: sums of squared residuals
    errors: Vector  # laws × D: mean squared leave-one-out errors, infinite where a coefficient is negative
    spread: Vector  # laws × D: their standard errors


class Space:
    """The laws over given sizes, the plainest first; `scale` is what errors are relative to at each size.

    Laws that do not leave `spare` sizes beyond their parameters are left out.
    """

    def __init__(self, laws: Sequence[Law], sizes: Vector, scale: Vector, spare: int = _FOR_AICC) -> None:
        self.laws = [law for law in laws if law.parameters <= len(sizes) - spare]
        self.scale = scale
        self.parameters = np.array([law.parameters for law in self.laws])
        terms = [[*law.terms, *[_NONE] * (_MOST_TERMS - len(law.terms))] for law in self.laws]
        columns = [np.stack([term.value(sizes) for term in of_law], axis=1) for of_law in terms]
        self.columns = np.stack(columns) / scale[None, :, None]  # laws × sizes × terms
        lengths = np.linalg.norm(self.columns, axis=1)  # p² of a large p is no more than the constant
        known = np.where(lengths > 0, lengths, 1.0)
        solve = np.linalg.pinv(self.columns / known[:, None, :]) / known[..., None]
        self.solve = np.where(lengths[..., None] > 0, solve, 0.0)  # laws × terms × sizes
        leverage = np.einsum("lsk,lks->ls", self.columns, self.solve)
        self.free = np.maximum(1 - leverage, _LEVERAGE)  # laws × sizes


def fit(space: Space, times: Vector, choose: Callable[[Fits], Whole]) -> Choice:
    """Fit every law to each row of `times`, draws × sizes, and take the law that `choose` says for each."""
    scaled = np.asarray((times / space.scale).T)
    coefficients = space.solve @ scaled
    residuals = scaled - space.columns @ coefficients
    left_out = np.square(residuals / space.free[..., None])
    means, count = left_out.mean(axis=1), left_out.shape[1]
    squares, errors = (residuals**2).sum(axis=1), np.where(coefficients.min(axis=1) < 0, np.inf, means)
    variance = np.square(left_out, out=left_out).mean(axis=1) - np.square(means)
    spread = np.sqrt(np.maximum(variance, 0.0) / (count - 1))
    rows = choose(Fits(space.parameters, coefficients, squares, errors, spread))
    draws = np.arange(len(rows))
    roots = (np.sqrt(part[rows, draws]) for part in (errors, squares))
    return Choice(space.laws, rows, coefficients[rows, :, draws], *roots)


def least_squares(fits: Fits) -> Whole:
    """Choose the law of least squares for each draw."""
    return np.asarray(np.where(np.isfinite(fits.errors), fits.squares, np.inf).argmin(axis=0))


def likely(sizes: int, scatter: Scatter = Scatter()) -> Callable[[Fits], Whole]:  # noqa: B008 - immutable
    """Return a choice by leave-one-out error and, of how many parameters, by likelihood.

    Of laws with as many parameters, the plainest within one standard error of the least leave-one-out error
    (Breiman et al. 1984, "Classification and regression trees"), or within what launches scatter by; of
    these, the likeliest.
    """

    def choose(fits: Fits) -> Whole:
        draws, candidates = np.arange(fits.errors.shape[1]), []
        for count in np.unique(fits.parameters):
            rows = np.flatnonzero(fits.parameters == count)
            errors = fits.errors[rows]
            least = errors.argmin(axis=0)
            limit = errors[least, draws] + fits.spread[rows][least, draws] + _FINEST**2
            candidates.append(rows[(errors <= np.maximum(limit, scatter.size**2)).argmax(axis=0)])
        chosen = np.stack(candidates)
        unlikely = _unlikely(fits.squares[chosen, draws], fits.parameters[chosen], sizes, scatter)
        scores = np.where(np.isfinite(fits.errors[chosen, draws]), unlikely, np.inf)
        return np.asarray(chosen[scores.argmin(axis=0), draws])

    return choose


def _unlikely(squares: Vector, parameters: Whole, sizes: int, scatter: Scatter) -> Vector:
    """Return minus twice the logarithm of the likelihood, with a price of parameters.

    A law that misses more than launches scatter by has a variance of its own, which few sizes tell: Akaike's
    criterion for few observations (Hurvich and Tsai 1989). The variance of launches is an estimate too, so
    that errors have Student's distribution.
    """
    known = parameters + 1
    alone = sizes * (np.log(squares / sizes + _FINEST**2) + 1)
    alone = alone + 2 * known + 2 * known * (known + 1) / (sizes - known - 1)
    if not scatter.degrees:
        return np.asarray(alone)
    variance, degrees = max(scatter.size, _FINEST) ** 2, scatter.degrees
    shared = sizes * math.log(variance) + (degrees + sizes) * np.log1p(squares / variance / degrees)
    return np.minimum(alone, shared + _PRICE * parameters)


class Bootstrap:
    """Draws of the times that might have been measured, and of those that might be at other sizes.

    A draw perturbs the times at all sizes as launches scatter, fits and chooses among all laws again, and
    perturbs the predicted time in the same way: the interval is one for a measurement there, and holds how
    uncertain the choice of the law is. What the law misses beyond the scatter of launches counts as noise.
    """

    def __init__(self, observed: Observed, choice: Choice, seed: Sequence[int]) -> None:
        self._random = np.random.default_rng(list(seed))
        self._counts, self._pool = [len(times) for times in observed.launches], observed.deviations
        free = max(len(observed.sizes) - choice.law().parameters, 1)
        missed = float(choice.residuals[0]) ** 2 / free
        launches = self._medians(max(set(self._counts), key=self._counts.count)).var()
        self._missed = max(missed - launches, 0.0) ** 0.5
        degrees = free if missed > launches else max(len(self._pool) - len(self._counts), 1)
        self._widen = np.sqrt(degrees / self._random.chisquare(degrees, DRAWS))
        perturbed = choice.at(observed.sizes)[0] + observed.scale * self._errors(self._counts)
        self.times = np.maximum(perturbed, 0.0)  # draws × sizes

    def at(self, space: Space, choice: Choice, sizes: Vector, scale: Vector) -> list[Estimate]:
        """Return the time that `choice` predicts at each size, with its interval; errors are of `scale`."""
        # The least leave-one-out error, however many parameters: draws that preferred plain laws would all
        # agree on one where sizes are few.
        again = fit(space, self.times, lambda fits: np.asarray(fits.errors.argmin(axis=0))).at(sizes)
        drawn = again + scale * self._errors([int(np.median(self._counts))] * len(sizes))
        values = choice.at(sizes)[0]
        return [
            estimate(float(value), np.maximum(draws, 0.0))
            for value, draws in zip(values, drawn.T, strict=True)
        ]

    def _errors(self, counts: Sequence[int]) -> Vector:
        """Return relative errors of measurements of so many launches each, draws × sizes."""
        errors = []
        for count in counts:
            missed = self._missed * self._random.normal(size=DRAWS)
            errors.append(self._widen * (self._medians(count) + missed))
        return np.stack(errors, axis=1)

    def _medians(self, count: int) -> Vector:
        if not len(self._pool):
            return np.zeros(DRAWS)
        return np.asarray(np.median(self._random.choice(self._pool, (DRAWS, count)), axis=1))


def named_laws(scaling: str, observed: Observed, draws: Vector) -> Iterator[dict[str, Any]]:
    """Yield the laws with a name for this kind of scaling by least squares, with their numbers' intervals.

    The universal law is that of Gunther 2007: throughput p / (T1 (1 + sigma (p - 1) + kappa p (p - 1))).
    """
    for kind, terms in _NAMED.get(scaling, {}).items():
        some = chain.from_iterable(combinations(terms[1:], count) for count in range(len(terms)))
        nested = [*(Law((terms[0], *each)) for each in some), *(_gustafson() * (kind == "gustafson"))]
        space = Space(nested, observed.sizes, observed.scale, spare=1)
        choice, drawn = (fit(space, times, least_squares) for times in (observed.times[None], draws))
        many = _numbers(kind, terms, drawn)
        numbers = {
            name: estimate(float(value[0]), many[name][~np.isnan(many[name])])
            for name, value in _numbers(kind, terms, choice).items()
        }
        sigma, kappa = (
            numbers[each].value if each in numbers else 0.0 for each in ("contention", "coherency")
        )
        peak = ((1 - sigma) / kappa) ** 0.5 if kappa > 0 and sigma < 1 else None  # of the throughput
        yield {"law": kind, "error": float(choice.errors[0]), **numbers, "peak": peak}


def _numbers(kind: str, terms: Sequence[Term], choice: Choice) -> dict[str, Vector]:
    """Return the numbers of a named law; NaN for a draw in which no size took any time."""
    if kind == "gustafson":
        return {
            "serial_fraction": np.array([law.serial_fraction or 0.0 for law in choice.laws])[choice.chosen]
        }
    first, *others = map(choice.part, terms)
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "amdahl":
            return {"serial_fraction": others[0] / (others[0] + first)}
        return {"contention": others[0] / first, "coherency": others[1] / first}
