"""The fixed work quantum: how long a known piece of work takes, between the steps and apart from them.

What other work on the host, the hypervisor, heat or neighbours in the caches do to a step, they do to work
beside it as well. Launches can then be compared at the same pace (`analysis.pace`). Work of fixed length is
the older way to see such noise: the fixed work quantum of Sottile and Minnich 2004
(https://doi.org/10.1109/CLUSTR.2004.1392636).
"""

from __future__ import annotations

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
    """Pauses before, between and after the steps, in which all ranks do the work at once."""

    def __init__(self, mesh: Mesh, recorder: Recorder):
        self._world, self._recorder = mesh.world, recorder
        self._work = Quantum()
        self._taken: list[Pause] = []
        self.meet = mesh.axis(*mesh.sizes).barrier  # recorded: who ends a step early waits in that step

    def take(self) -> None:
        """Meet, do the work, and go on together; nothing of it is recorded. Collective."""
        record = self._recorder
        begun_ns, enabled, record.enabled = record.now(), record.enabled, False
        before = usage()
        self._world.barrier()
        start_ns = record.now()
        self._work()
        quantum_ns = record.now() - start_ns
        self._world.barrier()  # or reading the accounts would disturb the work of others
        after = usage()
        self._world.barrier()
        record.enabled = enabled
        ended_ns = record.now()
        self._taken.append(
            Pause(begun_ns=begun_ns, ended_ns=ended_ns, quantum_ns=quantum_ns, before=before, after=after)
        )

    def quanta_s(self) -> list[float]:
        """Return by step what the work beside it took, on the slowest rank: the mean of two; collective."""
        slowest = np.array([pause.quantum_ns for pause in self._taken])
        self._world.all_reduce(slowest, "max")
        beside_s: list[float] = ((slowest[:-1] + slowest[1:]) / 2 * 1e-9).tolist()
        return beside_s

    def removal(self, common: Clock) -> PauseRemoval:
        """Agree on the length of every pause; collective."""
        begun, ended = (
            common(np.array([getattr(pause, name) for pause in self._taken], np.int64))
            for name in ("begun_ns", "ended_ns")
        )
        lengths = ended - begun
        self._world.all_reduce(lengths, "min")
        return PauseRemoval(begun_ns=begun, lengths_ns=np.maximum(lengths, 0))

    def less(self, after: Usage) -> Usage:
        """Return what was used when the last step had ended, less what pauses between the steps have used."""
        for pause in self._taken[1:-1]:
            after = without(after, pause.before, pause.after)
        return after
