"""What steps decide beside the loss: the routers' choices, the scale of the loss, whether one is skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from pscale.config import Case, Model
from pscale.mesh.axis import Axis
from pscale.nn.loss import LossScale
from pscale.nn.routing import RouterStats


class ExpertLoad:
    """The choices that this rank's routers made in every step, as `copies` ranks do alike.

    Without routers it notes nothing.
    """

    def __init__(self, routers: Sequence[RouterStats], model: Model, steps: int, copies: int = 1):
        self._routers, self._copies = routers, copies
        blocks, experts = (model.layers, model.experts) if model.kind == "moe" else (0, 0)
        self._loads = np.zeros((steps, blocks, experts), np.int64)
        self._dropped = np.zeros((steps, blocks), np.int64)

    def note(self, step: int) -> float:
        """Keep what step `step` did; return this rank's part of its auxiliary loss."""
        loss = 0.0
        for stats in self._routers:
            self._loads[step, stats.block] = stats.loads
            self._dropped[step, stats.block] = stats.dropped
            loss += stats.loss
            stats.clear()
        return loss / self._copies

    def alike(self, ranks: int) -> bool:
        """Tell whether `ranks` ranks that have the same loss also have the same part of the auxiliary one."""
        return not self._routers or self._copies == ranks

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


class LossScaling(LossScale):
    """How many times larger the loss of a job is made: 1, whatever comes of it, unless it is `watched`.

    Then gradients that overflow are noticed. Every rank has the norm of the whole gradient, so that all of
    them skip the same steps.
    """

    def __init__(self, case: Case, steps: int, routers: Sequence[RouterStats] = ()):
        asked, of = case.loss_scale, case.precision
        self.watched, self._routers = asked != "none", routers
        if asked == "dynamic":
            super().__init__(of.initial_scale, of.growth_interval)
        else:
            super().__init__(float(asked) if self.watched else 1.0)
        self._scales, self._skipped = np.ones(steps), np.zeros(steps, np.bool_)

    @property
    def state(self) -> tuple[float, int] | None:
        """What the next step depends on; None where the scale stays 1."""
        return (self.value, self.good) if self.watched else None

    @state.setter
    def state(self, state: tuple[float, int] | None) -> None:
        if self.watched and state:
            self.value, self.good = state

    def begin(self, step: int) -> None:
        """Let the gradients of step `step` come at the scale."""
        self._scales[step] = self.value
        for stats in self._routers:
            stats.scale = self.value

    def accepts(self, step: int, norm: float) -> bool:
        """Tell whether the gradients of step `step` are numbers; choose the scale of the next step."""
        if not self.watched:
            return True
        self._skipped[step] = not math.isfinite(norm)
        self.update(overflowed=bool(self._skipped[step]))
        return not self._skipped[step]

    def tolerating(self) -> AbstractContextManager[Any]:
        """Let nobody be warned of an overflow that is looked for."""
        return np.errstate(over="ignore", invalid="ignore") if self.watched else nullcontext()

    def columns(self, stop: int) -> dict[str, Any]:
        """Return columns of the `cases` table over the steps before `stop`; null where none is watched.

        `loss_scales`: of every step; `skipped_steps`: the numbers of those whose gradients overflowed.
        """
        if not self.watched:
            return {"loss_scales": None, "skipped_steps": None}
        skipped = np.flatnonzero(self._skipped[:stop])
        return {"loss_scales": self._scales[:stop].tolist(), "skipped_steps": skipped.tolist()}
