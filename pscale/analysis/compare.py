"""Two runs against each other, case by case, and the variants of one run.

The variants of a run are its series: each case is compared with the first of its size and work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from pscale.analysis import scaling
from pscale.analysis.difference import ALPHA, Answer, Difference, difference, holm, paired
from pscale.analysis.environment import Change, changes
from pscale.analysis.frames import Run, is_program
from pscale.analysis.pace import Compare, Paced, at_same_pace, of_variants, paced, unlike
from pscale.analysis.stats import Sample
from pscale.analysis.wording import in_common, rough
from pscale.config import JOINT
from pscale.errors import UsageError

RELEVANT = 0.05
MOST_LAUNCHES = 200  # that are worth advising

Side = tuple[Run, str, Sample]  # a case of a run


@dataclass(frozen=True, kw_only=True)
class Compared(Paced, Difference):
    """One case of both runs."""

    case: str  # in A
    label: str
    matched_by: str  # id: the same work; label: the same name, though something differs; size: in one run
    p_corrected: float | None  # for the number of cases, after Holm
    detectable: float | None  # difference that would have been seen 8 times in 10
    launches_needed: int | None  # of each, to see the least relevant difference 8 times in 10
    answer: Answer
    text: str


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A case that only one of the runs has measured."""

    label: str
    run: str  # the one that lacks it, A or B; both: it is other work
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matched:
    """A case of A and the one of B that it is compared with."""

    case: str
    other: str
    label: str
    by: str
    difference: Difference
    paced: Paced
    lacks_pace: bool  # which could be measured: not of the program of somebody else
    incomparable: tuple[str, ...]  # what differs, so that it is not used


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
    was, there is no difference to speak of; where it could not, it is undecided. Cases whose steps do
    other work are not compared: their times say nothing of speed.
    """
    times = [scaling.step_samples(run) for run in (a, b)]
    pairs = _pairs(a, b)
    labels = labels_of(a)
    both = {one: other for one, other in pairs.items() if one in times[0] and other in times[1]}
    found = [
        matched(
            difference,
            (a, one, times[0][one]),
            (b, other, times[1][other]),
            label=labels[one],
            by="id" if one == other else "label",
        )
        for one, other in both.items()
        if not _other_work(a, one, b, other)
    ]
    return Comparison(
        a=name_of(a),
        b=name_of(b),
        relevant=relevant,
        cases=answers(found, relevant),
        missing=(*_missing(a, b, pairs, times), *_not_compared(a, b, both.items())),
        changes=changes(a, b, both.items()),
        notes=(*notes(found), *_apart(a, b)),
    )


def matched(compare: Compare, a: Side, b: Side, *, label: str, by: str) -> Matched:
    """Set the launches of two cases against each other, at the same pace where that is known and tells."""
    (run, case, ours), (other_run, other, theirs) = a, b
    known = paced(ours, theirs)
    incomparable = unlike(run, case, other_run, other) if known else ()
    if known and run is other_run and not incomparable and of_variants(ours, theirs):
        incomparable = ("pace, in all rounds",)
    usable = known and not incomparable
    found, pace = at_same_pace(compare, ours, theirs) if usable else (compare(ours, theirs), Paced())
    return Matched(
        case=case,
        other=other,
        label=label,
        by=by,
        difference=found,
        paced=pace,
        lacks_pace=not known and not is_program(run.planned.get(case, {})),
        incomparable=incomparable,
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
    detectable = one.detectable_with(tests)
    needed = one.launches_for(relevant, tests)
    answer = one.judge(p, detectable, relevant)
    text = _sentence(answer, one, detectable, _repeats(needed, relevant, matched)) + _at_pace(matched.paced)
    return Compared(
        **vars(one),
        **vars(matched.paced),
        case=matched.case,
        label=matched.label,
        matched_by=matched.by,
        p_corrected=p,
        detectable=detectable,
        launches_needed=needed,
        answer=answer,
        text=text,
    )


def _repeats(needed: int | None, relevant: float, matched: Matched) -> str:
    """Say what would tell."""
    pace = ", or measure the machine's pace between steps (`timing.pace: true`)" if matched.lacks_pace else ""
    if needed is None or needed > MOST_LAUNCHES:
        return f"stop other processes{pace}"
    fewer = pace and ", fewer with `timing.pace`"
    return f"detecting {100 * relevant:.2g}% takes about {needed} launches{fewer}"


def _at_pace(pace: Paced) -> str:
    """Say that launches were brought to the same pace, and what that leaves of their scatter."""
    if pace.scatter is None:
        return ""
    both = f"by {pace.scatter_at_pace:.1%}, uncorrected by {pace.scatter:.1%}"
    return f" (corrected for the machine's pace: launches vary {both})"


def _sentence(answer: Answer, one: Difference, detectable: float | None, advice: str) -> str:
    if detectable is None:
        return "undecided: one launch shows no variation between launches; repeat it"
    seen = f"{detectable:.2g}x" if detectable > 1 else f"{100 * detectable:.2g}%"
    if answer == "same":
        return f"no difference; one of {seen} would have been detected"
    if answer == "undecided":
        return f"undecided: only a difference of {seen} would be detected; {advice}"
    return f"{answer} by {abs(one.ratio.value - 1):.1%}"


def _missing(a: Run, b: Run, pairs: Mapping[str, str], times: list[dict[str, Sample]]) -> Iterator[Missing]:
    backward = {other: one for one, other in pairs.items()}
    sides = (("B", a, b, pairs), ("A", b, a, backward))
    for (lacking, run, other, link), own, known in zip(sides, times, reversed(times), strict=True):
        for case, label in labels_of(run).items():
            if case in own and link.get(case) not in known:
                yield Missing(label=label, run=lacking, reason=reason(other, link.get(case)))


def _not_compared(a: Run, b: Run, pairs: Iterable[tuple[str, str]]) -> Iterator[Missing]:
    """Yield the cases of one name whose steps do other work in B."""
    labels = labels_of(b)
    for one, other in pairs:
        if differing := _other_work(a, one, b, other):
            why = f"a step does different work: {', '.join(differing)}"
            yield Missing(label=labels[other], run="both", reason=why)


def _other_work(a: Run, one: str, b: Run, other: str) -> list[str]:
    """Return in what the work of two measured cases differs, but for what a suite calls the same."""
    ours, theirs = work_of(a, one), work_of(b, other)
    programs = [run.planned.get(case, {}).get("workload") or {} for run, case in ((a, one), (b, other))]
    same = {name for program in programs for name in program.get("same_work", ())}
    return [
        f"{name} {_shown(ours.get(name))} and {_shown(theirs.get(name))}"
        for name in dict.fromkeys([*ours, *theirs])
        if name not in same and ours.get(name) != theirs.get(name)
    ]


def _shown(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def reason(run: Run, case: str | None) -> str:
    """Say why a run has no time for a case."""
    if case is None:
        return "not in its suite"
    ended = run.cases[run.cases["case"] == case]
    if not len(ended):
        return "not measured yet"
    first = ended.iloc[0]
    return f"{first['status']}: {first['reason'] or 'no reason recorded'}"


def notes(found: Sequence[Matched]) -> Iterator[str]:
    """Yield what to know of the tests, and of what was compared."""
    if len(found) > 1:
        yield (
            f"p is corrected for {len(found)} simultaneous tests (Holm): the chance of any false alarm is "
            f"{ALPHA:.0%}."
        )
    unused = [f"{one.label} ({', '.join(one.incomparable)})" for one in found if one.incomparable]
    if unused:
        yield (
            "The measured pace of the machine was not used, because a difference between A and B may "
            f"affect it: {'; '.join(unused)}."
        )


def _apart(a: Run, b: Run) -> Iterator[str]:
    begun = [run.cases["started_unix_s"].min() for run in (a, b)]
    apart_s = abs(begun[1] - begun[0])
    if math.isfinite(apart_s):
        yield (
            f"The runs started {rough(apart_s)} apart; anything that changed on the machine in between is "
            "part of the ratio. To avoid that, sweep both variants in one suite: `pscale compare RUN`."
        )


_WORK = ("model", "batch", "tokens", "parameters")


def work_of(run: Run, case: str) -> dict[str, object]:
    """Return the work of a measured case: model, batch, tokens, parameters; command of a program."""
    row = run.cases[(run.cases["case"] == case) & (run.cases["status"] == "ok")].iloc[0]
    measured = {name: None if pd.isna(row[name]) else row[name] for name in _WORK}
    return measured | command_of(run, case)


def command_of(run: Run, case: str) -> dict[str, object]:
    """Return command and parameters of a case that runs a program; nothing of a training."""
    planned = run.planned.get(case, {})
    if not is_program(planned):
        return {}
    program = planned["workload"]
    return {"command": program["command"], **program.get("params", {})}


def labels_of(run: Run) -> dict[str, str]:
    """Return the label of every case, in the suite's order; of those that the suite no longer has, too."""
    stored = dict(zip(run.cases["case"].astype(str), run.cases["label"].astype(str), strict=True))
    return {case: str(plan.get("label") or case) for case, plan in run.planned.items()} | stored


def name_of(run: Run) -> str:
    """Return suite and name of a run."""
    suite = run.suite.get("name")
    return f"{suite}/{run.name}" if suite else run.name


Size = tuple[int, int]  # ranks and threads
_PAIRED = (
    "Launches of the same round are compared in pairs, which cancels changes between rounds. "
    "Rounds with a failed launch are left out."
)


def variants(run: Run, relevant: float = RELEVANT) -> Comparison:
    """Compare every case with the first of its ranks, threads and work, launches in pairs.

    Raises UsageError for a run of a single series.
    """
    series = list(dict.fromkeys(_series(run, case) for case in run.planned))
    if len(series) == 1:
        raise UsageError(
            f"{run.path} has no variants to compare; name a second run, `pscale compare {run.path} B`, "
            "or a run of a suite that sweeps more than sizes"
        )
    times = scaling.step_samples(run)
    pairs, labels = _pairs_of_variants(run, times), labels_of(run)
    a, b = _sides(run, [(one, other) for other, one in pairs.items()])
    found = [
        matched(
            paired,
            (run, one, times[one]),
            (run, other, times[other]),
            label=labels[other] if a else f"{labels[other]} against {labels[one]}",
            by="size",
        )
        for other, one in pairs.items()
        if one in times and other in times
    ]
    return Comparison(
        a=f"{name_of(run)}: {a or 'the first case of each size and work'}",
        b=f"{name_of(run)}: {b}",
        relevant=relevant,
        cases=answers(found, relevant),
        missing=tuple(_missing_of_variants(run, pairs, times)),
        changes=changes(run, run, [(one.case, one.other) for one in found]),
        notes=(*notes(found), _PAIRED),
    )


def _pairs_of_variants(run: Run, times: Mapping[str, Sample]) -> dict[str, str]:
    """Return, by every other case, the first of its size whose steps do the same work.

    Of what was not measured the batch has to tell.
    """

    def alike(one: str, other: str) -> bool:
        if one in times and other in times:
            return not _other_work(run, one, run, other)
        return _batch(run, one) == _batch(run, other)

    first: dict[Size, list[str]] = {}
    pairs = {}
    for case in run.planned:
        references = first.setdefault(_size(run, case), [])
        if (one := next((known for known in references if alike(known, case)), None)) is not None:
            pairs[case] = one
        else:
            references.append(case)
    return pairs


def _sides(run: Run, pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return what each side is called: its series, or what these share or do not share with the other side's.

    That of A is empty if its cases have nothing in common.
    """
    references = list(dict.fromkeys(_series(run, one) for one, _ in pairs))
    if len(references) < 2:
        others = dict.fromkeys(_series(run, other) for _, other in pairs)
        return (references or ["-"])[0] or "the first series", ", ".join(others) or "-"
    parts = [reference.split(JOINT) for reference in references]
    shared = in_common(parts)
    others = dict.fromkeys(
        JOINT.join(
            part for part in _series(run, other).split(JOINT) if part not in _series(run, one).split(JOINT)
        )
        for one, other in pairs
    )
    return JOINT.join(shared), ", ".join(others)


def _missing_of_variants(
    run: Run, pairs: Mapping[str, str], times: Mapping[str, Sample]
) -> Iterator[Missing]:
    labels = labels_of(run)
    for case in run.planned:
        if case not in pairs and case not in pairs.values():
            yield Missing(label=labels[case], run="A", reason="no other case of its ranks, threads and work")
    for other, one in pairs.items():
        for side, case in (("A", one), ("B", other)):
            if case not in times:
                yield Missing(label=labels[case], run=side, reason=reason(run, case))


def _series(run: Run, case: str) -> str:
    return str(run.planned[case].get("series", ""))


def _size(run: Run, case: str) -> Size:
    planned = run.planned[case]
    return int(planned["ranks"]), int(planned.get("threads", 1))


def _batch(run: Run, case: str) -> object:
    return (run.planned[case].get("train") or {}).get("batch")
