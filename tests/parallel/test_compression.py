"""Compressed gradients: what is sent, what is held back, and a simulation of all replicas by naive means."""

from dataclasses import replace

import numpy as np
import pytest
from plans import TEXT, assert_is_serial, difference, predicted_calls, predicted_state, serial, train
from thread_mesh import run_ranks

from pscale.config import Plan
from pscale.parallel import zero
from pscale.parallel.compression import codecs, make_compressed
from pscale.parallel.compression.codecs import BLOCK, ROUNDINGS, Blocks, Largest
from pscale.parallel.compression.low_rank import LowRank

KINDS = ["fp16", "int8", "sign", "topk", "powersgd"]
SHAPES = [(40, 60), (60,), (50, 90), (17,)]
SIZE = 40 * 60 + 60 + 50 * 90 + 17
STEPS = 6


def drawn(rank, step, dtype="float64"):
    return np.random.default_rng([rank, step]).normal(0, 10.0 ** (rank - 2), SIZE).astype(dtype)


def steps_of(plan, gradients=drawn, dtype="float64", steps=STEPS):
    """Return, of every rank, all sums in order and what is held back at the end."""

    def one(mesh):
        grad, sums = np.empty(SIZE, dtype), []
        exchange = make_compressed(plan, grad, SHAPES, mesh.axis("dp"))
        for step in range(steps):
            grad[...] = gradients(mesh.world.rank, step)
            exchange.finish()
            sums.append(grad.copy())
        return np.array(sums), exchange.held_back

    return run_ranks(plan.dp, one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dp", [2, 3])
def test_what_was_sent_and_what_is_held_back_are_the_sum_of_all_gradients(kind, dp):
    ranks = steps_of(Plan(dp=dp, compression=kind))
    expected = sum(drawn(rank, step) for rank in range(dp) for step in range(STEPS))
    found = ranks[0][0].sum(0) + sum(held_back for _, held_back in ranks)
    assert np.abs(found - expected).max() < 1e-12 * np.abs(expected).max()
    assert all(np.array_equal(sums, ranks[0][0]) for sums, _ in ranks), "every rank has the same bits"


def test_held_back_gradients_that_are_forgotten_are_missed():
    once = steps_of(Plan(dp=2, compression="sign"), steps=1)
    sent = STEPS * once[0][0][0]  # the same gradients in every step
    ranks = steps_of(Plan(dp=2, compression="sign"), gradients=lambda rank, _: drawn(rank, 0))
    expected = STEPS * (drawn(0, 0) + drawn(1, 0))
    held_back = sum(held for _, held in ranks)
    assert np.abs(ranks[0][0].sum(0) + held_back - expected).max() < 1e-12
    assert np.abs(sent + sum(held for _, held in once) - expected).max() > 0.1


@pytest.mark.parametrize(
    ("kind", "limit"),
    [("fp16", 2**-11), ("int8", 0.5 / 127)],  # half of the last bit; half of a step
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_off_by_half_a_step_of_the_largest_of_a_block_at_most(kind, limit, dtype):
    x = np.geomspace(1e-12, 1e9, 5 * BLOCK + 77).astype(dtype)
    x[::2] *= -1
    left, codec = x.copy(), Blocks(x.size, dtype, ROUNDINGS[kind])
    codec.encode(left, np.empty(codec.message_bytes, np.uint8))
    for start in range(0, x.size, BLOCK):
        block = slice(start, start + BLOCK)
        assert 0 < np.abs(left[block]).max() <= 1.0001 * limit * np.abs(x[block]).max()


@pytest.mark.parametrize("kind", ["fp16", "int8", "sign"])
def test_a_block_of_zeros_stays_zero_and_one_that_is_no_number_stays_none(kind):
    x = np.zeros(2 * BLOCK + 3)
    x[BLOCK] = np.nan
    codec, total = Blocks(x.size, x.dtype, ROUNDINGS[kind]), np.ones(x.size)
    message = np.empty((1, codec.message_bytes), np.uint8)
    codec.encode(x, message[0])
    codec.add_up(message, total)
    assert np.array_equal(np.isnan(total), np.arange(x.size) // BLOCK == 1)
    assert not total[:BLOCK].any()
    assert not total[2 * BLOCK :].any()


def test_the_largest_of_all_are_the_plain_sum_bit_for_bit():
    ranks = steps_of(Plan(dp=3, compression="topk", compression_share=1.0), steps=2)
    for step in range(2):
        assert np.array_equal(ranks[1][0][step], np.add.reduce([drawn(rank, step) for rank in range(3)]))
    assert not any(held_back.any() for _, held_back in ranks)


@pytest.mark.parametrize("most", [codecs.MOST, 9], ids=["", "wide indices"])
@pytest.mark.parametrize("x", [np.repeat([1.0, -1.0, 0.0], 4000), np.eye(1, 9000, 5)[0], np.zeros(10)])
def test_exactly_the_share_is_picked_where_many_are_equal(x, most, monkeypatch):
    monkeypatch.setattr(codecs, "MOST", most)
    codec, left, total = Largest(x.size, x.dtype, 0.3), x.copy(), np.empty(x.size)
    message = np.empty((1, codec.message_bytes), np.uint8)
    codec.encode(left, message[0])
    codec.add_up(message, total)
    indices = codec._seen(message[0])[1]
    assert len(set(indices)) == indices.size == round(0.3 * x.size)
    assert np.array_equal(total + left, x)
    assert np.abs(left).max() <= np.abs(total[indices]).min()


def test_a_sum_of_low_rank_is_whole_and_nothing_but_rounding_is_held_back():
    random = np.random.default_rng(7)
    column = random.normal(size=(40, 2))
    parts = [column @ random.normal(size=(2, 60)) for _ in range(2)]

    def one(mesh):
        grad = parts[mesh.world.rank].reshape(-1).copy()
        exchange = LowRank(grad, mesh.axis("dp"), [(40, 60)], rank=2)
        exchange.finish()
        return grad, exchange.held_back

    (found, first), (_, second) = run_ranks(2, one)
    assert np.allclose(found, sum(parts).reshape(-1), rtol=0, atol=1e-12)
    assert np.allclose(first + second, 0, atol=1e-12)


def test_an_iteration_continues_after_a_step_without_gradients():
    def vanishing(rank, step):
        return drawn(rank, step) * (step > 0)

    sums, _ = steps_of(Plan(dp=2, compression="powersgd"), gradients=vanishing)[0]
    assert not sums[0].any()
    assert np.abs(sums[-1][: 40 * 60]).max() > 0.01


class Simulated:
    """All replicas of the axis on one rank: gathers their gradients as they are, and encodes for each."""

    def __init__(self, plan, grad, axis):
        self.grad, self.axis, self.plan = grad, axis, plan
        self.of_all = np.zeros((axis.size, grad.size))
        self.held_back = self.of_all[axis.rank]
        self.buffer_bytes = 0

    def ready(self, unit):
        pass

    def finish(self):
        every = np.empty((self.axis.size, self.grad.size))
        self.axis.all_gather(self.grad[None], every)
        self.of_all += every
        sent = [naive(self.plan, row) for row in self.of_all]
        self.of_all -= sent
        self.grad[...] = sum(sent)


def naive(plan, x):
    """Return what is left of `x` when it has been sent."""
    if plan.compression == "topk":
        sent, count = np.zeros(x.size), max(1, round(x.size * plan.compression_share))
        largest = np.argsort(-np.abs(x), kind="stable")[:count]
        sent[largest] = x[largest]
        return sent
    blocks = np.split(x, range(BLOCK, x.size, BLOCK))
    return np.concatenate([rounded(plan.compression, block) for block in blocks])


def rounded(kind, x):
    if kind == "sign":
        return np.where(x >= 0, 1, -1) * np.float64(np.float32(np.abs(x).sum()) / np.float32(x.size))
    scale = np.float64(np.float32(np.abs(x).max()) / np.float32(127 if kind == "int8" else 1)) or 1.0
    return (np.rint(x / scale) if kind == "int8" else np.float64(np.float16(x / scale))) * scale


PRODUCTS = [
    (Plan(dp=2, compression="fp16"), 1),
    (Plan(dp=2, pp=2, compression="int8"), 2),
    (Plan(dp=2, tp=2, sp=True, compression="sign"), 1),
    (Plan(dp=4, compression="topk", compression_share=0.1), 1),
]


@pytest.mark.parametrize(("plan", "micro_batches"), PRODUCTS, ids=[plan.compression for plan, _ in PRODUCTS])
def test_training_is_that_of_a_simulation_and_calls_and_memory_are_those_predicted(
    plan, micro_batches, tmp_path, monkeypatch
):
    case = replace(TEXT, train=replace(TEXT.train, micro_batches=micro_batches))
    run = train(case, plan, tmp_path)
    assert run.spread == 0
    assert run.counted == predicted_calls(case, plan)
    assert run.memory == predicted_state(case, plan)

    def simulated(plan, grad, _, axis):
        return Simulated(plan, grad, axis) if axis.size > 1 else None

    monkeypatch.setattr(zero, "make_compressed", simulated)
    expected = train(case, plan, tmp_path)
    weights = [name for name in run.tensors if name[0] == "weights"]
    assert all(np.array_equal(run.tensors[name], expected.tensors[name]) for name in weights)
    assert np.abs(run.losses - serial(case, tmp_path).losses).max() > 1e-9


TIED_ENDS = [
    Plan(dp=2, compression="int8"),
    Plan(dp=2, pp=2, tp=2, compression="powersgd"),
    Plan(dp=2, pp=2, tp=2, embedding="column", compression="topk"),
]


@pytest.mark.parametrize("plan", TIED_ENDS, ids=[plan.compression for plan in TIED_ENDS])
def test_both_ends_of_a_tied_table_add_up_what_they_send_and_what_they_hold_back(plan, tmp_path):
    case = replace(TEXT, model=replace(TEXT.model, tied=True))
    run, expected = train(case, plan, tmp_path), serial(case, tmp_path)
    assert run.spread == 0
    assert run.counted == predicted_calls(case, plan)
    assert run.memory == predicted_state(case, plan)
    for key, whole in expected.tensors.items():
        if key[0] == "gradients":
            assert difference(run.tensors[key], whole) <= 1e-12


def test_one_replica_sends_nothing_and_loses_nothing(tmp_path):
    assert_is_serial(TEXT, Plan(compression="sign"), tmp_path)
