"""The calls of training beside the same verbs by themselves, as a run of bare collectives measured them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.bandwidth import bare_calls
from pscale.analysis.frames import Run
from pscale.analysis.phases import CallTime
from pscale.analysis.read import of_unclear
from pscale.config import Plan, from_dict
from pscale.errors import UsageError

_ONE_TO_ONE = ("send", "receive")  # completed when their memory is next needed, not when they are over


@dataclass(frozen=True, kw_only=True)
class Bare:
    """What the network gives to calls of one verb on one axis of a case: the verb alone, at the same size."""

    case: str
    axis: str
    verb: str
    ranks: int  # of the axis
    call_bytes: float  # of a call: what a rank sends, mean
    bytes_per_s: float  # of the bare verb: payload over the time after all ranks have arrived
    share: float | None  # of that, what the calls of the case achieve; None if that is unclear


@dataclass(frozen=True)
class _Curve:
    """Seconds of a call over its size, both rising."""

    sizes: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def at(self, size: float) -> float:
        """Return the time of a size: that of the smallest below it, by bandwidth above the largest."""
        if size > self.sizes[-1]:
            return float(self.seconds[-1] * size / self.sizes[-1])
        return float(np.exp(np.interp(np.log(size), np.log(self.sizes), np.log(self.seconds))))


def beside_bare(
    calls: Sequence[CallTime], planned: Mapping[str, Mapping[str, Any]], bare: Run
) -> tuple[Bare, ...]:
    """Return the bare verb for each of `calls` that has one over as many ranks.

    That on the axis of the same name is preferred, since ranks lie alike there. Raises UsageError if `bare`
    is no run of bare collectives.
    """
    return tuple(_found(calls, planned, _curves(bare)))


def where(bare: Run, elsewhere: Sequence[str]) -> str:
    """Say which run the bare verbs are of, and what may keep them from being compared."""
    said = f"Bandwidths of bare collectives are from run {bare.name}"
    if elsewhere:
        said += f", which had another {' and '.join(elsewhere)}"
    if bare.cases["oversubscribed"].eq(True).any():
        said += ", in which ranks share cores"
    return f"{said}."


def _found(
    calls: Sequence[CallTime],
    planned: Mapping[str, Mapping[str, Any]],
    curves: Mapping[tuple[str, str, int], _Curve],
) -> Iterator[Bare]:
    by_any = {(verb, ranks): curve for (_, verb, ranks), curve in curves.items()}
    for call in calls:
        ranks = _ranks(planned[call.case], call.axis)
        curve = curves.get((call.axis, call.verb, ranks)) or by_any.get((call.verb, ranks))
        if curve is None or not call.bytes:
            continue
        size = call.bytes / call.count
        given = size / curve.at(size)
        yield Bare(
            case=call.case,
            axis=call.axis,
            verb=call.verb,
            ranks=ranks,
            call_bytes=size,
            bytes_per_s=given,
            share=call.bytes_per_s / given if call.bytes_per_s else None,
        )


def _ranks(planned: Mapping[str, Any], axis: str) -> int:
    """Return how many ranks an axis such as dp+cp has."""
    sizes = from_dict(Plan, planned.get("plan", {})).sizes
    return prod(sizes.get(dim, 1) for dim in axis.split("+"))


def calls_alone(bare: Run) -> pd.DataFrame:
    """Return the blocking calls of bare collectives by rank, step and verb.

    `seconds` are those of `count` calls, `ranks` those of the axis. Raises UsageError for a run without any.
    """
    rows = bare_calls(bare)
    if rows.empty:
        raise UsageError(f"--bare: {bare.path} has no bare collectives; `pscale run collectives`")
    rows = rows[(rows["phase"] == "forward") & ~rows["verb"].isin(_ONE_TO_ONE)]
    seconds = rows["transfer_s"] + rows["wait_s"].where(of_unclear(rows, bare.unclear), 0.0)
    axes = rows[["case", "axis"]].drop_duplicates()
    sizes = {(case, axis): _ranks(bare.planned[case], axis) for case, axis in axes.itertuples(index=False)}
    ranks = [sizes[at] for at in zip(rows["case"], rows["axis"], strict=True)]
    return rows.assign(seconds=seconds, ranks=ranks)


def _curves(bare: Run) -> dict[tuple[str, str, int], _Curve]:
    """Return what a call takes over its size, by axis, verb and ranks of the axis."""
    by = ["case", "axis", "verb", "ranks"]
    sums = calls_alone(bare).groupby(by)[["seconds", "bytes", "count"]].sum().reset_index()
    sums = sums[sums["seconds"] > 0]
    sums["size"], sums["seconds"] = sums["bytes"] / sums["count"], sums["seconds"] / sums["count"]
    curves = {}
    for _, of_verb in sums.groupby(["axis", "verb", "ranks"]):
        axis, verb, ranks = of_verb[["axis", "verb", "ranks"]].iloc[0]
        curves[axis, verb, int(ranks)] = _curve(of_verb)
    return curves


def _curve(of_verb: pd.DataFrame) -> _Curve:
    """Return the curve through the times of a verb; a larger message never takes less than a smaller one."""
    known = of_verb.groupby("size")["seconds"].median().sort_index()
    return _Curve(known.index.to_numpy(np.float64), np.maximum.accumulate(known.to_numpy(np.float64)))
