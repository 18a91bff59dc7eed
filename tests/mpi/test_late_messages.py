"""Every strategy in 16 bits over messages that come as late as MPI allows, in any order that it allows.

A mesh of threads has the axes of MPI here. Nothing moves until all sides have begun and one of them waits, or
asks and is lucky: so memory that is used too early shows, and a message in another's place, and a sum that
nobody lets go on. Messages of two ranks match in the order in which both begin them, by their tags, since MPI
lets none overtake another.
"""

import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import thread_mesh
from mpi4py import MPI
from patience import LIMIT_S
from plans import TEXT, name, on_plan, train
from programs import random_program
from thread_mesh import ThreadMesh, reduced, run_ranks

from pscale.config import Matrix, Model, Plan, Precision
from pscale.mesh.axis import Axis, Tag
from pscale.nn import kernels
from pscale.nn.kernels.sixteen_bit import HalfKernels
from pscale.worker.waits import ideal

_OTHERS_S = 1e-5  # for which another rank gets the turn


class Exchange:
    """What all of its sides begin, each with its memory; it happens when one of them hears of it."""

    def __init__(self, sides, act, tag=None):
        self.missing, self._act, self.tag = sides, act, tag
        self.memory, self._has_happened = [None] * sides, False

    def happen(self):
        if not self._has_happened:
            self._act(self.memory)
        self._has_happened = True


class LateRequest:
    """One side of an exchange: half of them hear at once that all is there, the others seldom."""

    def __init__(self, exchange, board, random):
        self._exchange, self._board, self._random, self._is_complete = exchange, board, random, False
        self._questions = random.choice((1, 16))

    def Test(self):  # noqa: N802 - as mpi4py calls it
        self._board.turn.release()
        time.sleep(_OTHERS_S)
        self._board.turn.acquire()
        if self._board.gate.is_broken:
            raise threading.BrokenBarrierError
        if (
            not self._is_complete
            and not self._exchange.missing
            and not self._random.integers(self._questions)
        ):
            self._complete()
        return self._is_complete

    def Wait(self):  # noqa: N802
        board, exchange = self._board, self._exchange
        assert board.changed.wait_for(lambda: not exchange.missing or board.gate.is_broken, LIMIT_S)
        if exchange.missing:
            raise threading.BrokenBarrierError
        self._complete()

    def _complete(self):
        self._exchange.happen()
        self._is_complete = True


class LateComm:
    """A communicator as `Axis` uses it."""

    def __init__(self, rank, size, board, random):
        self.rank, self.size = rank, size
        self._board, self._random, self._count = board, random, 0
        for verb in _BLOCKING:
            setattr(self, verb, partial(self._done, getattr(self, f"I{verb.lower()}")))

    def Isend(self, x, to, tag):  # noqa: N802
        return self._message((self.rank, to), "send", x, tag)

    def Irecv(self, out, source, tag=MPI.ANY_TAG):  # noqa: N802
        return self._message((source, self.rank), "receive", out, tag)

    def Iallreduce(self, x, out, op, _root=None):  # noqa: N802
        return self._collective(partial(_reduce, op), out if x is None else x, out)

    Ireduce = Iallreduce

    def Ireduce_scatter_block(self, x, out, op):  # noqa: N802
        x, out = (out, _parts(out, self.size)[0]) if x is None else (x, out)
        return self._collective(partial(_reduce_scatter, op), x, out)

    def Iallgather(self, x, out):  # noqa: N802
        return self._collective(_gather, _parts(out, self.size)[self.rank] if x is None else x, out)

    def Igather(self, x, out, _root):  # noqa: N802
        return self._collective(_gather, x, out)

    def Ibcast(self, x, root):  # noqa: N802
        return self._collective(_gather, x if self.rank == root else x[:0], x)

    def Ialltoall(self, x, out):  # noqa: N802
        return self._collective(_exchange, x, out)

    def Iscatter(self, parts, out, _root):  # noqa: N802
        return self._collective(_exchange, parts, out)

    def Ibarrier(self):  # noqa: N802
        return self._collective(lambda _: None, None, None)

    def gather(self, value):
        everyone = []
        self._collective(_share, value, everyone).Wait()
        return everyone if self.rank == 0 else None

    def _done(self, start, *arguments):
        start(*arguments).Wait()

    def _collective(self, act, x, out):
        """Begin what all ranks begin, in one order."""
        self._count += 1
        exchange = self._board.exchanges.setdefault(self._count, Exchange(self.size, act))
        return self._begin(exchange, self.rank, (x, out))

    def _message(self, ranks, side, memory, tag):
        other = "receive" if side == "send" else "send"
        waiting = self._board.exchanges.setdefault((ranks, other), [])
        exchange = next((each for each in waiting if tag == each.tag or MPI.ANY_TAG in (tag, each.tag)), None)
        if exchange:
            waiting.remove(exchange)
        else:
            exchange = Exchange(2, _deliver, tag)
            self._board.exchanges.setdefault((ranks, side), []).append(exchange)
        return self._begin(exchange, ("send", "receive").index(side), memory)

    def _begin(self, exchange, side, memory):
        exchange.memory[side] = memory
        exchange.missing -= 1
        self._board.changed.notify_all()
        return LateRequest(exchange, self._board, self._random)


_BLOCKING = (
    *("Allreduce", "Reduce", "Reduce_scatter_block", "Allgather", "Gather", "Bcast", "Alltoall", "Scatter"),
    "Barrier",
)


def _parts(x, count):
    return x.reshape(count, -1)


def _deliver(sides):
    x, out = sides
    assert x.size == out.size, "another message was meant"
    out.reshape(-1)[...] = x.reshape(-1)


def _total(op, sides):
    return reduced([x for x, _ in sides], op).reshape(-1)


def _reduce(op, sides):
    _write([_total(op, sides)] * len(sides), sides)


def _reduce_scatter(op, sides):
    _write(_parts(_total(op, sides), len(sides)), sides)


def _gather(sides):
    _write([np.concatenate([x.reshape(-1) for x, _ in sides])] * len(sides), sides)


def _exchange(sides):
    given = np.stack([_parts(x, len(sides)) for x, _ in sides if x is not None])
    _write([given[:, rank].copy() for rank in range(len(sides))], sides)


def _share(sides):
    for _, everyone in sides:
        everyone += [value for value, _ in sides]


def _write(results, sides):
    for result, (_, out) in zip(results, sides, strict=True):
        if out is not None:
            out.reshape(-1)[...] = result.reshape(-1)


class LateMesh(ThreadMesh):
    """The ranks of a job on late messages."""

    def __init__(self, switchboard, rank, *more):
        self._random = np.random.default_rng(rank)
        super().__init__(switchboard, rank, *more)

    def _made(self, name, rank, board, size, recorder):
        return Axis(name, LateComm(rank, size, board, self._random), recorder, self._outstanding)


SMALL = replace(
    TEXT,
    model=Model(layers=2, width=24, heads=6, sequence=12, dtype="bf16"),
    precision=Precision(initial_scale=256.0),
    train=replace(TEXT.train, batch=12, steps=2),
)
MOE = replace(SMALL, model=replace(SMALL.model, kind="moe", experts=4, top_k=2, every=1))
PLANS = [
    (SMALL, 1, Plan(dp=3)),
    (SMALL, 1, Plan(dp=2, reduction="gather-broadcast")),
    (SMALL, 2, Plan(dp=3, zero=1)),
    (SMALL, 1, Plan(dp=4, zero=3, shard=2)),
    (SMALL, 2, Plan(dp=2, tp=2, sp=True, zero=2)),
    (SMALL, 1, Plan(tp=3, embedding="column")),
    (SMALL, 1, Plan(cp=3)),
    (SMALL, 1, Plan(cp=3, placement="contiguous", zero=1)),
    (SMALL, 1, Plan(cp=2, tp=2)),
    (SMALL, 2, Plan(cp=2, pp=2)),
    (SMALL, 3, Plan(dp=2, cp=2, pp=2, schedule="zero-bubble")),
    (SMALL, 2, Plan(pp=2, dp=2, zero=3, schedule="gpipe")),
    (SMALL, 2, Plan(pp=2, tp=2, sp=True)),
    (SMALL, 1, Plan(cp=3, context="ulysses")),
    (SMALL, 1, Plan(cp=3, context="all-gather")),
    (SMALL, 1, Plan(cp=6, context="unified", ulysses=2)),
    (MOE, 2, Plan(ep=2, pp=2, zero=1)),
    (MOE, 1, Plan(cp=2, ep=2, tp=2, sp=True)),
    (SMALL, 1, Plan(dp=2, matrix=Matrix(tx=2, ty=2, algorithm="cannon"), zero=1)),
    (SMALL, 1, Plan(matrix=Matrix(tx=3, ty=3, algorithm="cannon"))),
    (SMALL, 1, Plan(matrix=Matrix(tx=3, ty=2, algorithm="summa"))),
    (SMALL, 1, Plan(matrix=Matrix(tx=2, tz=2, algorithm="agarwal"))),
    (SMALL, 1, Plan(dp=2, matrix=Matrix(ty=2, tz=2, algorithm="axonn"))),
]


@pytest.fixture(autouse=True)
def _late(monkeypatch):
    before = kernels.current()
    kernels.use(HalfKernels())
    monkeypatch.setattr(thread_mesh, "ThreadMesh", LateMesh)
    yield
    kernels.use(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "micro_batches", "plan", "dtype"),
    [(*each, ("bf16", "fp16")[number % 2]) for number, each in enumerate(PLANS)],
    ids=name,
)
def test_every_strategy_computes_the_same_to_the_last_bit(case, micro_batches, plan, dtype, tmp_path):
    plan = replace(plan, bucket_bytes=1000)  # sums begin while others are under way
    case = on_plan(replace(case, model=replace(case.model, dtype=dtype)), plan, micro_batches)
    found = train(case, plan, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_mesh, "ThreadMesh", ThreadMesh)
        expected = train(case, plan, tmp_path)
    np.testing.assert_array_equal(found.losses, expected.losses)
    for tensor, whole in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[tensor], whole, err_msg=str(tensor))
    assert found.counted == expected.counted


@pytest.mark.parametrize("seed", range(10))
def test_a_random_program_takes_as_long_as_its_longest_path_in_whatever_order_ranks_complete_it(seed):
    program = random_program(seed, {"pp": 2, "dp": 2}, alike=False)

    def one(mesh):
        rank, axes = mesh.world.rank, [mesh.axis(*span) for span in program.spans]
        return ideal(program.rows[rank], program.wait[rank], axes, start_ns=0)[1]

    assert np.abs(np.array(run_ranks(program.sizes, one)) - program.ideal * 1e-9).max() < 1e-12


def test_a_sum_of_16_bits_and_a_message_begun_in_different_orders_each_get_what_is_theirs():
    def one(mesh):
        axis = mesh.axis("dp")
        half, message = np.full(64, axis.rank + 1, np.float16), np.full(64, 7 * (1 - axis.rank), np.float16)
        if axis.rank == 0:
            calls = axis.start_all_reduce(half), axis.start_send(message, 1, Tag.MESSAGE)
        else:
            calls = axis.start_receive(message, 0, Tag.MESSAGE), axis.start_all_reduce(half)
        for call in calls:
            call.wait()
        return half[0], message[0]

    assert run_ranks(2, one) == [(3, 7), (3, 7)]
