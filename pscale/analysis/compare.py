"""Two runs against each other, case by case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pscale.analysis import scaling
from pscale.analysis.circumstances import Change, changes
from pscale.analysis.difference import ALPHA, Answer, Difference, difference, holm
from pscale.analysis.footing import unlike
from pscale.analysis.frames import Run
from pscale.analysis.pace import Compare, Paced, at_same_pace, of_variants, paced
from pscale.analysis.stats import Estimate, Sample

RELEVANT = 0.05
_MOST_LAUNCHES = 200  # that anybody would wait for

Side = tuple[Run, str, Sample]  # a case of a run


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One case of both runs. Times are seconds; None where a side has a single launch."""

    case: str  # in A
    label: str
    matched_by: str  # id: the same work; label: the same name, though something differs; size: in one run
    a_s: Estimate
    b_s: Estimate
    a_launches: int
    b_launches: int
    ratio: Estimate  # B over A
    effect: float | None  # Cliff's delta, from -1, where every launch of B is faster, to 1; of pairs likewise
    test: str
    p: float | None
    p_corrected: float | None  # for the number of cases, after Holm
    scatter: float | None  # of launches about their side's mean, as they ran; None: their pace is not used
    scatter_at_pace: float | None  # of these at the same pace of the machine, which is what was compared
    pace_slope: float | None  # relative change of the step time over that of the pace
    pace_ratio: float | None  # time of a fixed piece of work in B over that in A
    detectable: float | None  # difference that would have been seen 8 times in 10
    launches_needed: int | None  # of each, to see the least relevant difference 8 times in 10
    answer: Answer
    text: str


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A case that only one of the runs has measured."""

    label: str
    run: str  # the one that lacks it: A or B
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matched:
    """A case of A and the one of B that it is compared with."""

    case: str
    other: str
    label: str
    by: str
    difference: Difference
    paced: Paced | None = None
    known_pace: bool = False  # of both, whether or not it could be used
    apart: tuple[str, ...] = ()  # why it was not


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The findings on two runs."""

    a: str
    b: str
    relevant: float
    cases: tuple[Compared, ...]
    missing: tuple[Missing, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def compare(a: Run, b: Run, relevant: float = RELEVANT) -> Comparison:
    """Compare the step times of all cases that both runs have measured, matched by id, else by label.

    `relevant` is the least relative difference that matters: where one as small could have been seen and none
    was, there is no difference to speak of; where it could not, the runs are too noisy to tell.
    """
    # Runs may have the same seed; draws of one side must not follow those of the other.
    times = [scaling.step_samples(run, 2 * run.seed + side) for side, run in enumerate((a, b))]
    pairs = _pairs(a, b)
    labels = labels_of(a)
    found = [
        matched(
            difference,
            (a, one, times[0][one]),
            (b, other, times[1][other]),
            label=labels[one],
            by="id" if one == other else "label",
        )
        for one, other in pairs.items()
        if one in times[0] and other in times[1]
    ]
    return Comparison(
        a=name_of(a),
        b=name_of(b),
        relevant=relevant,
        cases=answers(found, relevant),
        missing=tuple(_missing(a, b, pairs, times)),
        changes=changes(a, b, [(one.case, one.other) for one in found]),
        notes=(*notes(a, b, found), *_apart(a, b)),
    )


def matched(compare: Compare, a: Side, b: Side, *, label: str, by: str) -> Matched:
    """Set the launches of two cases against each other, at the same pace where that is known and tells."""
    (run, case, ours), (other_run, other, theirs) = a, b
    known = paced(ours, theirs)
    apart = unlike(run, case, other_run, other) if known else ()
    if known and run is other_run and not apart and of_variants(ours, theirs):
        apart = ("pace, in all rounds",)
    usable = known and not apart
    found, pace = at_same_pace(compare, ours, theirs) if usable else (compare(ours, theirs), None)
    return Matched(
        case=case,
        other=other,
        label=label,
        by=by,
        difference=found,
        paced=pace,
        known_pace=known,
        apart=apart,
    )


def _pairs(a: Run, b: Run) -> dict[str, str]:
    """Return which case of B each case of A is compared with: the same work, else the same name."""
    ours, theirs = labels_of(a), labels_of(b)
    pairs = {case: case for case in ours if case in theirs}
    by_label = {label: case for case, label in theirs.items() if case not in pairs}
    named = {case: by_label[label] for case, label in ours.items() if case not in pairs and label in by_label}
    return {case: (pairs | named)[case] for case in ours if case in pairs or case in named}


def answers(found: Sequence[Matched], relevant: float) -> tuple[Compared, ...]:
    """Return what is known of cases that were tested at once."""
    tested = [place for place, one in enumerate(found) if one.difference.p is not None]
    p_values = holm([found[place].difference.p or 0.0 for place in tested])
    corrected = dict(zip(tested, p_values, strict=True))
    return tuple(
        _compared(one, corrected.get(place), len(tested), relevant) for place, one in enumerate(found)
    )


def _compared(matched: Matched, p: float | None, tests: int, relevant: float) -> Compared:
    one = matched.difference
    detectable = one.detectable(tests)
    needed = one.launches_for(relevant, tests)
    answer = one.answer(p, detectable, relevant)
    pace = matched.paced
    return Compared(
        case=matched.case,
        label=matched.label,
        matched_by=matched.by,
        a_s=one.a,
        b_s=one.b,
        a_launches=one.launches[0],
        b_launches=one.launches[1],
        ratio=one.ratio,
        effect=one.effect,
        test=one.test,
        p=one.p,
        p_corrected=p,
        scatter=pace.scatter if pace else None,
        scatter_at_pace=pace.left if pace else None,
        pace_slope=pace.slope if pace else None,
        pace_ratio=pace.ratio if pace else None,
        detectable=detectable,
        launches_needed=needed,
        answer=answer,
        text=_sentence(answer, one, detectable, _repeats(needed, relevant, matched)) + _at_pace(pace),
    )


def _repeats(needed: int | None, relevant: float, matched: Matched) -> str:
    """Say what would tell."""
    pace = "" if matched.known_pace else ", or measure its pace between the steps (`timing.pace: true`)"
    if needed is None or needed > _MOST_LAUNCHES:
        return f"free the machine of other work{pace}"
    return (
        f"one of {100 * relevant:.2g}% takes about {needed} launches{pace and ', fewer with `timing.pace`'}"
    )


def _at_pace(pace: Paced | None) -> str:
    """Say that launches were brought to the same pace, and what that leaves of their scatter."""
    if pace is None:
        return ""
    return f" (at the same pace: launches scatter by {pace.left:.1%}, by {pace.scatter:.1%} as they ran)"


def _sentence(answer: Answer, one: Difference, detectable: float | None, remedy: str) -> str:
    if detectable is None:
        return "too noisy to tell: from one launch nothing is known of what differs between launches"
    seen = f"{detectable:.2g}x" if detectable > 1 else f"{100 * detectable:.2g}%"
    if answer == "same":
        return f"no difference detected; one of {seen} would have been"
    if answer == "unclear":
        return f"too noisy to tell: only a difference of {seen} would be seen; {remedy}"
    return f"{answer} by {abs(one.ratio.value - 1):.1%}"


def _missing(a: Run, b: Run, pairs: Mapping[str, str], times: list[dict[str, Sample]]) -> Iterator[Missing]:
    backward = {other: one for one, other in pairs.items()}
    sides = (("B", a, b, pairs), ("A", b, a, backward))
    for (lacking, run, other, link), own, known in zip(sides, times, reversed(times), strict=True):
        for case, label in labels_of(run).items():
            if case in own and link.get(case) not in known:
                yield Missing(label=label, run=lacking, reason=reason(other, link.get(case)))


def reason(run: Run, case: str | None) -> str:
    """Say why a run has no time for a case."""
    if case is None:
        return "not in its suite"
    ended = run.cases[run.cases["case"] == case]
    if not len(ended):
        return "not measured yet"
    first = ended.iloc[0]
    return f"{first['status']}: {first['reason'] or 'no reason was recorded'}"


def notes(a: Run, b: Run, found: Sequence[Matched]) -> Iterator[str]:
    """Yield what to know of the tests, and of what was compared."""
    if len(found) > 1:
        yield (
            f"{len(found)} cases were tested at once; p is corrected for that (Holm): the chance of any "
            f"false alarm is {ALPHA:.0%}."
        )
    differing = [one.label for one in found if _work(a, one.case) != _work(b, one.other)]
    if differing:
        yield f"The work of a step differs, so that times say nothing of speed: {', '.join(differing)}."
    apart = [f"{one.label} ({', '.join(one.apart)})" for one in found if one.apart]
    if apart:
        yield (
            "The pace of the machine was measured and not used, since what differs between A and B may "
            f"change it: {'; '.join(apart)}."
        )


def _apart(a: Run, b: Run) -> Iterator[str]:
    begun = [run.cases["started_unix_s"].min() for run in (a, b)]
    apart_h = abs(begun[1] - begun[0]) / 3600
    if math.isfinite(apart_h):
        yield (
            f"The runs began {apart_h:.3g} hours apart. What changed in the machine meanwhile is in the "
            "ratio too; `pscale compare RUN` on one suite that sweeps both variants is free of it."
        )


def _work(run: Run, case: str) -> tuple[object, ...]:
    row = run.cases[(run.cases["case"] == case) & (run.cases["status"] == "ok")].iloc[0]
    return tuple(row[name] for name in ("model", "batch", "tokens", "parameters", "dtype"))


def labels_of(run: Run) -> dict[str, str]:
    """Return the label of every case, in the suite's order; of those that the suite no longer has, too."""
    stored = dict(zip(run.cases["case"].astype(str), run.cases["label"].astype(str), strict=True))
    return {case: str(plan.get("label") or case) for case, plan in run.planned.items()} | stored


def name_of(run: Run) -> str:
    """Return suite and name of a run."""
    suite = run.suite.get("name")
    name = str(run.document.get("run") or run.path.name)
    return f"{suite}/{name}" if suite else name
