"""Answers to questions other than scaling: the best split of cores, the cost of injected delays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pscale.analysis.columns import Row, row
from pscale.analysis.frames import Run, shared_work
from pscale.analysis.messages import decide, split_name
from pscale.analysis.ranking import standing
from pscale.analysis.stats import Estimate, Sample, ratio
from pscale.analysis.threads import lost
from pscale.analysis.wording import duration, number, percent


def splits(
    planned: Mapping[str, Mapping[str, Any]],
    points: Sequence[Row],
    times: Mapping[str, Sample],
    threads: Sequence[Row],
) -> Iterator[Row]:
    """Yield the cases that do the same work on as many cores, split differently: fastest first."""
    groups: dict[tuple[int, str], list[Row]] = {}
    ranks: dict[int, set[int]] = {}
    for point in points:
        ranks.setdefault(point.cores, set()).add(point.ranks)
    for point in points:
        if len(ranks[point.cores]) > 1 and point.case in times and point.case in planned:
            work = shared_work(planned[point.case], "ranks", "threads", "plan")
            groups.setdefault((point.cores, work), []).append(point)
    of_case = {time.case: time for time in threads}
    for group, members in enumerate(groups.values()):
        if len({point.ranks for point in members}) > 1:
            yield from _ordered(group, members, times, of_case)


def _ordered(
    group: int, members: Sequence[Row], times: Mapping[str, Sample], threads: Mapping[str, Row]
) -> Iterator[Row]:
    order = sorted(members, key=lambda point: times[point.case].value)
    round_s = sum(point.wall_s or 0.0 for point in members)
    for point in order:
        found = standing(times[point.case], times[order[0].case])
        yield row(
            "splits",
            case=point.case,
            group=group,
            cores=point.cores,
            name=split_name(point),
            step_s=times[point.case].value,
            answer=found.answer,
            ratio=found.ratio,
            to_decide=found.to_decide(round_s),
            rounds_to_decide=found.rounds,
            lost=lost(threads[point.case]) if point.case in threads else "",
        )


def best_split(found: Sequence[Row]) -> str:
    """Say which split of a group is fastest, and why the others are not."""
    best, *others = found
    said = [
        f"{_named(each)} takes {number(each.ratio.value)} times as long."
        for each in others
        if each.answer == "slower"
    ]
    equal = [_named(each) for each in others if each.answer == "equal"]
    if equal:
        said.insert(0, f"As fast: {'; '.join(equal)}.")
    open_ = [each for each in others if each.answer == "undecided"]
    if not open_:
        return " ".join([f"Of the splits of {best.cores} cores, {_named(best)} is fastest here.", *said])
    first = f"Undecided: of the splits of {best.cores} cores, {_named(best)} was fastest."
    need = max(open_, key=lambda each: each.rounds_to_decide or math.inf).to_decide
    unsure = f"Perhaps as fast: {'; '.join(map(_named, open_))}. {decide(need)}"
    return " ".join([first, unsure, *said])


def _named(split: Row) -> str:
    said = f"; its cores lose {split.lost}" if split.lost else ""
    return f"{split.name} ({duration(split.step_s, 4)}{said})"


def delay_costs(run: Run, points: Sequence[Row], times: Mapping[str, Sample]) -> Iterator[Row]:
    """Yield the cost of every case with injected delays that was measured without them too."""
    found = {point.case: point for point in points if point.case in times}
    if not any(point.injected for point in found.values()):
        return
    works = {case: shared_work(run.planned[case], "inject", "jitter") for case in found}
    healthy = {works[case]: case for case, point in found.items() if not point.injected}
    injected_s = _injected_s(run)
    for case, point in found.items():
        twin = healthy.get(works[case]) if point.injected else None
        if twin is not None:
            every = int(run.planned[case].get("inject", {}).get("every", 1))
            yield _cost(point, times[case], times[twin], injected_s.get(case), often=every == 1)


def _cost(point: Row, delayed: Sample, healthy: Sample, injected_s: float | None, *, often: bool) -> Row:
    extra_s, known = delayed.mean - healthy.mean, ratio(delayed, healthy)
    bounds = (known.low - 1, known.high - 1) if often and known.low and known.high else (None, None)
    return row(
        "delay_costs",
        case=point.case,
        injected=point.injected,
        step_s=delayed.mean,
        healthy_s=healthy.mean,
        change=Estimate(value=extra_s / healthy.mean, low=bounds[0], high=bounds[1]),
        injected_s=injected_s,
        passed_on=extra_s / injected_s if injected_s else None,
    )


def delay_cost(cost: Row) -> str:
    """Say what injected delays cost."""
    change = f"{cost.change.value:+.1%}"
    if cost.change.low is not None and cost.change.high is not None:
        change += f", 95% interval {cost.change.low:+.1%} to {cost.change.high:+.1%}"
    passed_on = cost.passed_on
    shown = f": {percent(passed_on)} of the slowest rank's delay" if passed_on is not None else ""
    return (
        f"With an injected delay ({cost.injected}), a mean step takes {duration(cost.step_s, 4)} "
        f"instead of {duration(cost.healthy_s, 4)} ({change}){shown}."
    )


def _injected_s(run: Run) -> dict[str, float]:
    """Return, by case, the delay injected per step into the rank that got most: the mean over steps."""
    means = run.ends.dropna(subset="injected_s").groupby("case", observed=True)["injected_s"].mean()
    return {str(case): float(value) for case, value in means.items() if value > 0}
