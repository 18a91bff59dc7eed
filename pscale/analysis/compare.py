"""Pairs of cases that are tested at once: of two runs, variants of one run, variants over a swept number.

Two runs are compared case by case. The variants of a run are its series: each case is compared with the first
of its size and work. Over a swept number a variant is a set of cases that differ in that number alone, and in
others that follow it: "tp 2 or dp 2, from which batch?" Two of them are compared if they have as many cores
and equal numbers but for their plans: value by value, launches in pairs of the same round. A crossover lies
between two values that are decided for different variants.

Launches are brought to the same pace of the machine where both cases compute with the same means, so that a
fixed piece of work costs both the same: else a difference in pace may be theirs (`unlike`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from pscale.analysis import scaling
from pscale.analysis.columns import Row, row
from pscale.analysis.difference import (
    Difference,
    at_same_pace,
    difference,
    holm,
    of_variants,
    paced,
    paired,
)
from pscale.analysis.environment import Change, changes
from pscale.analysis.frames import Run, grouped, is_program
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
from pscale.analysis.stats import Sample
from pscale.analysis.wording import in_common
from pscale.config import JOINT
from pscale.config.case import UNCOUNTED
from pscale.errors import UsageError

RELEVANT = 0.05
_OF_A_PLAN = ("plan.", "train.micro_batches")  # numbers in which variants may differ
_SAME = ("scaling", "model.kind", "data.kind")  # texts in which they may not

Method = Callable[[Sample, Sample], Difference]
Side = tuple[Run, str, Sample]  # a case of a run


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Run B against run A, or variants of one run: rows of the frames of these names."""

    a: str
    b: str
    relevant: float
    compared: Sequence[Row]
    missing: Sequence[Row]
    changes: Sequence[Change]
    apart_s: float | None  # between the starts of two runs; None of one, whose launches are pairs


def tested(pairs: Sequence[tuple[Side, Side]], method: Method, relevant: float) -> list[dict[str, Any]]:
    """Return what is known of pairs that are tested at once, B against A, for rows of `compared`.

    `relevant` is the least relative difference that matters: where one as small could have been seen and none
    was, the two are equal; where it could not, that is undecided.
    """
    differences = [_difference(method, *pair) for pair in pairs]
    values = [one.p for one, _ in differences if one.p is not None]
    corrected = iter(holm(values))
    rows = []
    for (a, _), (one, means) in zip(pairs, differences, strict=True):
        p = None if one.p is None else next(corrected)
        detectable = one.detectable_with(len(values))
        rows.append(
            {
                **vars(one),
                "p_corrected": p,
                "detectable": detectable,
                "launches_needed": one.launches_for(relevant, len(values)),
                "answer": one.judge(p, detectable, relevant),
                "unlike": means or (),
                "lacks_pace": means is None and not is_program(a[0].planned.get(a[1], {})),
            }
        )
    return rows


def _difference(method: Method, a: Side, b: Side) -> tuple[Difference, tuple[str, ...] | None]:
    """Return the difference, and what keeps the pace of the machine from being used; None without a pace."""
    (run, case, ours), (other_run, other, theirs) = a, b
    if not paced(ours, theirs):
        return method(ours, theirs), None
    means = unlike(run, case, other_run, other)
    if run is other_run and not means and of_variants(ours, theirs):
        means = ("pace, in all rounds",)
    return method(ours, theirs) if means else at_same_pace(method, ours, theirs), means


def compare(a: Run, b: Run, relevant: float = RELEVANT) -> Comparison:
    """Compare the step times of all cases that both runs have measured, matched by id, else by label.

    Cases whose steps do other work are not compared: their times say nothing of speed.
    """
    times = [scaling.step_samples(run) for run in (a, b)]
    pairs, labels = _pairs(a, b), labels_of(a)
    both = {one: other for one, other in pairs.items() if one in times[0] and other in times[1]}
    alike = [(one, other) for one, other in both.items() if not _other_work(a, one, b, other)]
    begun = [run.cases["started_unix_s"].min() for run in (a, b)]
    results = tested(_sides(a, b, alike, times), difference, relevant)
    return Comparison(
        a=name_of(a),
        b=name_of(b),
        relevant=relevant,
        compared=[
            row("compared", **each, case=one, label=labels[one], matched_by="id" if one == other else "label")
            for each, (one, other) in zip(results, alike, strict=True)
        ],
        missing=[*_missing(a, b, pairs, times), *_not_compared(a, b, both.items())],
        changes=changes(a, b, both.items()),
        apart_s=abs(begun[1] - begun[0]),
    )


def _sides(
    a: Run, b: Run, pairs: Iterable[tuple[str, str]], times: Sequence[Mapping[str, Sample]]
) -> list[tuple[Side, Side]]:
    return [((a, one, times[0][one]), (b, other, times[1][other])) for one, other in pairs]


def _pairs(a: Run, b: Run) -> dict[str, str]:
    """Return which case of B each case of A is compared with: the same work, else the same name."""
    ours, theirs = labels_of(a), labels_of(b)
    pairs = {case: case for case in ours if case in theirs}
    by_label = {label: case for case, label in theirs.items() if case not in pairs}
    named = {case: by_label[label] for case, label in ours.items() if case not in pairs and label in by_label}
    return {case: (pairs | named)[case] for case in ours if case in pairs or case in named}


def _missing(a: Run, b: Run, pairs: Mapping[str, str], times: list[dict[str, Sample]]) -> Iterator[Row]:
    backward = {other: one for one, other in pairs.items()}
    sides = (("B", a, b, pairs), ("A", b, a, backward))
    for (lacking, run, other, link), measured, measured_there in zip(
        sides, times, reversed(times), strict=True
    ):
        for case, label in labels_of(run).items():
            if case in measured and link.get(case) not in measured_there:
                yield _lacking(case, label, lacking, reason(other, link.get(case)))


def _lacking(case: str, label: str, run: str, why: str) -> Row:
    return row("missing", case=case, label=label, run=run, reason=why)


def _not_compared(a: Run, b: Run, pairs: Iterable[tuple[str, str]]) -> Iterator[Row]:
    """Yield the cases of one name whose steps do other work in B."""
    labels = labels_of(b)
    for one, other in pairs:
        if differing := _other_work(a, one, b, other):
            why = f"a step does different work: {', '.join(differing)}"
            yield _lacking(other, labels[other], "both", why)


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
    ended = run.cases[(run.cases["case"] == case) & ~run.cases["status"].isin(UNCOUNTED)]
    if not len(ended):
        return "not measured yet"
    first = ended.iloc[0]
    return f"{first['status']}: {first['reason'] or 'no reason recorded'}"


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
    times, labels = scaling.step_samples(run), labels_of(run)
    pairs = _pairs_of_variants(run, times)
    a, b = _names(run, [(one, other) for other, one in pairs.items()])
    both = [(one, other) for other, one in pairs.items() if one in times and other in times]
    results = tested(_sides(run, run, both, (times, times)), paired, relevant)
    return Comparison(
        a=f"{name_of(run)}: {a or 'the first case of each size and work'}",
        b=f"{name_of(run)}: {b}",
        relevant=relevant,
        compared=[
            row(
                "compared",
                **each,
                case=one,
                label=labels[other] if a else f"{labels[other]} against {labels[one]}",
                matched_by="size",
            )
            for each, (one, other) in zip(results, both, strict=True)
        ],
        missing=[*_missing_of_variants(run, pairs, times)],
        changes=changes(run, run, both),
        apart_s=None,
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
        if (one := next((reference for reference in references if alike(reference, case)), None)) is not None:
            pairs[case] = one
        else:
            references.append(case)
    return pairs


def _names(run: Run, pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
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


def _missing_of_variants(run: Run, pairs: Mapping[str, str], times: Mapping[str, Sample]) -> Iterator[Row]:
    labels = labels_of(run)
    for case in run.planned:
        if case not in pairs and case not in pairs.values():
            yield _lacking(case, labels[case], "A", "no other case of its ranks, threads and work")
    for other, one in pairs.items():
        for side, case in (("A", one), ("B", other)):
            if case not in times:
                yield _lacking(case, labels[case], side, reason(run, case))


def _series(run: Run, case: str) -> str:
    return str(run.planned[case].get("series", ""))


def _size(run: Run, case: str) -> Size:
    planned = run.planned[case]
    return int(planned["ranks"]), int(planned.get("threads", 1))


def _batch(run: Run, case: str) -> object:
    return (run.planned[case].get("train") or {}).get("batch")


_OF_RANKS = {
    "blas": "BLAS",
    "blas_version": "BLAS",
    "blas_architecture": "BLAS",
    "blas_threading": "BLAS",
    "threads": "threads",
    "kernels": "kernels",
    "kernel_threads": "threads",
    "cpus": "pinning",
}
_OF_LAUNCH = {"bind": "pinning", "omp": "pinning", "kernels": "kernels", "env": "environment"}


def unlike(a: Run, case: str, b: Run, other: str) -> tuple[str, ...]:
    """Return in what the means of a case of A differ from those of one of B, in words."""
    return tuple(dict.fromkeys(_differing_means(a, case, b, other)))


def _differing_means(a: Run, case: str, b: Run, other: str) -> Iterator[str]:
    if a.machine.get("cpu_model") != b.machine.get("cpu_model"):
        yield "processor"
    left, right = (run.ranks[run.ranks["case"] == name] for run, name in ((a, case), (b, other)))
    if set(left["rank"]) != set(right["rank"]):
        yield "ranks"
    for column, word in _OF_RANKS.items():
        if _values(left[column]) != _values(right[column]):
            yield word
    launches = [run.planned.get(name, {}).get("launch", {}) for run, name in ((a, case), (b, other))]
    for field, word in _OF_LAUNCH.items():
        if launches[0].get(field) != launches[1].get(field):
            yield word


def _values(column: Any) -> set[str]:
    return set(column.dropna().astype(str))


class _Variant(NamedTuple):
    name: str
    common: str
    points: Mapping[float, Row]


def crossings(run: Run, points: Sequence[Row], times: Mapping[str, Sample]) -> Iterator[dict[str, Any]]:
    """Yield the variants of a run beside the first of each group, over the number that it sweeps most."""
    cases = of_cases(run)
    by_case = {point.case: point for point in points}
    measured = [by_case[case] for case in cases if case in times]
    swept = [
        (name, groups) for name in swept_numbers(run, cases) if (groups := _variants(name, measured, cases))
    ]
    if swept:
        name, groups = max(swept, key=lambda each: (each[0] not in SIZES, _longest(each[1])))
        for reference, *others in groups:
            for variant in others:
                if len(reference.points.keys() & variant.points.keys()) > 1:
                    yield from _crossing(run, name, reference, variant, times)


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
            name=JOINT.join(part for part in parts_of_one if part not in common)
            or _growing(cases[members[-1].case])
            or members[0].series,
            common=JOINT.join(common),
            points={cases[point.case][name]: point for point in members},
        )
        for parts_of_one, members in zip(parts, group, strict=True)
    ]


def _growing(case: Case) -> str:
    """Return the axes that all ranks are on."""
    return " ".join(
        axis for degree, axis in DEGREES.items() if case.get(degree) == case["ranks"] and case["ranks"] > 1
    )


def _crossing(
    run: Run, name: str, reference: _Variant, variant: _Variant, times: Mapping[str, Sample]
) -> Iterator[dict[str, Any]]:
    """Yield a row a value of the number that both have, in order."""
    shared = sorted(reference.points.keys() & variant.points.keys())
    pairs = [(reference.points[value].case, variant.points[value].case) for value in shared]
    results = tested(_sides(run, run, pairs, (times, times)), paired, RELEVANT)
    before: tuple[str, float] | None = None  # the last answer that is decided, and its value
    for value, (one, other), result in zip(shared, pairs, results, strict=True):
        turns = decided(result["answer"]) and before is not None and before[0] != result["answer"]
        yield {
            "case": other,
            "field": name,
            "common": reference.common,
            "reference": reference.name,
            "variant": variant.name,
            "reference_case": one,
            "value": value,
            "reference_step_s": result["a_s"],
            "step_s": result["b_s"],
            "ratio": result["ratio"],
            "rounds": result["a_launches"],
            "p": result["p_corrected"],
            "answer": result["answer"],
            "rounds_needed": result["launches_needed"],
            "turns_after": before[1] if turns and before else None,
        }
        if decided(result["answer"]):
            before = result["answer"], value


def crossovers(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return the two values that each crossover of two variants lies between."""
    return [(row.turns_after, row.value) for row in rows if row.turns_after is not None]


def decided(answer: str) -> bool:
    """Tell whether one of the two is faster."""
    return answer in ("faster", "slower")
