"""Delay injection: a rank spins at the start of a phase and records for how long.

It spins in a loop that reads the clock until the deadline: sleep would end late by an uncertain 50 us and
more, and yield the core. A process that is preempted meanwhile is delayed by more; the event has the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from pscale.config import Case, Jitter
from pscale.parallel.schedule import Action
from pscale.worker.recorder import Phase, Recorder

Delays = Mapping[str, NDArray[np.int64]]  # ns, by phase: one for each measured step


class DelayRecorder(Recorder):
    """A recorder that delays its rank from step `first` on: once a step, where the phase begins.

    Steps before and after those, which warm up or show what recording costs, are not delayed.
    """

    def __init__(
        self, axes: Sequence[str], delays: Delays, first: int, *, now: Callable[[], int] = perf_counter_ns
    ) -> None:
        super().__init__(axes, now=now)
        self._delays, self._first = delays, first
        self._last_step: dict[str, int] = {}  # step in which each phase began last
        self.spend: Callable[[int], int] = self.spin  # lets time pass until some; returns what it is then

    def phase(self, name: str, action: Action | None = None) -> Phase:
        """Return the block of code of a phase; where it begins in a step, with the delay that is due."""
        if name not in self._delays or self._last_step.get(name) == self._step:
            return super().phase(name, action)
        self._last_step[name] = self._step
        delays, measured = self._delays[name], self._step - self._first
        due = int(delays[measured]) if 0 <= measured < len(delays) else 0
        return DelayedPhase(self, name, action, due) if due else super().phase(name, action)

    def delay(self, duration_ns: int) -> None:
        """Compute nothing for a duration."""
        enter = self.now()
        self.injected(enter, self.spend(enter + duration_ns))

    def spin(self, until_ns: int) -> int:
        """Read the clock until a time; returns the last reading."""
        while (leave := self.now()) < until_ns:
            pass
        return leave


class DelayedPhase(Phase):
    """A phase that begins with a delay."""

    __slots__ = ("_delay_ns", "_delaying")

    def __init__(self, recorder: DelayRecorder, name: str, action: Action | None, delay_ns: int):
        super().__init__(recorder, name, action)
        self._delaying, self._delay_ns = recorder, delay_ns

    def __enter__(self) -> None:
        super().__enter__()
        self._delaying.delay(self._delay_ns)


def recorder(case: Case, axes: Sequence[str], rank: int, repeat: int) -> Recorder:
    """Return the recorder of a rank: one that delays it if the case says so."""
    delays = delays_of(case, rank, repeat)
    return DelayRecorder(axes, delays, case.train.warmup) if delays else Recorder(axes)


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
