"""Whether a case fits in the memory that there is: too large a case is predicted, and not started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pscale.cli.remembered import of_fullest_rank
from pscale.config import Case
from pscale.launch.machine import Machine, Placement, place
from pscale.parallel.offload import free_bytes
from pscale.parallel.schedule_timing import pipeline_bubble
from pscale.report.text import plural, size_of
from pscale.training.prediction import Prediction

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
        return of_fullest_rank(self.case)

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


def refusals(
    fits: Mapping[str, MemoryFit], no_blas: Mapping[str, str], *, starts_here: bool
) -> dict[str, str]:
    """Return why cases are not started, by their ids.

    A BLAS that is absent or files that find no room count only on the machine that starts the ranks.
    """
    reasons = {
        case: fit.refusal or (starts_here and (no_blas.get(case) or fit.shortage)) or ""
        for case, fit in fits.items()
    }
    return {case: reason for case, reason in reasons.items() if reason}


def memory_fits(cases: Iterable[Case], here: Machine) -> dict[str, MemoryFit]:
    """Return the fit of each case, by its id; raises PlanError for one with too many ranks or threads."""
    return {case.id: MemoryFit(case, here, place(case, here)) for case in cases}
