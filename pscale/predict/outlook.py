"""What predictions of a suite say together: efficiency by factors, what hurts first, time and price."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pscale.analysis.frames import grouped
from pscale.analysis.stats import Estimate
from pscale.config import Case
from pscale.predict.engine import SAYS_NOTHING, Prediction
from pscale.predict.profile import Profile

_LOSSES = {  # what takes time from computing, in the order in which the factors take it away
    "load balance": ("imbalance", "jitter", "injected"),
    "serialisation": ("bubble",),
    "transfer": ("transfer", "copy", "offload"),
}
_DOUBTFUL = 1.1
WORDS = {
    "bubble": "the bubble of the pipeline",
    "imbalance": "waits for ranks that always compute longer",
    "jitter": "waits for whichever rank is late in a step",
    "transfer": "communication that is not hidden",
    "copy": "copies for communication",
    "offload": "waits for a file",
    "injected": "the injected delay",
    "compute": "slower compute",
}


class Row(NamedTuple):
    """A predicted case; efficiency and `computation` are relative to the base case.

    `shares` are of the step by kind of time. `factors` are by name: the shares of time that are not lost, and
    with a base case `overall`, their product: the efficiency times what the base keeps itself. Times and
    efficiency have no interval where the prediction states none. `base` is the label of the base case.
    """

    prediction: Prediction
    case: str
    label: str
    ranks: int
    step_s: Estimate
    efficiency: Estimate | None
    shares: Mapping[str, float]
    factors: Mapping[str, float]
    base: str

    @property
    def unchecked(self) -> bool:
        """Whether no prediction of so many ranks was ever checked."""
        return self.step_s.low is None


def tokens(case: Case) -> int:
    """Return the targets of a step."""
    return case.train.batch * case.model.sequence


def _row(prediction: Prediction, base: Prediction | None) -> Row:
    losses, step = prediction.losses, prediction.stated_s
    kept = losses.get("compute", 0.0)
    factors = {}
    for name, kinds in _LOSSES.items():
        with_these = kept + sum(losses.get(kind, 0.0) for kind in kinds)
        factors[name] = kept / with_these if with_these else 1.0
        kept = with_these
    efficiency = None
    if base is not None:
        value = _work_rate(prediction) / _work_rate(base)
        efficiency = step.rate(value * step.value)
        parallel = losses.get("compute", 0.0) / step.value
        own = base.losses.get("compute", 0.0) / base.step_s.value
        computation = value / parallel * own if parallel else 1.0
        factors = {"overall": value * own, "computation": computation, **factors}
    case = prediction.case
    shares = {kind: seconds / step.value for kind, seconds in losses.items()}
    label = base.case.label if base else ""
    return Row(prediction, case.id, case.label, case.ranks, step, efficiency, shares, factors, label)


def _work_rate(prediction: Prediction) -> float:
    """Return tokens per core and second."""
    case = prediction.case
    return tokens(case) / (prediction.step_s.value * case.ranks * case.threads)


def bases_of(
    predictions: Sequence[Prediction], profile: Profile, predict_one: Callable[[Case], Prediction]
) -> list[Prediction | None]:
    """Return for each case the one its efficiency refers to: of the same work on the least ranks.

    It is predicted or of the profile's run; None where there is no other. Throughput suites compare no sizes.
    """
    bases: dict[Hashable, Prediction | None] = {}
    for work, same in grouped(predictions, lambda each: _work(each.case)).items():
        if same[0].case.scaling == "throughput":
            bases[work] = None
            continue
        least = min(same, key=lambda each: each.case.ranks)
        smaller = [case for case in profile.cases if _work(case) == work and case.ranks < least.case.ranks]
        if smaller:
            bases[work] = predict_one(min(smaller, key=lambda case: case.ranks))
        else:
            bases[work] = least if len(same) > 1 else None
    return [bases[_work(each.case)] for each in predictions]


def _work(case: Case) -> Hashable:
    """Return what cases share that do the same work on other ranks; in weak scaling on each rank."""
    batch = case.train.batch / (case.ranks if case.scaling == "weak" else 1)
    return case.scaling, batch, case.model, case.train.optimizer, case.precision, case.ghost


def training_hours(row: Row, goal: float) -> Estimate:
    """Return the hours of training on `goal` tokens."""
    return row.step_s.times(goal / tokens(row.prediction.case) / 3600)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The predictions of a suite, with what a reader needs to judge them.

    `base` are the labels of the cases that efficiencies refer to; empty without any. `measured` are step
    times of cases of the profile's run that are among the predicted ones, by case. `trust` says how far to.
    """

    title: str
    origin: str
    machine: str
    network: str
    rows: tuple[Row, ...]
    base: str
    measured: Mapping[str, tuple[float, ...]]
    trust: tuple[str, ...]
    by: str = ""  # " by data sheet" where nothing was measured

    @property
    def document(self) -> dict[str, Any]:
        """The same for programs."""
        names = ("title", "origin", "machine", "network", "base", "trust")
        cases = [_document(row) for row in self.rows]
        return {"kind": "pscale prediction", **{name: getattr(self, name) for name in names}, "cases": cases}


def _document(row: Row) -> dict[str, Any]:
    made = row.prediction
    return {
        "case": row.case,
        "label": row.label,
        "ranks": row.ranks,
        "step_s": asdict(row.step_s),
        "losses_s": dict(made.losses),
        "efficiency": asdict(row.efficiency) if row.efficiency else None,
        "base": row.base,
        "factors": dict(row.factors),
        "waits_s": [{"rank": rank, "phase": phase, "wait_s": s} for (rank, phase), s in made.waits.items()],
        "draws_s": made.draws.tolist(),
        "unchecked_beyond_ranks": made.checked_ranks if row.unchecked else None,
        "notes": list(made.notes),
    }


def joined(notes: Iterable[str]) -> list[str]:
    """Return notes, those that say the same of several things as one: `this, that: what is so`."""
    about: dict[str, list[str]] = {}
    for note in notes:
        which, _, said = note.rpartition(": ")
        about.setdefault(said, []).append(which)
    return [f"{', '.join(which)}: {said}" if any(which) else said for said, which in about.items()]


def outlook(
    predictions: Sequence[Prediction],
    bases: Sequence[Prediction | None],
    profile: Profile,
    *,
    title: str,
    network: str,
    trust: Sequence[str],
) -> Outlook:
    """Return what predictions from a profile say together; `bases` are those of their efficiencies."""
    found = [_row(each, base) for each, base in zip(predictions, bases, strict=True)]
    machine = profile.machine
    cores = f"{machine.cores} cores" if machine.cores else ""
    return Outlook(
        title=title,
        origin=profile.origin,
        machine=", ".join(filter(None, (machine.host, machine.cpu_model, cores))),
        network=network,
        rows=tuple(found),
        base=", ".join(dict.fromkeys(each.base for each in found if each.base)),
        measured={case: profile.steps_s[case] for each in found if (case := each.case) in profile.steps_s},
        trust=(*trust, *_doubts(found)),
        by=" by data sheet" if profile.sheet else "",
    )


def _doubts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what to doubt about intervals and efficiencies."""
    alone = [row.label for row in rows if not row.base and row.prediction.case.scaling != "throughput"]
    if alone:
        yield f"No efficiency of {', '.join(alone)}: no other size of this work was measured or is predicted."
    wide = {row.ranks for row in rows if row.prediction.says_nothing}
    narrow = {row.ranks for row in rows if not row.prediction.says_nothing}
    first = min((ranks for ranks in wide if ranks > max(narrow, default=0)), default=None)
    if first:
        yield (
            f"From {first:,} ranks on predictions say next to nothing: their intervals reach to more than "
            f"{SAYS_NOTHING} times the value."
        )
    for row in rows:
        if row.efficiency and row.efficiency.value > _DOUBTFUL:
            yield (
                f"The efficiency of {row.label}, {row.efficiency.value:.0%}, is doubtful: unless caches "
                f"explain it, the step of {row.base} is predicted too long, or this one too short."
            )
