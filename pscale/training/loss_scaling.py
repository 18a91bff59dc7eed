"""What the scale of the loss was in every step, and which steps were skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from pscale.nn.loss import LossScale
from pscale.nn.routing import Tally


class LossScaling:
    """The loss of a job, `rule` times larger; without a rule it is as large as it is, whatever comes of it.

    Every rank has the norm of the whole gradient, so that all of them skip the same steps.
    """

    def __init__(self, rule: LossScale | None, steps: int, tallies: Sequence[Tally] = ()):
        self._rule, self._tallies = rule, tallies
        self._scales, self._skipped = np.ones(steps), np.zeros(steps, np.bool_)

    @property
    def watched(self) -> bool:
        """Whether gradients that overflow are noticed."""
        return self._rule is not None

    @property
    def value(self) -> float:
        """The scale of this step."""
        return self._rule.value if self._rule else 1.0

    def begin(self, step: int) -> None:
        """Let the gradients of step `step` come at the scale."""
        self._scales[step] = self.value
        for tally in self._tallies:
            tally.scale = self.value

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
