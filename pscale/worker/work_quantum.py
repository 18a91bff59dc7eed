"""The fixed work quantum: how long a known piece of work takes, between the steps and apart from them.

What other work on the host, the hypervisor, heat or neighbours in the caches do to a step, they do to work
beside it as well. Launches can then be compared at the same pace (`analysis.pace`). Work of fixed length is
the older way to see such noise: the fixed work quantum of Sottile and Minnich 2004
(https://doi.org/10.1109/CLUSTR.2004.1392636).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Mesh
from pscale.worker.clock import Clock
from pscale.worker.recorder import Recorder
from pscale.worker.usage import Usage, usage, without

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
