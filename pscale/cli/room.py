"""What memory a case needs beside what there is: too large a case is predicted, and not started."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pscale.config import Case
from pscale.launch.machine import Machine
from pscale.parallel.dry_run import pipeline_bubble
from pscale.parallel.memory import fullest_rank
from pscale.parallel.predict import Prediction, predict
from pscale.report.text import plural, size_of

EMPTY_PROCESS_BYTES = 128 << 20  # of a rank before its model is built: Python, NumPy, MPI, Arrow, BLAS


@dataclass(frozen=True)
class Room:
    """The memory of one case, by its fullest rank, and of the machine."""

    case: Case
    here: Machine

    @cached_property
    def fullest(self) -> Prediction:
        """The prediction for the rank that holds most."""
        return predict(self.case, fullest_rank(self.case))

    @property
    def needed_bytes(self) -> int:
        """Memory of all ranks, as if each were the fullest, their processes included."""
        return self.case.ranks * (self.fullest.total_bytes + EMPTY_PROCESS_BYTES)

    @property
    def limit_bytes(self) -> int:
        """Memory that the suite allows: by default, that of the machine."""
        return self.case.launch.memory_limit_bytes or self.here.memory_bytes

    @property
    def refusal(self) -> str:
        """Say why the case is not started; empty if it is."""
        if self.needed_bytes <= self.limit_bytes:
            return ""
        given = self.case.launch.memory_limit_bytes
        return (
            f"needs {size_of(self.needed_bytes)} on {plural(self.case.ranks, 'rank')}, more than "
            f"{size_of(self.limit_bytes)}, {'its launch.memory_limit' if given else 'the memory here'}: "
            "predicted only"
        )

    def columns(self) -> dict[str, Any]:
        """Return what is predicted of the case, as columns of the `cases` table."""
        fullest = self.fullest
        memory = {f"predicted_{kind}_bytes": size for kind, size in fullest.memory_bytes.items()}
        return {
            "fullest_rank": fullest.rank,
            **memory,
            "parameters": fullest.parameters,
            "predicted_bubble": pipeline_bubble(self.case),
        }
