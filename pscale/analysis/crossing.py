"""Which of two variants is faster over a swept number, and where that turns.

"tp 2 or dp 2, from which batch?" A variant is a set of cases that differ in one number alone, the swept one,
and in others that follow it. Two variants are compared if they have as many cores and equal numbers but for
their plans: value by value, launches in pairs of the same round. A value is decided if the ratio of their
step times differs from 1 by more than chance, corrected for the number of values; a turn lies between two
values that are decided for different variants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from pscale.analysis.columns import Row
from pscale.analysis.compare import MOST_LAUNCHES, RELEVANT, Compared, answers, matched
from pscale.analysis.difference import Answer, paired
from pscale.analysis.frames import Run, grouped
from pscale.analysis.settings import (
    DEGREES,
    SIZES,
    Case,
    apart_from,
    following,
    is_number,
    of_cases,
    swept_numbers,
)
from pscale.analysis.stats import Estimate, Sample
from pscale.analysis.wording import digits, in_common
from pscale.config import JOINT

_OF_A_PLAN = ("plan.", "train.micro_batches")  # numbers in which variants may differ
_SAME = ("scaling", "model.kind", "data.kind")  # texts in which they may not


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A variant beside the reference at one value of the swept number."""

    value: float
    case: str  # of the variant
    reference_case: str
    step_s: Estimate
    reference_step_s: Estimate
    ratio: Estimate  # step time of the variant over that of the reference
    rounds: int  # in which both were launched
    p: float | None  # corrected for the number of values
    answer: Answer  # of the variant
    launches_needed: int | None  # of each, to see the least relevant difference 8 times in 10


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Two variants over a swept number. The reference is the first in the suite."""

    field: str  # the number, as conditions name it
    common: str  # what both variants share beside it, in the words of labels
    reference: str
    variant: str
    values: tuple[Beside, ...]  # in order of the number
    turns: tuple[tuple[float, float], ...]  # decided for different variants, nothing decided between
    text: str

    @property
    def question(self) -> str:
        """The two variants, as a heading."""
        named = f"{self.reference} or {self.variant}"
        return f"{self.common}: {named}" if self.common else named


@dataclass(frozen=True, kw_only=True)
class _Variant:
    name: str
    common: str
    points: Mapping[float, Row]


def crossings(run: Run, points: Sequence[Row], times: Mapping[str, Sample]) -> tuple[Crossing, ...]:
    """Compare the variants of a run with the first of each group, over the number that it sweeps most."""
    cases = of_cases(run)
    by_case = {point.case: point for point in points}
    measured = [by_case[case] for case in cases if case in times]
    found = [
        (name, groups) for name in swept_numbers(run, cases) if (groups := _variants(name, measured, cases))
    ]
    if not found:
        return ()
    name, groups = max(found, key=lambda each: (each[0] not in SIZES, _longest(each[1])))
    return tuple(
        _crossing(run, name, reference, variant, times)
        for reference, *others in groups
        for variant in others
        if len(reference.points.keys() & variant.points.keys()) > 1
    )


def _longest(groups: Sequence[Sequence[_Variant]]) -> int:
    return max(len(variant.points) for group in groups for variant in group)


def _variants(name: str, points: Sequence[Row], cases: Mapping[str, Case]) -> list[list[_Variant]]:
    """Return the groups of two variants or more that have two values of the number in common."""
    decided = following(name, [cases[point.case] for point in points])
    curves = grouped(points, lambda point: apart_from(cases[point.case], name, decided))
    kept = [members for members in curves.values() if len(members) > 1]
    groups = grouped(kept, lambda members: _comparable(cases[members[0].case], name, decided))
    return [_named(name, group, cases) for group in groups.values() if _overlap(name, group, cases)]


def _overlap(name: str, group: Sequence[Sequence[Row]], cases: Mapping[str, Case]) -> bool:
    first, *others = [{cases[point.case][name] for point in members} for members in group]
    return any(len(first & other) > 1 for other in others)


def _comparable(case: Case, name: str, decided: set[str]) -> str:
    """Return what variants must share to be compared."""
    numbers = {
        field: value
        for field, value in case.items()
        if is_number(value) and not field.startswith(_OF_A_PLAN) and field not in decided
    }
    if name not in SIZES:
        numbers |= {"ranks": case["ranks"] * case["threads"], "threads": 0}  # or other splits of the cores
    return json.dumps([{**numbers, name: None}, *(case.get(field) for field in _SAME)], sort_keys=True)


def _named(name: str, group: Sequence[Sequence[Row]], cases: Mapping[str, Case]) -> list[_Variant]:
    """Name every variant by the parts that its labels share and those of the others do not."""
    parts = [in_common([point.label.split(JOINT) for point in members]) for members in group]
    common = in_common(parts)
    return [
        _Variant(
            name=JOINT.join(part for part in own if part not in common)
            or _growing(cases[members[-1].case])
            or members[0].series,
            common=JOINT.join(common),
            points={cases[point.case][name]: point for point in members},
        )
        for own, members in zip(parts, group, strict=True)
    ]


def _growing(case: Case) -> str:
    """Return the axes that all ranks are on."""
    return " ".join(
        axis for degree, axis in DEGREES.items() if case.get(degree) == case["ranks"] and case["ranks"] > 1
    )


def _crossing(
    run: Run, name: str, reference: _Variant, variant: _Variant, times: Mapping[str, Sample]
) -> Crossing:
    shared = sorted(reference.points.keys() & variant.points.keys())
    pairs = [(reference.points[value].case, variant.points[value].case) for value in shared]
    found = answers(
        [
            matched(paired, (run, one, times[one]), (run, other, times[other]), label="", by="")
            for one, other in pairs
        ],
        RELEVANT,
    )
    values = tuple(
        _beside(value, pair, known) for value, pair, known in zip(shared, pairs, found, strict=True)
    )
    turns = tuple(_turns(values))
    names = {"faster": variant.name, "slower": reference.name}
    return Crossing(
        field=name,
        common=reference.common,
        reference=reference.name,
        variant=variant.name,
        values=values,
        turns=turns,
        text=_sentence(name, values, turns, names),
    )


def _beside(value: float, pair: tuple[str, str], known: Compared) -> Beside:
    return Beside(
        value=value,
        reference_case=pair[0],
        case=pair[1],
        reference_step_s=known.a_s,
        step_s=known.b_s,
        ratio=known.ratio,
        rounds=known.a_launches,
        p=known.p_corrected,
        answer=known.answer,
        launches_needed=known.launches_needed,
    )


def _decided(beside: Beside) -> bool:
    return beside.answer in ("faster", "slower")


def _turns(values: Sequence[Beside]) -> Iterator[tuple[float, float]]:
    decided = [beside for beside in values if _decided(beside)]
    for before, after in pairwise(decided):
        if before.answer != after.answer:
            yield before.value, after.value


def _sentence(
    field: str, values: Sequence[Beside], turns: Sequence[tuple[float, float]], names: Mapping[str, str]
) -> str:
    """Say where it turns, who is faster where, and by how much at the ends."""
    every = [beside.value for beside in values]
    decided = [beside for beside in values if _decided(beside)]
    if not decided:
        return _undecided(field, values, names)
    kinds = {beside.answer for beside in values}
    if len(kinds) == 1:
        said = f"{names[decided[0].answer]} is faster at every {_noun(field)} measured, {_range(every)}"
    else:
        stretches = [
            (answer, [beside.value for beside in stretch])
            for answer, stretch in groupby(values, key=lambda beside: beside.answer)
        ]
        said = ", ".join(f"{_who(answer, names)} at {_at(field, own)}" for answer, own in stretches)
    where = ", ".join(_at(field, turn) for turn in turns)
    opening = f"Crossover between {where}: " if turns else "No crossover: " if len(kinds) > 1 else ""
    ends = [decided[0], decided[-1]] if len(decided) > 1 else decided
    first, *last = [f"{each.ratio.value:.3g} times" for each in ends]
    at = [_at(field, [each.value]) for each in ends]
    long = f"{first} as long as {names['slower']} at {at[0]}"
    long += f" and {last[0]} as long at {at[1]}" if last else ""
    return f"{opening}{said}. {names['faster']} takes {long}."


def _who(answer: Answer, names: Mapping[str, str]) -> str:
    if answer in names:
        return f"{names[answer]} is faster"
    return "undecided" if answer == "undecided" else f"less than {RELEVANT:.0%} apart"


def _undecided(field: str, values: Sequence[Beside], names: Mapping[str, str]) -> str:
    every = _range([beside.value for beside in values])
    if all(beside.answer == "same" for beside in values):
        both = f"{names['slower']} and {names['faster']}"
        return f"{both} differ by less than {RELEVANT:.0%} at every {_noun(field)} measured, {every}."
    needed = max(beside.launches_needed or MOST_LAUNCHES + 1 for beside in values)
    advice = f"about {needed} rounds would detect a difference of {RELEVANT:.0%}"
    if all(beside.p is None for beside in values):
        advice = "one round shows no variation between launches, so measure more rounds"
    elif needed > MOST_LAUNCHES:
        advice = "launches vary too much to tell, so stop other processes"
    return f"Undecided at every {_noun(field)} measured, {every}: either may be faster; {advice}."


def _noun(field: str) -> str:
    return "number of " + field if field in SIZES else field.rpartition(".")[2]


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys((digits(values[0]), digits(values[-1]))))


def _at(field: str, values: Sequence[float]) -> str:
    """Return values in words; three or more as a range."""
    listed = _range(values) if len(values) > 2 else " and ".join(map(digits, values))
    if field in SIZES:
        return f"{listed} {field}"
    return f"{field.rpartition('.')[2]} {listed}"
