"""What steps decide beside the loss: the routers' choices, the scale of the loss, whether one is skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from pscale.config import Model
from pscale.mesh.axis import Axis
from pscale.nn.loss import LossScale
from pscale.nn.routing import RouterStats


class ExpertLoad:
    """The choices that this rank's routers made in every step, as `copies` ranks do alike.

    Without routers it notes nothing.
    """

    def __init__(self, routers: Sequence[RouterStats], model: Model, steps: int, copies: int = 1):
        self._tallies, self._copies = routers, copies
        blocks, experts = (model.layers, model.experts) if model.kind == "moe" else (0, 0)
        self._loads = np.zeros((steps, blocks, experts), np.int64)
        self._dropped = np.zeros((steps, blocks), np.int64)

    def note(self, step: int) -> float:
        """Keep what step `step` did; return this rank's part of its auxiliary loss."""
        loss = 0.0
        for stats in self._tallies:
            self._loads[step, stats.block] = stats.loads
            self._dropped[step, stats.block] = stats.dropped
            loss += stats.loss
            stats.clear()
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


class LossScaling:
    """The loss of a job, `rule` times larger; without a rule it is as large as it is, whatever comes of it.

    Every rank has the norm of the whole gradient, so that all of them skip the same steps.
    """

    def __init__(self, rule: LossScale | None, steps: int, routers: Sequence[RouterStats] = ()):
        self._rule, self._tallies = rule, routers
        self._scales, self._skipped = np.ones(steps), np.zeros(steps, np.bool_)

    @property
    def watched(self) -> bool:
        """Whether gradients that overflow are noticed."""
        return self._rule is not None

    @property
    def value(self) -> float:
        """The scale of this step."""
        return self._rule.value if self._rule else 1.0

    @property
    def state(self) -> tuple[float, int] | None:
        """What the next step depends on; None without a rule."""
        return (self._rule.value, self._rule.good) if self._rule else None

    @state.setter
    def state(self, state: tuple[float, int] | None) -> None:
        if self._rule and state:
            self._rule.value, self._rule.good = state

    def begin(self, step: int) -> None:
        """Let the gradients of step `step` come at the scale."""
        self._scales[step] = self.value
        for stats in self._tallies:
            stats.scale = self.value

    def accepts(self, step: int, norm: float) -> bool:
        """Tell whether the gradients of step `step` are numbers; choose the scale of the next step."""
        if self._rule is None:
            return True
        self._skipped[step] = not math.isfinite(norm)
        self._rule.update(overflowed=bool(self._skipped[step]))
        return not self._skipped[step]

    def tolerating(self) -> AbstractContextManager[Any]:
        """Let nobody be warned of an overflow that is looked for."""
        return np.errstate(over="ignore", invalid="ignore") if self.watched else nullcontext()

    def columns(self, stop: int) -> dict[str, Any]:
        """Return columns of the `cases` table over the steps before `stop`; null without a rule.

        `loss_scales`: of every step; `skipped_steps`: the numbers of those whose gradients overflowed.
        """
        if not self.watched:
            return {"loss_scales": None, "skipped_steps": None}
        skipped = np.flatnonzero(self._skipped[:stop])
        return {"loss_scales": self._scales[:stop].tolist(), "skipped_steps": skipped.tolist()}
