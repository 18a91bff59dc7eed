"""A step of any rank on one process in milliseconds: the builder and the trainer of a job, and no memory.

Arrays have shapes alone (`meta_arrays`), the axes of the mesh note calls (`mesh.dry`), kernels note what they
would compute. So memory, calls and work of a rank come from the program that runs, not from a copy of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pscale.config import Case, Model, Plan, Precision, Train, is_16_bit
from pscale.config.axes import BATCH_AXES
from pscale.data import Batches
from pscale.mesh.axis import Array, Axis
from pscale.mesh.dry import AxisCall, DryMesh
from pscale.mesh.grid import coordinates, rank_at
from pscale.nn.buffers import Buffers, aligned
from pscale.nn.dtypes import dtype_of
from pscale.nn.offload.scratch import Window
from pscale.nn.offload.storage import Storage, Transfer
from pscale.nn.param import share
from pscale.parallel.schedule import Action
from pscale.runs.schema import Verb
from pscale.runs.tensor_files import Piece, TensorFolder
from pscale.training.meta_arrays import Compute, meta_array, meta_arrays
from pscale.training.trainer import Trainer, assemble


@dataclass(frozen=True, slots=True)
class FileTransfer:
    """The start of a read or write of the rank's file, or the wait for it."""

    event: Literal["start", "wait"]
    verb: Verb
    bytes: int


Operation = Compute | AxisCall | FileTransfer


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """What a rank does in one block of a phase, in order; `action` is that of the pipeline, if any."""

    phase: str
    action: Action | None
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The steady step of `ranks`, which all do the same."""

    ranks: tuple[int, ...]
    phases: tuple[PhaseWork, ...]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that a rank makes `count` times in a step, with the payload that it hands over each time."""

    axis: str
    verb: str
    sent_bytes: int
    count: int = 1

    @property
    def step_bytes(self) -> int:
        """Payload of one step."""
        return self.sent_bytes * self.count


@dataclass(frozen=True, kw_only=True)
class PoolUse:
    """What the pool of activations ever took, and what of it was for exchanges; later steps take no more.

    At most `kept_bytes` lay in it between two phases, for backward passes to come, messages left out.
    `moved_bytes` left it for a file, and came back, in one step; the file has room of `file_bytes` for that.
    In `arranged_bytes` beside it calls arrange activations.
    """

    total_bytes: int
    exchange_bytes: int
    kept_bytes: int
    moved_bytes: int
    file_bytes: int
    arranged_bytes: int


@dataclass(frozen=True, kw_only=True)
class StateUse:
    """What a rank's part of the model state takes: memory by kind, with that of its exchange.

    And the room in the file for what of it is offloaded, with what a step reads there and writes; and the
    `calls` that bring gradients and weights together.
    """

    memory_bytes: dict[str, int]
    file_bytes: int
    read_bytes: int
    written_bytes: int
    calls: tuple[Call, ...]


def program(case: Case) -> tuple[RankProgram, ...]:
    """Return what every rank does in a step, ranks that do the same together, by their first rank.

    The step is one in mid run: what strategies learn in the first is known. A message's partner is relative,
    so the ranks of a ring can be of one class. Where ranks share weights (`zero`), the last may own a few
    elements less than the first: their updates count as the first's.
    """
    of_first: dict[int, tuple[PhaseWork, ...]] = {}
    ranks: dict[tuple[PhaseWork, ...], list[int]] = {}
    alike = places(case)
    for rank in range(case.plan.ranks):
        first = _representative(alike, case.plan.sizes, rank)
        if first not in of_first:
            of_first[first] = rank_program(case, first)
        ranks.setdefault(of_first[first], []).append(rank)
    return tuple(RankProgram(tuple(which), phases) for phases, which in ranks.items())


def rank_program(case: Case, rank: int, *, polls: bool = False) -> tuple[PhaseWork, ...]:
    """Return what `rank` does in a step in mid run; `polls` as of a `DryMesh`."""
    return _step(case, rank, polls=polls)[0]


def step_calls(case: Case, rank: int) -> tuple[Call, ...]:
    """Return the calls of `rank` in a step in mid run."""
    return _calls(each for work in rank_program(case, rank) for each in work.operations)


def scratch_bytes(case: Case, rank: int) -> int:
    """Return the memory in which calls of `rank` arrange data; and add them up, if they have 16 bits."""
    if is_16_bit(case.model.dtype):
        return _step(case, rank)[1].scratch_bytes
    return pool_use(case, rank).arranged_bytes


def _step(case: Case, rank: int, *, polls: bool = False) -> tuple[tuple[PhaseWork, ...], DryMesh]:
    log = _Log()
    with meta_arrays(log.note):
        trainer, mesh = _trainer(case, rank, log, polls=polls)
        if case.plan.zero == 3 or case.plan.offload != "none":  # they learn in which order weights are used
            trainer.step(0)
            log.phases = []
            mesh.recorder.started.clear()
        trainer.step(1)
    return tuple(log.phases), mesh


def _calls(operations: Iterable[Operation]) -> tuple[Call, ...]:
    """Return the calls among operations, those alike together."""
    made = (each for each in operations if isinstance(each, AxisCall) and each.event in ("call", "start"))
    counts = Counter((each.axis, each.verb, each.bytes) for each in made)
    return tuple(
        Call(axis=axis, verb=verb, sent_bytes=sent_bytes, count=count)
        for (axis, verb, sent_bytes), count in counts.items()
    )


def dry_trainer(case: Case, rank: int, steps: int = 0) -> Trainer[Any]:
    """Return the trainer of `rank`, without memory, after some steps."""
    with meta_arrays():
        trainer, _ = _trainer(case, rank, _Log())
        for step in range(steps):
            trainer.step(step)
    return trainer


def evaluation_calls(case: Case, rank: int) -> tuple[Call, ...]:
    """Return the calls of `rank` in one evaluation."""
    return _between(case, rank, lambda trainer, _: trainer.evaluate())


def loading(case: Case, rank: int, folder: Path) -> tuple[tuple[Call, ...], int]:
    """Return the calls of `rank` in loading a saved state and the bytes that it reads, by the index alone."""
    state, broadcast = _UnreadFolder(folder), case.train.load_by == "broadcast"
    calls = _between(case, rank, lambda trainer, mesh: trainer.load(mesh, state, broadcast=broadcast))
    return calls, state.read_bytes


def _between(case: Case, rank: int, work: Callable[[Trainer[Any], DryMesh], object]) -> tuple[Call, ...]:
    """Return the calls of work between two steps."""
    log = _Log()
    with meta_arrays(log.note):
        trainer, mesh = _trainer(case, rank, log)
        log.begin()
        work(trainer, mesh)
    return _calls(log.operations)


class _UnreadFolder(TensorFolder):
    """A folder of which the index says how much would be read."""

    def whole(self, name: str) -> Array:
        """Return an array without memory."""
        real = super().whole(name)
        return meta_array(real.shape, real.dtype)

    def read(self, piece: Piece, name: str) -> Array:  # noqa: ARG002
        """Return as many zeros, and count them."""
        values = np.zeros(piece.elements.size, piece.dtype)
        self.read_bytes += values.nbytes
        return values


def pool_use(case: Case, rank: int) -> PoolUse:
    """Return what the pool of `rank` takes in a step.

    Remembered by all that it depends on: replicas and the exchange of gradients have memory of their own.
    """
    plan, train, place = case.plan, case.train, coordinates(case.plan.sizes, rank)
    sequences = train.batch // plan.batch_parts // train.micro_batches
    if case.model.kind != "collectives":
        plan = _without_replicas(plan)
        place = {"dp": 0} | {axis: at for axis, at in place.items() if axis not in ("replica", "shard", "dp")}
    here = rank_at(plan.sizes, place)
    numbers = {"sequences": sequences, "micro_batches": train.micro_batches, "rank": here}
    return _pool_use(case.model, plan, case.precision, **numbers)


@lru_cache(maxsize=4096)
def _pool_use(
    model: Model, plan: Plan, precision: Precision, *, sequences: int, micro_batches: int, rank: int
) -> PoolUse:
    train = Train(batch=sequences * plan.batch_parts * micro_batches, micro_batches=micro_batches)
    case = Case(
        suite="", label="", ranks=plan.ranks, model=model, plan=plan, train=train, precision=precision
    )
    with meta_arrays():
        log = _Log()
        trainer, mesh = _trainer(case, rank, log)
        pool, storage = trainer.stage.buffers, trainer.storage
        log.pool = pool
        trainer.forward_backward(0)
    return PoolUse(
        total_bytes=pool.total_bytes,
        exchange_bytes=pool.exchange_bytes,
        kept_bytes=log.kept_bytes,
        moved_bytes=storage.written_bytes if isinstance(storage, _DryStorage) else 0,
        file_bytes=storage.size_bytes if storage else 0,
        arranged_bytes=mesh.arranged_bytes,
    )


def state_use(case: Case, rank: int) -> StateUse:
    """Return what the model state of `rank` takes: replicas hear of the units in order; nothing computes.

    Two steps, as the first shows in which order weights are needed.
    """
    log = _Log()
    with meta_arrays():
        trainer, _ = _trainer(case, rank, log)
        file_bytes = trainer.storage.size_bytes if trainer.storage else 0
        for _ in range(2):
            log.begin()
            _tell(trainer)
        if case.asks_for_norm:
            trainer.replicas.square_norm()
        trainer.replicas.update(lr=1.0, scale=1.0)
    moved = Counter[str]()
    for each in log.operations:
        if isinstance(each, FileTransfer) and each.event == "start":
            moved[each.verb] += each.bytes
    return StateUse(
        memory_bytes=trainer.replicas.memory_bytes(),
        file_bytes=file_bytes,
        read_bytes=moved.total() - moved["write"],
        written_bytes=moved["write"],
        calls=_calls(log.operations),
    )


def _tell(trainer: Trainer[_Log]) -> None:
    """Tell replicas what the loop and its passes through the units do in a step."""
    replicas, stage = trainer.replicas, trainer.stage
    replicas.start_step()
    for kind, micro, part in trainer.boundary.actions:
        if kind == "forward":
            for unit in stage.parts[part]:
                replicas.gather(unit)
                replicas.release(unit)
            continue
        for segment in reversed(stage.segments[part]):
            for unit in segment.units[:-1] if segment.recomputed and kind != "weight" else ():
                replicas.gather(unit)
                replicas.release(unit, again=True)
            for unit in reversed(segment.units):
                if kind != "weight":
                    replicas.gather(unit)
                if (kind, stage.units[unit].name) != ("weight", "embedding"):  # no product of it is deferred
                    for param in stage.units[unit].layer.params:
                        param.accumulator()
                if kind != "weight":
                    replicas.drop(unit)
                if kind != "input":
                    replicas.ready(unit, last=micro == trainer.train.micro_batches - 1)
    replicas.finish()


def _without_replicas(plan: Plan) -> Plan:
    """Return the plan of one replica, of which nothing but activations moves.

    Two where gradients are in shards: then every micro-batch writes its own in place, and adds up nothing.
    """
    sharing = (plan.shard if plan.hybrid else plan.dp) if plan.zero >= 2 else 1
    return replace(
        plan,
        dp=min(sharing, 2),
        zero=plan.zero if plan.zero >= 2 else 0,
        **{name: getattr(Plan(), name) for name in ("shard", "reduction", "bucket_bytes")},
        compression="none",
        offload="activations" if plan.offloads_activations else "none",
    )


def places(case: Case) -> dict[str, tuple[range, ...]]:
    """Return the places along every axis, those together whose ranks are known to do the same.

    Stages, places in a sequence and on a grid may all differ; replicas do not, nor ranks of experts, unless
    one of an axis is the root of a call; tensor ranks with as much of the vocabulary do not either.
    """
    plan = case.plan
    has_roots = case.model.kind == "collectives" or (plan.reduction == "gather-broadcast" and not plan.zero)
    batch_has_root = has_roots or case.data.loading == "scatter"
    found: dict[str, tuple[range, ...]] = {}
    for axis, size in plan.sizes.items():
        if axis in ("dp", "replica", "shard", "ep"):
            starts = [0, 1][: min(size, 1 + batch_has_root)]
        elif axis == "tp" and not has_roots:
            columns = [share(case.model.vocabulary, size, part) for part in range(size)]
            sizes = [each.stop - each.start for each in columns]
            starts = [at for at in range(size) if at == 0 or sizes[at] != sizes[at - 1]]
        else:
            starts = list(range(size))
        found[axis] = tuple(map(range, starts, (*starts[1:], size)))
    return found


def _representative(alike: Mapping[str, Sequence[range]], sizes: Mapping[str, int], rank: int) -> int:
    """Return the first rank that is known to do the same as `rank`."""
    place = coordinates(sizes, rank)
    first = {axis: next(each.start for each in alike[axis] if at in each) for axis, at in place.items()}
    return rank_at(sizes, first)


def _trainer(case: Case, rank: int, log: _Log, *, polls: bool = False) -> tuple[Trainer[_Log], DryMesh]:
    """Build what a job builds, for two steps."""
    mesh = DryMesh(case.plan.sizes, rank, log.note, polls=polls)
    steps = replace(case, train=replace(case.train, warmup=0, steps=2))
    storage = _DryStorage(case.plan.offload_chunk_bytes, log.note) if case.plan.offload != "none" else None
    samples = _Samples(case, mesh.axis(*BATCH_AXES))
    validation = _Samples(replace(case, data=replace(case.data, loading="memory")), mesh.axis())
    return assemble(steps, mesh, samples, log, storage, validation=validation), mesh


class _Log:
    """Notes work and calls by phase: what is done between two phases belongs to the later one."""

    def __init__(self) -> None:
        self.phases: list[PhaseWork] = []
        self.operations: list[Operation] = []
        self._same: dict[Operation, Operation] = {}  # one object for what comes again
        self.pool: Buffers | None = None  # of activations, if what it keeps is asked for
        self.kept_bytes = 0

    def begin(self) -> None:
        """Begin with nothing noted."""
        self.operations = []

    def note(self, operation: Operation) -> None:
        """Add an operation."""
        self.operations.append(self._same.setdefault(operation, operation))

    @contextmanager
    def step(self, index: int) -> Iterator[None]:  # noqa: ARG002
        """Begin with nothing noted."""
        self.begin()
        yield

    @contextmanager
    def phase(self, name: str, action: Action | None = None) -> Iterator[None]:
        """Close a phase at the end of the block."""
        yield
        self.phases.append(PhaseWork(name, action, tuple(self.operations)))
        self.operations = []
        if self.pool is not None:
            self.kept_bytes = max(self.kept_bytes, self.pool.kept_bytes)


class _Samples(Batches):
    """Batches without memory, which the first rank of `axis` scatters where the case says so."""

    def __init__(self, case: Case, axis: Axis):
        model, sequences = case.model, case.train.batch // case.plan.batch_parts // case.train.micro_batches
        width: tuple[int, ...] = (model.width,)
        shape: tuple[int, ...]
        shape, kind = (sequences, model.sequence), dtype_of(model.dtype)
        if model.kind in ("gpt", "moe"):
            width, kind = (), np.dtype(np.intp)
        elif model.kind == "linear":
            shape = (sequences,)
        targets = (*shape, 1) if model.kind == "linear" else (*shape, *width)
        self._pair = meta_array((*shape, *width), kind), meta_array(targets, kind)
        self._axis, self._windows = axis, None
        if case.data.loading == "scatter" and axis.size > 1:
            self._windows = meta_array((sequences, model.sequence + 1), np.dtype(np.uint8))

    def fill(self, step: int, micro: int) -> tuple[Array, Array]:  # noqa: ARG002
        """Return inputs and targets."""
        if self._windows is not None:
            parts = meta_array((self._axis.size, *self._windows.shape), self._windows.dtype)
            self._axis.scatter(parts if self._axis.rank == 0 else None, self._windows)
        return self._pair


class _DryScratch:
    """Room in no file."""

    size_bytes = 0

    def reserve(self, size_bytes: int) -> int:
        """Return where so much more would begin."""
        self.size_bytes += size_bytes
        return self.size_bytes - size_bytes

    def mapped(self, size_bytes: int) -> Window:
        """Return as much as a window."""
        return Window(aligned(size_bytes), self.reserve(size_bytes))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None  # whatever the thread would do


class _DryStorage(Storage):
    """A file that is not there; what is handed over is done at once."""

    def __init__(self, chunk_bytes: int, note: Callable[[FileTransfer], None]):
        self.chunk_bytes, self.written_bytes = chunk_bytes, 0
        self._scratch: Any = _DryScratch()
        self._note = note

    def wait(self, transfer: Transfer) -> None:
        """Note that it has to be over."""
        self._note(FileTransfer("wait", transfer.verb, transfer.size_bytes))

    def close(self) -> None:
        """Close nothing."""

    def _hand(self, verb: Verb, at: int, size_bytes: int, work: Callable[[], None]) -> Transfer:
        self._note(FileTransfer("start", verb, size_bytes))
        self.written_bytes += size_bytes * (verb == "write")
        return Transfer(verb, at, size_bytes, work)
