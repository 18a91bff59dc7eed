"""A suite as a file says it."""

from __future__ import annotations

import re
from typing import Annotated, Self

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, Field, model_validator

from pscale import config
from pscale.config import choices
from pscale.metrics import Metric
from pscale.suite.demand import check_demand
from pscale.suite.quantities import MOST_REPEATS, Count, Repeat
from pscale.suite.schema.group import Group
from pscale.suite.schema.launch import Inject, Jitter, Launch, Require, Timing
from pscale.suite.schema.plan import Plan, Precision
from pscale.suite.schema.work import (
    DATA_OF,
    MODEL,
    Block,
    Collectives,
    Gpt,
    Linear,
    LinearData,
    Moe,
    Synthetic,
    Text,
    Train,
)
from pscale.suite.sweep import Sweep

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"expected letters, digits, '.', '_' and '-' (a folder is named after it), got '{value}'"
        )
    return value


class Expect(Group):
    """A demand on a metric of the report, in `unit`, of the cases that `where` selects or `case` names."""

    metric: Metric
    where: str = ""
    case: str = ""
    at_least: float | None = None
    at_most: float | None = None
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    unit: str | None = None

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        check_demand(self.model_dump())
        return self


class References(Group):
    """A file of demands, as `pscale check --update` writes it."""

    suite: str = ""
    expect: list[Expect] = []


class File(Group):
    """A suite: one experiment whose cases differ in what `sweep` names.

    `scaling: weak` gives every data-parallel rank a `batch` of its own; with `strong` and `throughput` all
    ranks share one, and `throughput` has no ideal to be compared with.
    """

    name: Annotated[str, AfterValidator(_name)]
    title: str = ""
    extends: str | None = Field(default=None, min_length=1)
    scaling: choices.Scaling
    ranks: Count = 1
    threads: Count = 1
    model: Annotated[Gpt | Moe | Block | Linear | Collectives, Field(discriminator="kind")] = MODEL
    data: Annotated[Text | Synthetic | LinearData, Field(discriminator="kind")] | None = None
    train: Train = Train()
    plan: Plan = Plan()
    precision: Precision = Precision()
    timing: Timing = Timing()
    launch: Launch = Launch()
    require: Require = Require()
    inject: Inject = Inject()
    jitter: Jitter = Jitter()
    sweep: Sweep = Sweep()
    exclude: list[str] = []
    base: str | None = None
    repeat: Repeat = 3
    known_to: Annotated[float, Gt(0), Lt(1)] = 0.02
    max_repeats: Annotated[int, Ge(1), Le(MOST_REPEATS)] = 30
    expect: list[Expect] = []

    @model_validator(mode="after")
    def _defaults_that_fit(self) -> Self:
        if self.data is None:
            self.data = DATA_OF[self.model.kind]
        if self.precision.type is None:
            usual: choices.Dtype = "float64" if self.model.kind == "linear" else config.Model.dtype
            self.precision = self.precision.model_copy(update={"type": usual})
        return self
