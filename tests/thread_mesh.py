"""A mesh whose ranks are threads: all parallel code under plain pytest, without mpiexec.

Verbs do what MPI's do, in rank order and with the same notes to the recorder. A rank that fails breaks the
barrier, so the others fail as well instead of waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter_ns as now
from typing import Any, TypeVar

import numpy as np

from pscale.mesh.axis import Array, Axis, Op, Recorder
from pscale.mesh.solo import PlainFile, Solo

T = TypeVar("T")
PATIENCE_S = 60
_OPS: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class Board:
    """Where the ranks of one axis lay things out for each other."""

    def __init__(self, size: int):
        self._slots: list[Any] = [None] * size
        self.gate = threading.Barrier(size, timeout=PATIENCE_S)

    def swap(self, rank: int, value: T) -> list[T]:
        self._slots[rank] = value
        self.gate.wait()
        everyone = list(self._slots)
        self.gate.wait()
        return everyone


class Started:
    """A non-blocking call of the double: done in full when it is completed, in the order of the calls."""

    def __init__(self, axis: ThreadAxis, x: Array, number: int):
        self._axis, self._x, self._number = axis, x, number

    def poll(self) -> bool:
        return False

    def wait(self) -> None:
        enter = now()
        self._axis.reduce_in_place(self._x, "sum")
        self._axis.recorder.completed(self._number, enter, now())


class ThreadAxis:
    def __init__(self, name: str, rank: int, board: Board, size: int, recorder: Recorder):
        self.name, self.rank, self.size, self.recorder = name, rank, size, recorder
        self._board = board

    def reduce_in_place(self, x: Array, op: Op) -> None:
        total = _OPS[op].reduce(np.stack(self._board.swap(self.rank, x)))
        self._board.gate.wait()  # nobody overwrites what another still reads
        x[...] = total

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        enter = now()
        self.reduce_in_place(x, op)
        self.recorder.call(self.name, "all_reduce", x.nbytes, enter, now())

    def start_all_reduce(self, x: Array) -> Started:
        enter = now()
        return Started(self, x, self.recorder.posted(self.name, "all_reduce", x.nbytes, enter, now()))

    def broadcast(self, x: Array, root: int = 0) -> None:
        enter = now()
        source = self._board.swap(self.rank, x)[root]
        if self.rank != root:
            x[...] = source
        self._board.gate.wait()
        is_root = self.rank == root
        self.recorder.call(self.name, "broadcast", x.nbytes if is_root else 0, enter, now(), root=is_root)

    def gather(self, x: Array, out: Array | None, root: int = 0) -> None:
        enter = now()
        everyone = self._board.swap(self.rank, x)
        if self.rank == root:
            assert out is not None
            out[...] = np.stack(everyone)
        self._board.gate.wait()
        self.recorder.call(self.name, "gather", x.nbytes, enter, now(), root=self.rank == root)

    def scatter(self, parts: Array | None, out: Array, root: int = 0) -> None:
        enter = now()
        source = self._board.swap(self.rank, parts)[root]
        assert source is not None
        out[...] = source[self.rank]
        self._board.gate.wait()
        sent = 0 if parts is None else parts.nbytes
        self.recorder.call(self.name, "scatter", sent, enter, now(), root=self.rank == root)

    def barrier(self) -> None:
        enter = now()
        self._board.gate.wait()
        self.recorder.call(self.name, "barrier", 0, enter, now())

    def open(self, path: Path) -> PlainFile:
        return PlainFile(path)

    def gather_objects(self, value: T) -> list[T]:
        everyone = self._board.swap(self.rank, value)
        return everyone if self.rank == 0 else []


class Silent:
    """A recorder that notes nothing."""

    def call(self, *_: Any, **__: Any) -> None: ...
    def posted(self, *_: Any) -> int:
        return 0

    def polled(self, *_: Any) -> None: ...
    def completed(self, *_: Any) -> None: ...


class ThreadMesh:
    def __init__(self, axis: Axis, world: Axis):
        self.sizes = {"dp": axis.size}
        self.world = world
        self._axis = axis

    def axis(self, *names: str) -> Axis:
        assert names == ("dp",)
        return self._axis


def run_ranks(
    size: int, function: Callable[[ThreadMesh], T], recorders: Sequence[Recorder] | None = None
) -> list[T]:
    """Call `function` once a rank, each in a thread of its own; return the results in rank order."""
    board, world_board = Board(size), Board(size)

    def one(rank: int) -> T:
        recorder = recorders[rank] if recorders else Silent()
        axis = ThreadAxis("dp", rank, board, size, recorder) if size > 1 else Solo("dp")
        mesh = ThreadMesh(axis, ThreadAxis("world", rank, world_board, size, Silent()))
        try:
            return function(mesh)
        except BaseException:
            board.gate.abort()
            world_board.gate.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
        errors = [error for error in (future.exception() for future in futures) if error]
        if errors:  # the first cause, not the barriers that it broke
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [future.result() for future in futures]
