"""A rank that is made late on purpose: it burns time at the start of a phase and notes how much.

The time is burnt by a loop that reads the clock until the deadline: sleep would end late by an uncertain
50 us and more, and give the core away. A process that is kept off its core meanwhile is late by more; the
note tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from pscale.config import Case
from pscale.lateness import Jitter
from pscale.parallel.schedule import Action
from pscale.worker.recorder import Phase, Recorder

Delays = Mapping[str, NDArray[np.int64]]  # ns, by phase: one for each measured step


class LateRecorder(Recorder):
    """A recorder whose rank is late from step `first` on: once a step, where the phase begins.

    Steps before and after those, which warm up or show what recording costs, are left alone.
    """

    def __init__(
        self, axes: Sequence[str], delays: Delays, first: int, *, now: Callable[[], int] = perf_counter_ns
    ) -> None:
        super().__init__(axes, now=now)
        self._delays, self._first = delays, first
        self._latest: dict[str, int] = {}  # step in which each phase began last

    def phase(self, name: str, action: Action | None = None) -> Phase:
        """Return the block of code of a phase; where it begins in a step, with the delay that is due."""
        if name not in self._delays or self._latest.get(name) == self._step:
            return super().phase(name, action)
        self._latest[name] = self._step
        delays, measured = self._delays[name], self._step - self._first
        due = int(delays[measured]) if 0 <= measured < len(delays) else 0
        return LatePhase(self, name, action, due) if due else super().phase(name, action)

    def burn(self, duration_ns: int) -> None:
        """Compute nothing for so long."""
        enter = self.now()
        until = enter + duration_ns
        while (leave := self.now()) < until:
            pass
        self.injected(enter, leave)


class LatePhase(Phase):
    """A phase that begins with a delay."""

    __slots__ = ("_delay_ns", "_late")

    def __init__(self, recorder: LateRecorder, name: str, action: Action | None, delay_ns: int):
        super().__init__(recorder, name, action)
        self._late, self._delay_ns = recorder, delay_ns

    def __enter__(self) -> None:
        super().__enter__()
        self._late.burn(self._delay_ns)


def recorder(case: Case, axes: Sequence[str], rank: int, repeat: int) -> Recorder:
    """Return the recorder of a rank: one that makes it late if the case says so."""
    delays = delays_of(case, rank, repeat)
    return LateRecorder(axes, delays, case.train.warmup) if delays else Recorder(axes)


def delays_of(case: Case, rank: int, repeat: int) -> Delays:
    """Return the delays of a rank; the draws of a launch follow from the seed, the rank and the repeat."""
    inject, jitter, steps = case.inject, case.jitter, case.train.steps
    delays: dict[str, NDArray[np.int64]] = {}
    if inject.delay_s and inject.rank == rank:
        delays[inject.phase] = np.zeros(steps, np.int64)
        delays[inject.phase][:: inject.every] = round(inject.delay_s * 1e9)
    if jitter.mean_s and rank in (jitter.ranks or (rank,)):
        random = np.random.default_rng([case.train.seed, repeat, rank])
        drawn = (draw(jitter, steps, random) * 1e9).astype(np.int64)
        delays[jitter.phase] = delays.get(jitter.phase, 0) + drawn
    return delays


def draw(jitter: Jitter, count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Draw delays in seconds."""
    mean_s = jitter.mean_s
    match jitter.distribution:
        case "exponential":
            return random.exponential(mean_s, count)
        case "uniform":
            return random.uniform(0.0, 2 * mean_s, count)
    drawn = random.normal(mean_s, mean_s / 3, count)
    while (outside := (drawn < 0) | (drawn > 2 * mean_s)).any():
        drawn[outside] = random.normal(mean_s, mean_s / 3, np.count_nonzero(outside))
    return drawn
