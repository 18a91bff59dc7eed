"""Two sentences on a series: how well its largest case scales, and what costs it most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pscale.analysis.axes import AxisTree
from pscale.analysis.injected import warning
from pscale.analysis.late import Late, sentence
from pscale.analysis.losses import Losses
from pscale.analysis.phases import PhaseTime, RankTime
from pscale.analysis.remedy import Planned, remedy
from pscale.analysis.scaling import Point
from pscale.analysis.threads import ThreadTime, lost

_VAGUE = 0.30  # an interval of an efficiency wider than this
_SMALL = 0.01  # a loss below this share of the step is not worth a cause
_TELLING = 0.25  # of the largest loss: what is waited for one rank, if that is to explain it

_OF_AXES = ("serialisation", "transfer")  # losses of which every axis has its factor
_EVERYWHERE = {  # losses that are in no phase more than in others
    "scaling": (
        "computation scaling",
        ": the same work takes more core time than in the base case, "
        "as when cores share memory bandwidth, caches or clock",
    ),
    "copy": ("copying", " into and out of communication buffers"),
    "offload": ("waiting for what is offloaded", ": the file is read no faster than the step needs it"),
    "unaccounted": ("unaccounted time", ", which belongs to no phase"),
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to read first about one series."""

    series: str
    case: str  # the largest that was measured; empty without any
    efficiency: str
    loss: str
    cause: str  # threads scaling imbalance serialisation transfer together copy offload unaccounted, or empty
    remedy: str = ""  # what helps against it


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a step costs and where: of all cases, or of one."""

    losses: Mapping[str, Losses]
    phases: Sequence[PhaseTime]
    ranks: Sequence[RankTime]
    axes: Sequence[AxisTree]
    late: Sequence[Late] = ()
    threads: Sequence[ThreadTime] = ()

    def of(self, case: str) -> Costs:
        """Return those of one case."""
        phases, ranks, axes, late, threads = (found.get(case, []) for found in self._by_case)
        losses = {case: self.losses[case]} if case in self.losses else {}
        return Costs(losses=losses, phases=phases, ranks=ranks, axes=axes, late=late, threads=threads)

    @cached_property
    def _by_case(self) -> tuple[dict[str, list[Any]], ...]:
        """Phases, ranks, axes, late ranks and threads, each by case."""
        found: list[dict[str, list[Any]]] = []
        for parts in (self.phases, self.ranks, self.axes, self.late, self.threads):
            by_case: dict[str, list[Any]] = {}
            for part in parts:
                by_case.setdefault(part.case, []).append(part)
            found.append(by_case)
        return tuple(found)


def verdict(series: str, points: Sequence[Point], costs: Costs, planned: Mapping[str, Planned]) -> Verdict:
    """Return the verdict on the points of one series; `planned` are the settings of its cases."""
    good = [point for point in points if point.step_s]
    if not good:
        return Verdict(series=series, case="", efficiency=_nothing(points), loss="", cause="")
    largest = max(good, key=lambda point: (point.cores, point.ranks))
    cause, text = _largest_loss(costs.of(largest.case))
    return Verdict(
        series=series,
        case=largest.case,
        efficiency=_injected(largest) + _efficiency(largest, points, good),
        loss=text,
        cause=cause,
        remedy=""
        if largest.injected
        else _remedy(cause, costs.of(largest.case).axes, planned.get(largest.case, {})),
    )


def _injected(largest: Point) -> str:
    return f"{warning(largest)} " if largest.injected else ""


def _nothing(points: Sequence[Point]) -> str:
    if all(point.status == "pending" for point in points):
        return "Nothing has been measured yet."
    return "Nothing was measured: no case ended well. The reasons are listed under failed and invalid cases."


def _efficiency(largest: Point, points: Sequence[Point], good: Sequence[Point]) -> str:
    base = next((point for point in points if point.base), None)
    if largest.scaling == "throughput":
        return f"At {size(largest)} it trains {_throughput(largest)}; the suite compares no sizes."
    if base is None or base.step_s is None:
        failed = base.label if base else "none"
        return (
            f"The base case ({failed}) was not measured, so there is no speed-up and no efficiency; "
            f"at {size(largest)} it trains {_throughput(largest)}."
        )
    if len(good) == 1:
        return (
            f"Only one size was measured ({size(largest)}, {_throughput(largest)}), "
            "so nothing can be said about scaling."
        )
    if largest.efficiency is None:
        return f"The efficiency at {size(largest)} is not known."
    known = largest.efficiency
    interval, bounds = "", known.stated
    if bounds is not None:
        uncertain = ", which is too uncertain to judge by" if bounds[1] - bounds[0] > _VAGUE else ""
        interval = f" (95% interval {bounds[0]:.0%} to {bounds[1]:.0%}){uncertain}"
    elif known.low is not None:
        interval = f" (its launches, {largest.launches} here, differ too much for an interval)"
    else:
        interval = " (no interval: a case has one launch only)"
    compared = (
        f"{largest.scaling} scaling keeps {known.value:.0%} of the efficiency of {size(base)}{interval}"
    )
    missing = [point for point in points if point.cores > largest.cores and not point.step_s]
    tail = (
        f"; {len(missing)} larger {'case has' if len(missing) == 1 else 'cases have'} no result"
        if missing
        else ""
    )
    return f"At {size(largest)}, {compared}{tail}."


def _largest_loss(costs: Costs) -> tuple[str, str]:
    if not costs.losses:
        return "", "The steps have no breakdown, so the cause is not known."
    (losses,) = costs.losses.values()
    shares = {
        name: getattr(losses, name)
        for name in (
            *("threads", "scaling", "imbalance", "serialisation", "transfer", "together", "copy", "offload"),
            "unaccounted",
        )
    }
    cause = max(shares, key=lambda name: shares[name])
    if shares[cause] < _SMALL:
        return "", f"No single loss reaches {_SMALL:.0%} of the step."
    costs = replace(costs, late=[late for late in costs.late if late.step_share >= _TELLING * shares[cause]])
    name, explanation = _explained(cause, costs)
    if costs.late and cause not in (
        "imbalance",
        "serialisation",
    ):  # one stopped in a call prolongs the transfer
        explanation += f". {sentence(costs.late[0])}"
    return cause, f"The largest loss is {name}, {shares[cause]:.0%} of the step{explanation}."


def _remedy(cause: str, axes: Sequence[AxisTree], planned: Planned) -> str:
    return remedy(cause, _costliest(axes, cause).axis if axes and cause in _OF_AXES else "", planned)


def _explained(cause: str, costs: Costs) -> tuple[str, str]:
    """Return the name of a loss, and where it is."""
    match cause:
        case "imbalance":
            return "load imbalance", _slowest(costs.ranks)
        case "threads":
            return "idle threads", f": the cores of a rank lose {lost(costs.threads[0])}"
        case "serialisation":
            phase = max(costs.phases, key=lambda phase: phase.ideal_wait_s or phase.wait_s).phase
            return f"serialisation in {phase}{_on_axis(costs.axes, 'serialisation')}", _by_turns(costs)
        case "transfer":
            place = max(costs.phases, key=_network_s).phase + _on_axis(costs.axes, "transfer")
            return f"transfer in {place}", ": communication itself, when every rank has come to it"
        case "together":
            phase = max(costs.phases, key=lambda phase: phase.together_s).phase
            return f"communication in {phase}", ": waiting or transfer, which the clocks cannot tell apart"
    return _EVERYWHERE[cause]


def _network_s(phase: PhaseTime) -> float:
    """Return what an ideal network would save; transfer alone where that is not known."""
    return phase.transfer_s + (phase.wait_s - phase.ideal_wait_s if phase.ideal_wait_s else 0.0)


def _by_turns(costs: Costs) -> str:
    """Say why ranks wait for each other though none is slower than the others for long."""
    if costs.late:
        said = sentence(costs.late[0])
        return f": {said[0].lower()}{said[1:]}"
    if costs.axes and _costliest(costs.axes, "serialisation").axis == "pp":
        return ": the stages of a pipeline need each other's results in turn, which is its bubble"
    return ": ranks are late by turns, which is noise rather than imbalance"


def _on_axis(axes: Sequence[AxisTree], factor: str) -> str:
    """Name the axis that loses most by a factor, if there are several."""
    return f" on {_costliest(axes, factor).axis}" if len(axes) > 1 else ""


def _costliest(axes: Sequence[AxisTree], factor: str) -> AxisTree:
    return min(axes, key=lambda axis: getattr(axis, factor) or axis.parallel)


def _slowest(ranks: Sequence[RankTime]) -> str:
    if not ranks:
        return ""
    slow = ranks[0]
    host = f" on {slow.host}" if slow.host else ""
    return (
        f": rank {slow.rank}{host} computes {slow.excess:.0%} longer than a typical rank, "
        f"most of it in {slow.phase}, and the others wait for it"
    )


def size(point: Point) -> str:
    """Return the size of a case in words."""
    ranks = f"{point.ranks} rank{'s' if point.ranks > 1 else ''}"
    return ranks if point.threads == 1 else f"{ranks} x {point.threads} threads"


def _throughput(point: Point) -> str:
    rate = point.samples_per_s
    return f"{rate.value:.4g} samples/s" if rate else "at an unknown rate"
