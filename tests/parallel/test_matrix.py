"""The four ways to multiply on a grid, each by itself: what it computes, what it moves, what it refuses."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from arena import Arena
from thread_mesh import ThreadAxis, run_ranks

from pscale.config import Case, Matrix, Model, Plan, Train
from pscale.mesh.grid import coordinates
from pscale.nn.buffers import Buffers
from pscale.nn.common_layers import LayerNorm
from pscale.nn.kernels import tiles
from pscale.nn.param import Param, constant, share
from pscale.parallel.matrix import cannon
from pscale.parallel.matrix.grid import SCHEMES, cut
from pscale.parallel.matrix.layers import ColumnNorm, MatrixLinear, make_product
from pscale.runs.schema import VERBS, Kind
from pscale.training.dry_run import step_calls
from pscale.worker.recorder import Recorder

M, K, N = 24, 36, 48  # rows, contraction, columns


def grid(tx, ty, tz, algorithm):
    return Plan(matrix=Matrix(tx=tx, ty=ty, tz=tz, algorithm=algorithm))


SQUARES = [grid(q, q, 1, algorithm) for algorithm in ("cannon", "summa") for q in (2, 3)]
OBLONGS = [grid(*sides, 1, "summa") for sides in ((2, 3), (4, 2), (1, 2))]
CUBES = [grid(*sides, "agarwal") for sides in ((2, 2, 2), (3, 2, 2), (1, 2, 2), (2, 1, 1))]
FOURTH = [grid(*sides, "axonn") for sides in ((2, 2, 2), (2, 2, 3), (1, 3, 1), (3, 1, 1), (1, 1, 3))]
GRIDS = [*SQUARES, *OBLONGS, *CUBES, *FOURTH]
DIRECTIONS = ["into", "out_of"]


def name(plan):
    return plan.matrix.product


def lying(plan, direction):
    """Return where A, B and C lie for a product that leads into a pair, or out of it."""
    scheme = SCHEMES[plan.matrix.algorithm]
    ends = (scheme.outside, scheme.inside) if direction == "into" else (scheme.inside, scheme.outside)
    return ends[0], getattr(scheme, direction), ends[1]


def factors():
    random = np.random.default_rng(4)
    return [random.integers(-9, 10, shape).astype(float) for shape in ((M, K), (K, N), (N,), (M, N))]


def part(whole, partition, mesh):
    cutting, shape = cut(whole.shape, partition, mesh)
    return cutting, np.ascontiguousarray((cutting.take(whole) if cutting else whole).reshape(shape))


def put(cutting, mine, whole):
    if cutting:
        cutting.put(mine, whole)
    else:
        whole[...] = mine.reshape(whole.shape)


def taken(x, buffers):
    mine = buffers.take(x.shape, x.dtype)
    np.copyto(mine, x)
    return mine


def multiplied(plan, direction):
    """Return C, dA, dB and the gradient of the bias, whole, and what each rank moved forward and backward."""
    a, b, bias, dc = factors()
    spread_a, spread_b, spread_c = lying(plan, direction)
    wholes = [np.full(like.shape, np.nan) for like in (dc, a, b, bias)]
    recorders = [Recorder(["tz", "tx", "ty"]) for _ in range(plan.ranks)]

    def one(mesh):
        buffers, recorder = Buffers(), recorders[mesh.world.rank]
        (cut_a, mine_a), (cut_b, mine_b) = part(a, spread_a, mesh), part(b, spread_b, mesh)
        (cut_c, mine_dc), (cut_bias, mine_bias) = part(dc, spread_c, mesh), part(bias, spread_c, mesh)
        weight, vector = (Param("p", mine.shape, layer=0, draw=constant(0.0)) for mine in (mine_b, mine_bias))
        arena = Arena([weight, vector], np.float64)
        weight.data[...], vector.data[...] = mine_b, mine_bias
        arena.clear_grads()
        product = make_product(plan, mesh, spread_b, buffers=buffers)
        layer = MatrixLinear(weight, vector, product)
        recorder.enabled = True
        y, cache = layer.forward(taken(mine_a[:, None], buffers))
        forward = moved(recorder, plan)
        put(cut_c, y, wholes[0])
        dx = layer.backward(taken(mine_dc[:, None], buffers), cache)
        recorder.enabled = False
        rows = mesh.axis(*spread_c.rows)
        rows.all_reduce(vector.grad)
        for cutting, mine, whole in zip(
            (cut_a, cut_b, cut_bias), (dx, weight.grad, vector.grad), wholes[1:], strict=True
        ):
            put(cutting, mine, whole)
        del y, cache, dx
        assert buffers.held_bytes == 0
        return forward, moved(recorder, plan) - forward

    return wholes, run_ranks(plan.sizes, one, recorders)


def moved(recorder, plan):
    """Return the elements that a rank sent in rings and to neighbours or, of broadcasts, received."""
    rows, total = recorder.rows(), Fraction()
    made = np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED))
    for axis, verb, size in zip(
        *(rows[key][made].tolist() for key in ("axis", "verb", "bytes")), strict=True
    ):
        p = plan.sizes[recorder.axes[axis]]
        times = {
            "all_gather": p - 1,
            "broadcast": p - 1,  # from each rank in turn, all blocks of one size
            "reduce_scatter": Fraction(p - 1, p),
            "reduce": Fraction(p - 1, p),  # to each rank in turn
            "all_reduce": Fraction(2 * (p - 1), p),
            "send": 1,
            "receive": 0,
        }
        total += Fraction(size, 8) * times[VERBS[verb]]
    return total


def of_the_literature(plan, direction, rank):
    """Return the elements of a product forward and backward, as docs and papers count them."""
    sizes, place = plan.sizes, coordinates(plan.sizes, rank)
    contraction, output = (sizes["tx"], sizes["ty"]) if direction == "into" else (sizes["ty"], sizes["tx"])
    depth, ranks = sizes["tz"], plan.ranks
    mk, kn, mn = M * K, K * N, M * N
    match plan.matrix.algorithm:
        case "summa":
            across, down = sizes["ty"], sizes["tx"]
            one = Fraction((across - 1) * mk + (down - 1) * kn, ranks)
            return one, 2 * one
        case "cannon":
            q, i, j = contraction, place["tx"], place["ty"]
            one, skew = Fraction((q - 1) * (mk + kn), q * q), (mk * (i != 0) + kn * (j != 0)) // (q * q)
            home = (mk * (i != 1) + kn * (j != 1)) // (q * q)
            return one + skew, 2 * one + skew + home
        case "agarwal":
            a, b, c = (
                Fraction((p - 1) * size, ranks) for p, size in ((output, mk), (depth, kn), (contraction, mn))
            )
            return a + b + c, 2 * (a + b + c) - c  # both transposed products use what was gathered of dC
        case "axonn":
            gathered = Fraction((depth - 1) * kn, ranks)
            summed = [
                Fraction(2 * (p - 1) * M * side, p * depth * q)
                for p, side, q in ((contraction, N, output), (output, K, contraction))
            ]
            return gathered + summed[0], gathered + summed[1] + Fraction(
                (depth - 1) * kn, depth * contraction * output
            )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("plan", GRIDS, ids=name)
def test_products_of_integers_are_exact_and_move_what_the_literature_counts(plan, direction):
    a, b, bias, dc = factors()
    wholes, volumes = multiplied(plan, direction)
    for found, expected in zip(wholes, (a @ b + bias, dc @ b.T, a.T @ dc, dc.sum(0)), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert volumes == [of_the_literature(plan, direction, rank) for rank in range(plan.ranks)]


MISTAKES = {
    "a shift": (SQUARES[0], cannon.ShiftedBlock, "start"),
    "a broadcast": (SQUARES[2], ThreadAxis, "broadcast"),
    "the sum of blocks": (SQUARES[2], ThreadAxis, "reduce"),
    "the sum of a contraction": (FOURTH[0], ThreadAxis, "all_reduce"),
    "rows of weights": (FOURTH[0], ThreadAxis, "all_gather"),
    "the scattered sum": (CUBES[0], ThreadAxis, "reduce_scatter"),
}


@pytest.mark.parametrize("missing", MISTAKES)
def test_what_is_missing_is_seen_in_the_product(missing, monkeypatch):
    plan, place, verb = MISTAKES[missing]
    monkeypatch.setattr(place, verb, lambda *_, **__: None)
    a, b, bias, dc = factors()
    wholes, _ = multiplied(plan, "into")
    expected = (a @ b + bias, dc @ b.T, a.T @ dc)
    assert any((found != right).any() for found, right in zip(wholes, expected, strict=False))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_norm_of_columns_on_several_ranks_is_that_of_whole_rows(ranks, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", 2 * 12 // ranks * 8)  # two rows: three tiles
    random = np.random.default_rng(2)
    x, dy = 1e3 + random.normal(size=(2, 3, 12)), random.normal(size=(2, 3, 12))
    gain, bias = random.normal(size=(2, 12))

    def one(make, x, dy, gain, bias):
        pool = Buffers()
        params = [Param(each, gain.shape, layer=0, draw=constant(0.0)) for each in ("gain", "bias")]
        arena = Arena(params, np.float64)
        params[0].data[...], params[1].data[...] = gain, bias
        arena.clear_grads()
        layer = make(*params, buffers=pool)
        y, cache = layer.forward(taken(x, pool))
        result = y.copy()
        dx = layer.backward(taken(dy, pool), cache)
        return result, dx, params[0].grad, params[1].grad

    def mine(mesh):
        axis = mesh.axis("tx")
        columns = share(12, axis.size, axis.rank)
        make = partial(ColumnNorm, axis=axis)
        return one(make, *(np.ascontiguousarray(each[..., columns]) for each in (x, dy, gain, bias)))

    expected = one(LayerNorm, x, dy, gain, bias)
    for whole, parts in zip(expected, zip(*run_ranks({"tx": ranks}, mine), strict=True), strict=True):
        np.testing.assert_allclose(np.concatenate(parts, -1), whole, rtol=1e-9, atol=1e-9)


def case_of(plan, batch=8, micro_batches=1, **sizes):
    model = Model(**{"heads": 4, "width": 24, "sequence": 16, "layers": 2, **sizes})
    train = Train(batch=batch, micro_batches=micro_batches)
    return Case(suite="s", label="l", ranks=plan.ranks, plan=plan, model=model, train=train)


def calls(plan, clip=None):
    case = case_of(plan, sequence=16, vocabulary=64)
    found = Counter()
    for call in step_calls(replace(case, train=replace(case.train, clip=clip)), 0):
        found[call.verb, call.sent_bytes] += call.count
    return found


def test_an_output_alone_is_tensor_parallelism_and_no_grid_is_data_parallelism():
    assert calls(Plan(matrix=Matrix(ty=4)), clip=1.0) == calls(Plan(tp=4), clip=1.0)
    assert calls(Plan(dp=4, matrix=Matrix(algorithm="agarwal"))) == calls(Plan(dp=4))


def test_a_depth_alone_moves_weights_as_sharded_replicas_do():
    depth, sharded, p, item = calls(Plan(matrix=Matrix(tz=4))), calls(Plan(dp=4, zero=3)), 4, 4
    h, L, V, T = 24, 2, 64, 16
    matrices, others = 12 * h * h * L + V * h, 13 * h * L + 2 * h + (V + T) * h

    def total(found, verb):
        return sum(size * count for (each, size), count in found.items() if each == verb)

    assert total(depth, "all_gather") == 2 * matrices * item // p
    assert total(depth, "reduce_scatter") == matrices * item
    assert total(depth, "all_reduce") == others * item  # sums of gradients: of what is no factor of a product
    assert total(sharded, "all_gather") == 2 * (matrices + others) * item // p
    assert total(sharded, "reduce_scatter") == (matrices + others) * item
