"""Run the steps of a job and time them: warm-up, the measured steps, the cost of recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns
from typing import Protocol

import numpy as np

from pscale.mesh.axis import Mesh
from pscale.simulator.program import Rows
from pscale.worker import clock
from pscale.worker.clock import Clock
from pscale.worker.recorder import Recorder
from pscale.worker.usage import Usage, peak_resident_bytes, reset_peak, usage
from pscale.worker.work_quantum import Pauses

_BATCHES, _CALLS = 16, 125  # a batch takes a tenth of a millisecond, in which a rank is seldom interrupted


class Steps(Protocol):
    """What runs steps and records them: a trainer."""

    @property
    def recorder(self) -> Recorder:
        """Return what it is recorded by."""
        ...

    def step(self, index: int, meet: Callable[[], None] | None = None) -> None:
        """Run a step; last of all, `meet`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The recorder's rows of the measured steps, and what the process used meanwhile.

    All times are rank 0's: `clock` has turned this rank's into them.
    """

    rows: Rows
    clock: Clock
    backwards_ns: int  # by which this rank's own clock fell
    start_ns: int
    wall_s: float
    before: Usage
    after: Usage
    peak_rss_bytes: int
    peak_rss_of_steps: bool  # else of the process's life: the system keeps no other
    work_quantum_s: (
        list[float] | None
    )  # by step: what a fixed piece of work took beside it, on the slowest rank


Between = Callable[
    [int], Callable[[], None] | None
]  # what is to be done after a step, the same on every rank


def nothing(_: int) -> None:
    """Do nothing between steps."""


def warm_up(trainer: Steps, steps: int, between: Between = nothing) -> None:
    """Run the steps that no figure includes; the last one shows how many rows a step needs."""
    record = trainer.recorder
    for index in range(steps):
        record.clear()
        record.enabled = True
        trainer.step(index)
        record.enabled = False
        if work := between(index):
            work()


def measure(
    trainer: Steps,
    mesh: Mesh,
    first: int,
    steps: int,
    *,
    pace: bool = False,
    between: Between = nothing,
) -> Measured:
    """Run and record `steps` steps from index `first`; steps are numbered from 0 in the rows.

    With `pace` there are pauses before, between and after the steps, in which it is measured; others are for
    what is done `between` them. No figure includes them.
    """
    record = trainer.recorder
    record.reserve(2 * max(len(record), 16) * steps)
    pauses = Pauses(mesh, record, pace=pace)
    mesh.world.barrier()
    opening = clock.compare(mesh, record.now)
    mesh.world.barrier()
    record.enabled = True
    of_steps = reset_peak()
    pauses.take()
    before, start_ns = usage(), record.now()
    for index in range(first, first + steps):
        if index > first:
            pauses.take(between(index - 1))
        trainer.step(index, pauses.meet if pace else None)
    end_ns, after = record.now(), usage()
    pauses.take()
    peak_bytes = peak_resident_bytes()  # before the events are evaluated, which takes memory too
    record.enabled = False
    if work := between(first + steps - 1):
        work()
    common = clock.agree(mesh, opening, clock.compare(mesh, record.now, last=True))
    rows = record.rows()
    rows["step"] -= first
    backwards_ns = clock.backwards_ns(rows)
    for times in (rows["enter"], rows["leave"]):
        times[:] = common(times)
    after = pauses.less(after, start_ns, end_ns)
    start_ns, end_ns = common.at(start_ns), common.at(end_ns)
    if without_pauses := pauses.removal(common):
        for times in (rows["enter"], rows["leave"]):
            times[:] = without_pauses(times)
        start_ns, end_ns = without_pauses.at(start_ns), without_pauses.at(end_ns)
    return Measured(
        rows=rows,
        clock=common,
        backwards_ns=backwards_ns,
        start_ns=start_ns,
        wall_s=(end_ns - start_ns) * 1e-9,
        before=before,
        after=after,
        peak_rss_bytes=peak_bytes,
        peak_rss_of_steps=of_steps,
        work_quantum_s=pauses.quanta_s(),
    )


def recording_ratio(trainer: Steps, first: int, pairs: int) -> float | None:
    """Return step time with recording over without: `pairs` of steps in turn, the median of their ratios."""
    if not pairs:
        return None
    ratios = []
    for pair in range(pairs):
        times = {}
        for place in range(2):
            enabled = (pair + place) % 2 == 1  # neither always comes first
            trainer.recorder.clear()
            trainer.recorder.enabled = enabled
            start = perf_counter()
            trainer.step(first + 2 * pair + place)
            times[enabled] = perf_counter() - start
        ratios.append(times[True] / times[False])
    trainer.recorder.enabled = False
    return float(np.median(ratios))


def recording_call_s() -> float:
    """Return what recording one call costs, its two clock readings included: the median of batches."""
    record = Recorder(["axis"])
    record.enabled = True
    record.reserve(_BATCHES * _CALLS)
    batches_ns = []
    for _ in range(_BATCHES):
        start = perf_counter_ns()
        for _ in range(_CALLS):
            record.call("axis", "all_reduce", 8, perf_counter_ns(), perf_counter_ns())
        record.pack()
        batches_ns.append(perf_counter_ns() - start)
    return float(np.median(batches_ns)) * 1e-9 / _CALLS
