"""One point of a suite, and what makes two of them the same work."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pscale.config.choices import LossScaling, Scaling
from pscale.config.launch import Launch, Require, Timing
from pscale.config.model import Model
from pscale.config.plan import Plan
from pscale.config.training import Data, Precision, Train
from pscale.lateness import NO_DELAY, NO_JITTER, Inject, Jitter, in_words

NARROW: frozenset[str] = frozenset({"fp16"})  # types whose least numbers are larger than many gradients
_NOT_THE_WORK = (  # fields of Launch that say where and how long, not what is measured
    *("time_limit_s", "hang_after_s", "memory_limit_bytes", "scheduler", "packing", "partition", "account"),
    *("qos", "constraint", "gpus", "job_time_limit_s", "directives", "modules", "setup"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of a suite: everything that a job needs to know."""

    suite: str
    label: str
    series: str = ""  # cases of one series differ in size alone
    base: bool = False  # the case that efficiencies refer to; none marked: the smallest of the series
    scaling: Scaling = "weak"
    ranks: int = 1
    threads: int = 1
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    plan: Plan = Plan()
    precision: Precision = Precision()
    timing: Timing = Timing()
    launch: Launch = Launch()
    require: Require = Require()
    inject: Inject = NO_DELAY
    jitter: Jitter = NO_JITTER

    @property
    def injected(self) -> str:
        """What makes ranks late on purpose, in words; empty for a healthy case."""
        return in_words(self.inject, self.jitter)

    @property
    def loss_scale(self) -> LossScaling | float:
        """`none`, `dynamic` or a number: numbers with a narrow range need a scale, others none."""
        asked = self.precision.loss_scale
        return ("dynamic" if self.model.dtype in NARROW else "none") if asked == "auto" else asked

    @property
    def asks_for_norm(self) -> bool:
        """Whether a step needs the norm of the gradient: to clip it, or to find that it overflowed."""
        return self.train.clip is not None or self.loss_scale != "none"

    @functools.cached_property
    def id(self) -> str:
        """Ten hexadecimal digits of the content: the same work has the same id in every suite."""
        content = _unlike_default(self)
        for name in ("suite", "label", "series", "base", "require"):
            content.pop(name, None)
        for name in _NOT_THE_WORK:
            content.get("launch", {}).pop(name, None)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def _unlike_default(value: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults, so that a field that is added changes no old id."""
    content: dict[str, Any] = {}
    for each in dataclasses.fields(value):
        held = getattr(value, each.name)
        if dataclasses.is_dataclass(held):
            if inner := _unlike_default(held):
                content[each.name] = inner
        elif held != (each.default_factory() if callable(each.default_factory) else each.default):
            content[each.name] = held
    return content
