"""What the routers of a job decided, step by step: how even the experts' work is, how much is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.config import Model
from pscale.mesh.axis import Axis
from pscale.nn.routing import Tally


class ExpertLoad:
    """The choices that this rank's routers made in every step, as `copies` ranks do alike.

    Without routers it notes nothing.
    """

    def __init__(self, tallies: Sequence[Tally], model: Model, steps: int, copies: int = 1):
        self._tallies, self._copies = tallies, copies
        blocks, experts = (model.layers, model.experts) if model.kind == "moe" else (0, 0)
        self._loads = np.zeros((steps, blocks, experts), np.int64)
        self._dropped = np.zeros((steps, blocks), np.int64)

    def note(self, step: int) -> float:
        """Keep what step `step` did; return this rank's part of its auxiliary loss."""
        loss = 0.0
        for tally in self._tallies:
            self._loads[step, tally.block] = tally.loads
            self._dropped[step, tally.block] = tally.dropped
            loss += tally.loss
            tally.clear()
        return loss / self._copies

    def alike(self, ranks: int) -> bool:
        """Tell whether `ranks` ranks that have the same loss also have the same part of the auxiliary one."""
        return not self._tallies or self._copies == ranks

    def columns(self, world: Axis, steps: range) -> dict[str, float | None]:
        """Return columns of the `cases` table over `steps`; collective.

        `dropped_share`: choices that found no place over all; `expert_imbalance`: choices of the most
        popular expert over those of the average one, a mean over steps and blocks.
        """
        if not self._loads.size:
            return {"dropped_share": None, "expert_imbalance": None}
        loads, dropped = (array[steps.start : steps.stop].copy() for array in (self._loads, self._dropped))
        world.all_reduce(loads)
        world.all_reduce(dropped)
        routed = loads[loads.any(axis=2)]  # of blocks that have experts
        return {
            "dropped_share": float(dropped.sum() / loads.sum()),
            "expert_imbalance": float(np.mean(routed.max(axis=1) / routed.mean(axis=1))),
        }
