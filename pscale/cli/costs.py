"""What cases cost before any runs: memory, whether there is enough of it, and the time of launches."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pscale.analysis.text import plural, size_of
from pscale.config import Case
from pscale.errors import ResultsError
from pscale.launch.machine import Machine, Placement, place
from pscale.parallel.schedule_timing import pipeline_bubble
from pscale.training.prediction import Prediction, free_bytes, fullest_rank, predict

if TYPE_CHECKING:
    from pscale.runs.run_events import Ended

EMPTY_PROCESS_BYTES = 128 << 20  # of a rank before its model is built: Python, NumPy, MPI, Arrow, BLAS


@dataclass(frozen=True)
class MemoryFit:
    """The memory that one case needs, by its fullest rank, and that of the machine."""

    case: Case
    here: Machine
    placement: Placement

    @cached_property
    def fullest(self) -> Prediction:
        """The prediction for the rank that holds most."""
        return predict(self.case, fullest_rank(self.case))

    @property
    def is_known(self) -> bool:
        """Whether anything can be predicted: nothing is of the programs of others."""
        return not self.case.workload.command

    @property
    def model_flops(self) -> float:
        """FLOPs of one step of all ranks; 0 where they are not known."""
        return self.fullest.model_flops if self.is_known else 0.0

    @property
    def ranks(self) -> int:
        """Ranks of the node that has most of them."""
        return self.placement.ranks_per_node

    @property
    def needed_bytes(self) -> int:
        """Memory of the ranks of a node, as if each were the fullest, their processes included."""
        return self.ranks * (self.fullest.total_bytes + EMPTY_PROCESS_BYTES)

    @property
    def limit_bytes(self) -> int:
        """Memory of a node that the suite allows: by default, what it has; 0 where that is not known."""
        return self.case.launch.memory_limit_bytes or self.here.memory_bytes

    @property
    def refusal(self) -> str:
        """Say why the case is not started; empty if it is."""
        if not self.is_known or not self.limit_bytes or self.needed_bytes <= self.limit_bytes:
            return ""
        if self.case.ghost.gflops:  # which has room for what it sends and receives alone
            return ""
        given = self.case.launch.memory_limit_bytes
        node = " of a node" if self.here.nodes > 1 else ""
        return (
            f"needs {size_of(self.needed_bytes)} on {plural(self.ranks, 'rank')}{node}, more than "
            f"{size_of(self.limit_bytes)}, {'its launch.memory_limit' if given else 'the memory here'}: "
            "predicted only"
        )

    @property
    def shortage(self) -> str:
        """Say why the case is not started on this very machine: its files find no room; empty if they do."""
        needed_bytes = self.ranks * self.fullest.offloaded.file_bytes if self.is_known else 0
        free = free_bytes(self.case) if needed_bytes and self.here.nodes == 1 else None
        if free is None or needed_bytes <= free:
            return ""
        where = self.case.plan.offload_folder or "the folder for temporary files"
        return (
            f"offloads {size_of(needed_bytes)} on {plural(self.ranks, 'rank')}, more than the "
            f"{size_of(free)} free in {where}: choose another plan.offload_folder"
        )

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Return what is predicted of the case, as columns of the `cases` table."""
        if not self.is_known:
            return {}
        fullest = self.fullest
        memory = {f"predicted_{kind}_bytes": size for kind, size in fullest.memory_bytes.items()}
        return {
            "peak_memory_rank": fullest.rank,
            **memory,
            "predicted_offloaded_bytes": fullest.offloaded.file_bytes,
            "parameters": fullest.parameters,
            "predicted_bubble": pipeline_bubble(self.case),
        }


def refusals(fits: Mapping[str, MemoryFit], *, starts_here: bool) -> dict[str, str]:
    """Return why cases are not started, by their ids; raises PlanError if none can have its BLAS.

    A BLAS that is absent or files that find no room count only on the machine that starts the ranks.
    """
    from pscale.launch.blas import absent  # it takes long to load

    no_blas = absent([fit.case for fit in fits.values() if fit.is_known], os.environ) if starts_here else {}
    reasons = {
        case: fit.refusal or (starts_here and (no_blas.get(case) or fit.shortage)) or ""
        for case, fit in fits.items()
    }
    return {case: reason for case, reason in reasons.items() if reason}


def memory_fits(cases: Iterable[Case], here: Machine) -> dict[str, MemoryFit]:
    """Return the fit of each case, by its id; raises PlanError for one with too many ranks or threads."""
    return {case.id: MemoryFit(case, here, place(case, here)) for case in cases}


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
        from pscale.runs.journal import Journal  # it takes long to load
    for path in paths:
        try:
            journal = Journal.open(path.parent)
            there = journal.document["provenance"].get("machine", {})
            is_alike = all(here[key] == there.get(key) for key in _SAME)
            ended = [*journal.ends().values()] if is_alike else []
        except (ResultsError, KeyError):
            continue
        found = _means(ended, ("ok",)) | found
        failed = _means(ended, _OVER) | failed
    return failed | found


_SAME = ("cpu_model", "cores")
_OVER = ("failed", "invalid", "hung", "timeout")  # by themselves: others tell nothing of the next one


def _means(ended: Sequence[Ended], statuses: Sequence[str]) -> dict[str, float]:
    walls: dict[str, list[float]] = {}
    for end in ended:
        if end.status in statuses:
            walls.setdefault(end.case, []).append(end.wall_s)
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
