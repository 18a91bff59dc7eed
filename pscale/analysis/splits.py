"""Which split of the same cores into ranks and threads is fastest, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pscale.analysis.scaling import Point
from pscale.analysis.stats import Sample, ratio
from pscale.analysis.threads import ThreadTime, lost

_EQUAL = 1.005  # of the fastest step time: a difference that is not worth telling
# Fields in which splits of the same cores differ:
_OF_A_SPLIT = ("id", "label", "series", "base", "ranks", "threads", "plan")


def best_splits(
    planned: Mapping[str, Mapping[str, Any]],
    points: Sequence[Point],
    times: Mapping[str, Sample],
    threads: Sequence[ThreadTime],
) -> Iterator[str]:
    """Yield a sentence for every group of cases that do the same work on as many cores, split differently."""
    groups: dict[str, list[Point]] = {}
    ranks: dict[int, set[int]] = {}
    for point in points:
        ranks.setdefault(point.cores, set()).add(point.ranks)
    for point in points:
        if len(ranks[point.cores]) > 1 and point.case in times and point.case in planned:
            same = {name: value for name, value in planned[point.case].items() if name not in _OF_A_SPLIT}
            groups.setdefault(json.dumps([point.cores, same], sort_keys=True), []).append(point)
    of_case = {time.case: time for time in threads}
    for members in groups.values():
        if len({point.ranks for point in members}) > 1:
            yield _sentence(members, times, of_case)


def _sentence(
    members: Sequence[Point], times: Mapping[str, Sample], threads: Mapping[str, ThreadTime]
) -> str:
    best, *others = sorted(members, key=lambda point: times[point.case].value)
    tied, slower = [], []
    for other in others:
        found = ratio(times[other.case], times[best.case])
        if found.value < _EQUAL or (found.low is not None and found.low <= 1):
            tied.append(f"{_name(other)}{_why(other, threads)}")
            continue
        interval = " (95% interval {:.3g} to {:.3g})".format(*found.stated) if found.stated else ""
        slower.append(f"{_name(other)} takes {found.value:.3g} times as long{interval}{_why(other, threads)}")
    text = f"Of the splits of {best.cores} cores, {_name(best)} is fastest here{_why(best, threads)}"
    if tied:
        text += f". It cannot be told apart from {'; nor from '.join(tied)}"
    return ". ".join([text, *slower]) + "."


def _name(point: Point) -> str:
    ranks, threads = point.ranks, point.threads
    return f"{ranks} rank{'s' * (ranks > 1)} × {threads} thread{'s' * (threads > 1)}"


def _why(point: Point, threads: Mapping[str, ThreadTime]) -> str:
    time = threads.get(point.case)
    said = lost(time) if time else ""
    return f" (its cores lose {said})" if said else ""
