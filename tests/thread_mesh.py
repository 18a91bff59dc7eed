"""A mesh whose ranks are threads: all parallel code under plain pytest, without mpiexec.

Verbs do what MPI's do, in rank order and with the same notes to the recorder. One rank runs at a time, until
it waits for others: threads that wanted the interpreter all at once would mostly wait for it. A rank that
fails breaks the barrier, so the others fail as well instead of waiting.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from patience import LIMIT_S

from pscale.mesh import grid
from pscale.mesh.alone import alone
from pscale.mesh.axis import NO_HINTS, Array, Axis, Mesh, Op, ParallelFile, Tag
from pscale.mesh.nonblocking import Recorder, RequestQueue
from pscale.nn.dtypes import combine

T = TypeVar("T")
_OPS: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class Simulated:
    """The clock of a rank on which time passes by being read, by burning and by waiting for others."""

    TICK_NS = 1000

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        self.ns += self.TICK_NS
        return self.ns

    def catch_up(self, ns: int) -> None:
        self.ns = max(self.ns, ns)


class Delivery:
    """That both sides of a message have arrived, and when the later one did."""

    def __init__(self, turn: threading.Lock):
        self.at_ns: int | None = None
        self._turn = threading.Condition(turn)

    def arrive(self, at_ns: int) -> None:
        self.at_ns = at_ns
        self._turn.notify_all()

    def wait(self) -> int:
        assert self._turn.wait_for(lambda: self.at_ns is not None, LIMIT_S), "the other side never came"
        assert self.at_ns is not None
        return self.at_ns

    def poll(self) -> int | None:
        """Return when it arrived, if it has; another rank may run before."""
        if self.at_ns is None:
            self._turn.wait(0)
        return self.at_ns


class Gate:
    """A barrier of ranks that take turns: who waits at it lets another one run."""

    def __init__(self, size: int, changed: threading.Condition):
        self._size, self._changed = size, changed
        self._here = self._passed = 0
        self.is_broken = False

    def wait(self) -> None:
        mine = self._passed
        self._here += 1
        if self._here == self._size:
            self._here, self._passed = 0, mine + 1
            self._changed.notify_all()
        elif not self._changed.wait_for(lambda: self._passed > mine or self.is_broken, LIMIT_S):
            self.abort()
        if self._passed == mine:
            raise threading.BrokenBarrierError

    def abort(self) -> None:
        self.is_broken = True
        self._changed.notify_all()


class Board:
    """Where the ranks of one axis lay things out for each other."""

    def __init__(self, size: int, turn: threading.Lock):
        self._slots: list[Any] = [None] * size
        self.turn, self.changed = turn, threading.Condition(turn)
        self.gate = Gate(size, self.changed)
        self.exchanges: dict[Any, Any] = {}  # of other doubles
        self._mail: dict[Any, deque[tuple[Array, Delivery, int]]] = defaultdict(deque)

    def swap(self, rank: int, value: T) -> list[T]:
        self._slots[rank] = value
        self.gate.wait()
        everyone = list(self._slots)
        self.gate.wait()
        self._slots[rank] = None  # or it would hold memory that its rank has given up
        return everyone

    def post(self, verb: str, key: tuple[int, int, Tag], x: Array, at_ns: int) -> Delivery:
        """Move a message once both sides have arrived, so that memory that is given up too early is seen."""
        done = Delivery(self.turn)
        self._mail[verb, key].append((x, done, at_ns))
        sends, receives = self._mail["send", key], self._mail["receive", key]
        if sends and receives:
            (x, sent, sent_ns), (out, received, received_ns) = sends.popleft(), receives.popleft()
            out[...] = x
            for delivery in (sent, received):
                delivery.arrive(max(sent_ns, received_ns))
        return done


class Started:
    """A non-blocking call of the double: done in full when it is completed."""

    def __init__(self, complete: Callable[[], None], recorder: Recorder, number: int):
        self._complete, self._recorder, self._number = complete, recorder, number

    def poll(self) -> bool:
        return False

    def wait(self) -> None:
        enter = self._recorder.now()
        complete, self._complete = self._complete, lambda: None  # what it moved is its owner's alone
        complete()
        del complete
        self._recorder.completed(self._number, enter, self._recorder.now())


class Message(Started):
    """A message of the double: complete when sender and receiver have both come."""

    def __init__(self, done: Delivery, recorder: Recorder, number: int):
        super().__init__(lambda: None, recorder, number)
        self._done, self._found = done, False

    def poll(self) -> bool:
        if not self._found:
            enter = self._recorder.now()
            at_ns = self._done.poll()
            simulated = isinstance(self._recorder.now, Simulated)
            self._found = at_ns is not None and not (simulated and at_ns > enter)
            note = self._recorder.polled_complete if self._found else self._recorder.polled
            note(self._number, enter, self._recorder.now())
        return self._found

    def wait(self) -> None:
        enter = leave = self._recorder.now()
        if not self._found:
            at_ns = self._done.wait()
            if isinstance(self._recorder.now, Simulated):
                self._recorder.now.catch_up(at_ns)
            self._found, leave = True, self._recorder.now()
        self._recorder.completed(self._number, enter, leave)


def reduced(everyone: Sequence[Array], op: Op = "sum") -> Array:
    """Reduce in rank order: wide, and rounded at the end."""
    assert len({(x.dtype, x.size) for x in everyone}) == 1, "MPI would take bits of one type for another"
    total = np.empty(everyone[0].size, everyone[0].dtype)
    combine([x.reshape(-1) for x in everyone], total, _OPS[op])
    return total.reshape(everyone[0].shape)


class ThreadAxis(Axis):
    def __init__(self, name: str, rank: int, board: Board, size: int, recorder: Recorder):
        self.name, self.rank, self.size, self.recorder = name, rank, size, recorder
        self._board = board

    def _call(self, verb: str, sent_bytes: int, act: Callable[[], None], *, root: bool = False) -> None:
        enter = self.recorder.now()
        act()
        self.recorder.call(self.name, verb, sent_bytes, enter, self.recorder.now(), root=root)

    def _swap(self, value: T) -> list[T]:
        """Learn what everyone has; simulated clocks stand where the last of them came."""
        clock = self.recorder.now
        if isinstance(clock, Simulated):
            clock.catch_up(max(self._board.swap(self.rank, clock.ns)))
        return self._board.swap(self.rank, value)

    def _start(self, verb: str, sent_bytes: int, act: Callable[[], None], partner: int = -1) -> Started:
        enter = self.recorder.now()
        leave = self.recorder.now()
        number = self.recorder.posted(self.name, verb, sent_bytes, enter, leave, partner=partner)
        return Started(act, self.recorder, number)

    def _reduce(self, x: Array, op: Op) -> None:
        total = reduced(self._swap(x), op)
        self._board.gate.wait()  # nobody overwrites what another still reads
        x[...] = total

    def _gather_all(self, x: Array, out: Array, dim: int) -> None:
        whole = np.concatenate(self._swap(x), axis=dim)
        self._board.gate.wait()  # nobody overwrites what another still reads
        out[...] = whole

    def _reduce_part(self, x: Array, out: Array, dim: int, op: Op) -> None:
        total = reduced(self._swap(x), op)
        self._board.gate.wait()
        out[...] = np.split(total, self.size, axis=dim)[self.rank]

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        self._call("all_reduce", x.nbytes, lambda: self._reduce(x, op))

    def start_all_reduce(self, x: Array, op: Op = "sum") -> Started:
        return self._start("all_reduce", x.nbytes, lambda: self._reduce(x, op))

    def all_gather(self, x: Array, out: Array, dim: int = 0) -> None:
        self._call("all_gather", x.nbytes, lambda: self._gather_all(x, out, dim))

    def start_all_gather(self, x: Array, out: Array, dim: int = 0) -> Started:
        return self._start("all_gather", x.nbytes, lambda: self._gather_all(x, out, dim))

    def reduce_scatter(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> None:
        self._call("reduce_scatter", x.nbytes, lambda: self._reduce_part(x, out, dim, op))

    def start_reduce_scatter(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> Started:
        return self._start("reduce_scatter", x.nbytes, lambda: self._reduce_part(x, out, dim, op))

    def all_to_all(self, x: Array, out: Array) -> None:
        def act() -> None:
            out[...] = np.stack([theirs[self.rank] for theirs in self._swap(x)])
            self._board.gate.wait()

        self._call("all_to_all", x.nbytes, act)

    def start_send(self, x: Array, to: int, tag: Tag) -> Message:
        number = self._start("send", x.nbytes, lambda: None, to)._number
        done = self._board.post("send", (self.rank, to, tag), x, self.recorder.now())
        return Message(done, self.recorder, number)

    def start_receive(self, out: Array, source: int, tag: Tag) -> Message:
        number = self._start("receive", 0, lambda: None, source)._number
        done = self._board.post("receive", (source, self.rank, tag), out, self.recorder.now())
        return Message(done, self.recorder, number)

    def copy(self, x: Array, out: Array) -> None:
        enter = self.recorder.now()
        out[...] = x
        self.recorder.copied(self.name, enter, self.recorder.now())

    def broadcast(self, x: Array, root: int = 0) -> None:
        def act() -> None:
            x[...] = self._swap(x)[root]
            self._board.gate.wait()

        is_root = self.rank == root
        self._call("broadcast", x.nbytes if is_root else 0, act, root=is_root)

    def reduce(self, x: Array, root: int = 0, op: Op = "sum") -> None:
        def act() -> None:
            total = reduced(self._swap(x), op)
            self._board.gate.wait()
            if self.rank == root:
                x[...] = total

        self._call("reduce", x.nbytes, act, root=self.rank == root)

    def gather(self, x: Array, out: Array | None, root: int = 0) -> None:
        def act() -> None:
            whole = np.stack(self._swap(x))
            if out is not None:
                out[...] = whole
            self._board.gate.wait()

        self._call("gather", x.nbytes, act, root=self.rank == root)

    def scatter(self, parts: Array | None, out: Array, root: int = 0) -> None:
        def act() -> None:
            source = self._swap(parts)[root]
            assert source is not None
            out[...] = source[self.rank]
            self._board.gate.wait()

        self._call("scatter", 0 if parts is None else parts.nbytes, act, root=self.rank == root)

    def barrier(self) -> None:
        self._call("barrier", 0, lambda: self._board.gate.wait() and None)

    def open(self, path: Path, hints: Mapping[str, Any] = NO_HINTS) -> ParallelFile:  # noqa: ARG002
        return ParallelFile(path)

    def gather_objects(self, value: T) -> list[T]:
        everyone = self._swap(value)
        return everyone if self.rank == 0 else []


class Switchboard:
    """The boards of all groups of a grid, made when first asked for."""

    def __init__(self, sizes: Mapping[str, int]):
        self.sizes, self.turn = sizes, threading.Lock()
        self.world = Board(math.prod(sizes.values()), self.turn)
        self._boards: dict[Any, Board] = {}

    def board(self, span: tuple[str, ...], coordinates: Mapping[str, int]) -> Board:
        outside = tuple(place for dim, place in coordinates.items() if dim not in span)
        size = math.prod(self.sizes[dim] for dim in span)
        return self._boards.setdefault((span, outside), Board(size, self.turn))

    def abort(self) -> None:
        for board in (self.world, *self._boards.values()):
            board.gate.abort()


class ThreadMesh(Mesh):
    scratch_bytes = 0

    def __init__(self, switchboard: Switchboard, rank: int, recorder: Recorder, nodes: Sequence[int] = ()):
        self._switchboard, self._recorder, self._outstanding = switchboard, recorder, RequestQueue()
        size = math.prod(switchboard.sizes.values())
        super().__init__(
            *(switchboard.sizes, rank),
            world=self._made("world", rank, switchboard.world, size, Recorder()),
            axes={(): alone("")},
            nodes=nodes or [0] * size,
            outstanding=self._outstanding,
        )

    def axis(self, *axes: str) -> Axis:
        span = grid.spanned(self.sizes, axes)
        if span not in self._axes:
            sizes = {dim: self.sizes[dim] for dim in span}
            place = grid.rank_at(sizes, self.coordinates), self._switchboard.board(span, self.coordinates)
            size = math.prod(sizes.values())
            self._axes[span] = self._made(grid.axis_name(span), *place, size, self._recorder)
        return self._axes[span]

    def _made(self, name: str, rank: int, board: Board, size: int, recorder: Recorder) -> Axis:
        return ThreadAxis(name, rank, board, size, recorder)


def run_ranks(
    sizes: int | Mapping[str, int],
    function: Callable[[ThreadMesh], T],
    recorders: Sequence[Recorder] | None = None,
    nodes: Sequence[int] = (),
) -> list[T]:
    """Call `function` once a rank of the grid (a number is that of dp ranks), each in a thread of its own.

    `nodes` says where each rank pretends to be. Returns the results in rank order.
    """
    grid_sizes = {"dp": sizes} if isinstance(sizes, int) else dict(sizes)
    count = math.prod(grid_sizes.values())
    switchboard = Switchboard(grid_sizes)

    def one(rank: int) -> T:
        with switchboard.turn:
            mesh = ThreadMesh(switchboard, rank, recorders[rank] if recorders else Recorder(), nodes)
            try:
                return function(mesh)
            except BaseException:
                switchboard.abort()
                raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(one, rank) for rank in range(count)]
        errors = [error for error in (future.exception() for future in futures) if error]
        if errors:  # the first cause, not the barriers that it broke
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [future.result() for future in futures]
