"""How long launches should take, before any has ended: as those of earlier runs, else as their FLOPs say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pscale.cli.memory_fit import MemoryFit
from pscale.errors import ResultsError
from pscale.launch.machine import Machine

_CORE_FLOPS = 40e9  # a second, of a core of which nothing is known
_START_S = 1.5  # processes, data, matrix product
_BEFORE_MINUTES_S, _BEFORE_HOURS_S = 100, 6000
_NEWEST = 5  # runs of the suite that are looked at


def expected_s(fits: Iterable[MemoryFit], machine: Machine, runs: Path) -> dict[str, float]:
    """Return seconds by case; `runs` is the folder of the suite's earlier runs."""
    earlier = _earlier(runs, machine)
    return {fit.case.id: earlier.get(fit.case.id) or _predicted(fit, machine) for fit in fits}


def in_words(seconds: float) -> str:
    """Return a time that need not be exact."""
    if seconds < _BEFORE_MINUTES_S:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < _BEFORE_HOURS_S else f"{seconds / 3600:.1f} h"


def _earlier(runs: Path, machine: Machine) -> dict[str, float]:
    """Return the mean time of launches that ended well, by case, in the newest run that has the case."""
    here, found = machine.summary(), dict[str, float]()
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
        walls: dict[str, list[float]] = {}
        for record in records:
            if record["event"] == "ended" and record["status"] == "ok":
                walls.setdefault(record["case"], []).append(record["wall_s"])
        found = {case: sum(times) / len(times) for case, times in walls.items()} | found
    return found


_SAME = ("cpu_model", "cores")


def _predicted(fit: MemoryFit, machine: Machine) -> float:
    case = fit.case
    steps = case.train.warmup + case.train.steps + 2 * case.timing.overhead_steps
    cores = min(case.ranks * case.threads, machine.usable_cores * machine.nodes)
    return _START_S + fit.model_flops * steps / cores / _CORE_FLOPS
