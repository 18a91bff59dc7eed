"""How long launches should take, before any has ended: as those of earlier runs, else as their FLOPs say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.cli.memory_fit import MemoryFit
from pscale.errors import ResultsError
from pscale.launch.machine import Machine

_CORE_FLOPS = 40e9  # a second, of a core of which nothing is known
_START_S = 1.5  # processes, data, matrix product
_NEWEST = 5  # runs of the suite that are looked at


def expected_s(fits: Collection[MemoryFit], machine: Machine, runs: Path) -> dict[str, float]:
    """Return seconds by case, at most its time limit; `runs` is the folder of the suite's earlier runs."""
    earlier = _earlier(runs, machine)
    guessed = {fit.case.id: earlier.get(fit.case.id) or _predicted(fit, machine) for fit in fits}
    return {fit.case.id: min(guessed[fit.case.id], fit.case.launch.time_limit_s) for fit in fits}


def _earlier(runs: Path, machine: Machine) -> dict[str, float]:
    """Return the mean time of launches by case, in the newest run that has some that ended well.

    Where no run has any, in the newest where they failed or took too long, as some are made to.
    """
    here, found, failed = machine.summary(), dict[str, float](), dict[str, float]()
    paths = sorted(runs.glob("*/run.json"), reverse=True)[:_NEWEST]
    if paths:
        from pscale.launch.journal import Journal  # it takes long to load
    for path in paths:
        try:
            journal = Journal.open(path.parent)
            there = journal.document["provenance"].get("machine", {})
            records = journal.records() if all(here[key] == there.get(key) for key in _SAME) else []
        except (ResultsError, KeyError):
            continue
        ended = [record for record in records if record["event"] == "ended"]
        found = _means(ended, ("ok",)) | found
        failed = _means(ended, _OVER) | failed
    return failed | found


_SAME = ("cpu_model", "cores")
_OVER = ("failed", "invalid", "hung", "timeout")  # by themselves: others tell nothing of the next one


def _means(ended: Sequence[Mapping[str, Any]], statuses: Sequence[str]) -> dict[str, float]:
    walls: dict[str, list[float]] = {}
    for record in ended:
        if record["status"] in statuses:
            walls.setdefault(record["case"], []).append(record["wall_s"])
    return {case: sum(times) / len(times) for case, times in walls.items()}


def _predicted(fit: MemoryFit, machine: Machine) -> float:
    case = fit.case
    steps = case.train.warmup + case.train.steps + 2 * case.timing.overhead_steps
    cores = min(case.ranks * case.threads, machine.all_cores)
    per_s = case.ranks * case.ghost.gflops * 1e9 or cores * _CORE_FLOPS
    inject, hang_s = case.inject, case.launch.hang_after_s
    if hang_s is not None and inject.delay_s > hang_s:
        return _START_S + hang_s
    delayed_s = case.train.steps * (inject.delay_s / inject.every + case.jitter.mean_s)
    return _START_S + fit.model_flops * steps / per_s + delayed_s
