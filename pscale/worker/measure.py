"""Run the steps of a job and time them: warm-up, the measured steps, the cost of recording.

Between steps a fixed piece of work may be timed. What other work on the host, the hypervisor, heat or
neighbours in the caches do to a step, they do to work beside it as well: launches can be compared at the same
pace (`analysis.difference`). Work of fixed length is the older way to see such noise: the fixed work quantum
of Sottile and Minnich 2004 (https://doi.org/10.1109/CLUSTR.2004.1392636).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Mesh
from pscale.simulator.program import Rows
from pscale.worker import clock
from pscale.worker.clock import Clock
from pscale.worker.recorder import Recorder
from pscale.worker.usage import Usage, peak_resident_bytes, reset_peak, usage, without

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
    work_quantum_s: list[float] | None  # of a fixed piece of work beside each step, on the slowest rank


Between = Callable[[int], Callable[[], None] | None]  # what is done after a step, the same on every rank


def warm_up(trainer: Steps, steps: int, between: Between = lambda _: None) -> None:
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
    between: Between = lambda _: None,
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


Times = NDArray[np.int64]

_ROWS, _INNER, _COLUMNS = 512, 256, 1024  # of the product
_ADDED = 1 << 21  # numbers, 8 MiB: more than a core's own caches hold
_LOOPS = 12_000
_ROUNDS = 2
_WARM_UPS = 3


class Quantum:
    """Products of matrices on BLAS's threads, sums of arrays, and loops of Python: what steps consist of.

    Together they follow a step more closely than any of them alone, and the longer the more closely: these
    take some ten milliseconds. They begin with what the step has left in the caches, as a step does.
    """

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        shapes = ((_ROWS, _INNER), (_INNER, _COLUMNS), (_ROWS, _COLUMNS), (_ADDED,), (_ADDED,))
        self._arrays = [random.random(shape, np.float32) for shape in shapes]
        for _ in range(_WARM_UPS):
            self()

    def __call__(self) -> None:
        """Do the work."""
        a, b, product, added, total = self._arrays
        for _ in range(_ROUNDS):
            np.matmul(a, b, out=product)
            np.add(added, a[0, 0], out=total)
            for _ in range(_LOOPS):
                pass


@dataclass(frozen=True, kw_only=True)
class Pause:
    """What one rank did between two steps; times are its own clock's, in ns."""

    begun_ns: int
    ended_ns: int
    quantum_ns: int
    before: Usage
    after: Usage


@dataclass(frozen=True, kw_only=True)
class PauseRemoval:
    """How pauses are removed from times: as if each step had begun when the one before had ended.

    All ranks remove the same length for a pause, the most that each of them has paused, so that the order of
    what they did stays. What a rank paused longer stays too, as a delay of its own.
    """

    begun_ns: Times  # on the common clock
    lengths_ns: Times

    def __call__(self, times: Times) -> Times:
        """Return the times, on the common clock, without the pauses before them."""
        begun = np.searchsorted(self.begun_ns, times, side="right")  # pauses, at each time
        before = np.concatenate([[0], np.cumsum(self.lengths_ns)])
        last = np.maximum(begun - 1, 0)
        inside = np.clip(times - self.begun_ns[last], 0, self.lengths_ns[last])
        shorter: Times = times - np.where(begun > 0, before[last] + inside, 0)
        return shorter

    def at(self, time_ns: int) -> int:
        """Return one such time."""
        return int(self(np.array([time_ns]))[0])


class Pauses:
    """Pauses before, between and after the steps, in which all ranks do the same work at once.

    With `pace` there is one at every step, with the quantum.
    """

    def __init__(self, mesh: Mesh, recorder: Recorder, *, pace: bool):
        self._world, self._recorder = mesh.world, recorder
        self._quantum = Quantum() if pace else None
        self._taken: list[Pause] = []
        self.meet = mesh.axis(*mesh.sizes).barrier  # recorded: who ends a step early waits in that step

    def take(self, work: Callable[[], None] | None = None) -> None:
        """Meet, do the quantum and other work, and go on together; nothing of it is recorded. Collective."""
        if work is None and self._quantum is None:
            return
        record = self._recorder
        begun_ns, enabled, record.enabled = record.now(), record.enabled, False
        before = usage()
        self._world.barrier()
        start_ns = record.now()
        if self._quantum:
            self._quantum()
        quantum_ns = record.now() - start_ns
        if work:
            work()
        self._world.barrier()  # or reading the accounts would disturb the work of others
        after = usage()
        self._world.barrier()
        record.enabled = enabled
        ended_ns = record.now()
        self._taken.append(
            Pause(begun_ns=begun_ns, ended_ns=ended_ns, quantum_ns=quantum_ns, before=before, after=after)
        )

    def quanta_s(self) -> list[float] | None:
        """Return by step what the quantum beside it took on the slowest rank, a mean of two; collective."""
        if self._quantum is None:
            return None
        slowest = np.array([pause.quantum_ns for pause in self._taken])
        self._world.all_reduce(slowest, "max")
        beside_s: list[float] = ((slowest[:-1] + slowest[1:]) / 2 * 1e-9).tolist()
        return beside_s

    def removal(self, common: Clock) -> PauseRemoval | None:
        """Agree on the length of every pause, if there is any; collective."""
        if not self._taken:
            return None
        begun, ended = (
            common(np.array([getattr(pause, name) for pause in self._taken], np.int64))
            for name in ("begun_ns", "ended_ns")
        )
        lengths = ended - begun
        self._world.all_reduce(lengths, "min")
        return PauseRemoval(begun_ns=begun, lengths_ns=np.maximum(lengths, 0))

    def less(self, after: Usage, start_ns: int, end_ns: int) -> Usage:
        """Return what was used when the last step had ended, less what pauses between the steps have used."""
        for pause in self._taken:
            if start_ns < pause.begun_ns < end_ns:
                after = without(after, pause.before, pause.after)
        return after
