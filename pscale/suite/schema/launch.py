"""How processes are started, what is asked of them, and what is measured beside the steps."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from pscale import config, lateness
from pscale.config import choices
from pscale.suite.quantities import Bytes, Count, CountOrNone, Gpus, Seconds, SecondsOrNone
from pscale.suite.schema.group import Group

_WORD = re.compile(r"""[^\s'"`$\\]+""")
_OPTION = re.compile(r"-[^\n\r\0]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Timing(Group):
    """What is measured beside the steps."""

    gemm_peak: bool = config.Timing.gemm_peak
    overhead_steps: CountOrNone = config.Timing.overhead_steps
    trace: bool = config.Timing.trace
    pace: bool = config.Timing.pace


def _variables(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"'{name}' is not a name for an environment variable")
        if "\0" in value:
            raise ValueError(f"the value of {name} holds a null character")
    return values


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError(f"expected one word without quotes, got '{value}'")
    return value


def _option(value: str) -> str:
    if not _OPTION.fullmatch(value):
        raise ValueError(f"expected one option of the scheduler such as '--exclusive', got '{value}'")
    return value


Word = Annotated[str, AfterValidator(_word)]
WordOrNothing = Annotated[str, AfterValidator(lambda value: value and _word(value))]
Option = Annotated[str, AfterValidator(_option)]


class Omp(Group):
    """Where the OpenMP threads of a rank run, and how they wait for work."""

    proc_bind: choices.ProcBind | None = config.Omp.proc_bind
    places: choices.Places | None = config.Omp.places
    wait_policy: choices.WaitPolicy | None = config.Omp.wait_policy


class Require(Group):
    """The BLAS without which nothing shall be measured."""

    blas: choices.Blas | None = config.Require.blas
    blas_threading: choices.BlasThreading | None = config.Require.blas_threading


class Launch(Group):
    """How processes are started."""

    launcher: str = Field(default=config.Launch.launcher, min_length=1)
    bind: choices.Bind = config.Launch.bind
    time_limit: Seconds = config.Launch.time_limit_s
    hang_after: Seconds | None = config.Launch.hang_after_s
    memory_limit: Bytes | None = config.Launch.memory_limit_bytes
    oversubscribe: bool = config.Launch.oversubscribe
    omp: Omp = Omp()
    kernels: choices.KernelsChoice = config.Launch.kernels
    env: Annotated[dict[str, str], AfterValidator(_variables)] = {}
    extra: list[str] = []
    ranks_per_node: CountOrNone = config.Launch.ranks_per_node
    scheduler: choices.SchedulerChoice = config.Launch.scheduler
    packing: choices.Packing = config.Launch.packing
    partition: WordOrNothing = config.Launch.partition
    account: WordOrNothing = config.Launch.account
    qos: WordOrNothing = config.Launch.qos
    constraint: WordOrNothing = config.Launch.constraint
    gpus: Gpus = config.Launch.gpus
    job_time_limit: Seconds | None = config.Launch.job_time_limit_s
    directives: list[Option] = []
    modules: list[Word] = []
    setup: str = config.Launch.setup


class Inject(Group):
    """One rank that is made late, to ask what that would cost."""

    rank: CountOrNone = lateness.Inject.rank
    phase: lateness.Phase = lateness.Inject.phase
    delay: SecondsOrNone = lateness.Inject.delay_s
    every: Count = lateness.Inject.every


class Jitter(Group):
    """Ranks that are made late at random."""

    distribution: lateness.Distribution = lateness.Jitter.distribution
    mean: SecondsOrNone = lateness.Jitter.mean_s
    phase: lateness.Phase = lateness.Jitter.phase
    ranks: list[Annotated[int, Field(ge=0)]] = []
