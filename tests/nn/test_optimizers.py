import math
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from arena import Arena
from thread_mesh import run_ranks

from pscale.config import Train
from pscale.config.choices import Optimizer
from pscale.nn.kernels import tiles
from pscale.nn.optimizers import learning_rate, make_optimizer, rule_of
from pscale.nn.optimizers.adafactor import _blocks
from pscale.nn.optimizers.base import ProcessGroups, update
from pscale.nn.optimizers.muon import orthogonalise
from pscale.nn.optimizers.state import Flat, Run
from pscale.nn.param import Param, constant

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text(encoding="utf-8")
LRS, SCALES = (0.1, 0.02, 0.05), (1.0, 0.25, 0.5)
RANDOM = np.random.default_rng(3)
SHAPES = {"bias": (5,), "matrix": (2, 4), "experts": (2, 2, 3), "gain": (9,)}
SIZE = sum(math.prod(shape) for shape in SHAPES.values())
START = RANDOM.normal(size=SIZE)
GRADS = RANDOM.normal(size=(3, SIZE))
HIDDEN = {"matrix": 2, "experts": 1}


def parameters(shapes=SHAPES):
    return [
        Param(name, shape, layer=0, draw=constant(0.0), decay=name in HIDDEN, matrices=HIDDEN.get(name, 0))
        for name, shape in shapes.items()
    ]


def flat_of(arena):
    return Flat(arena.data, arena.grad, arena.params)


def trained(train: Train) -> dict[str, np.ndarray]:
    """Return the tensors after three steps."""
    arena = Arena(parameters(), "float64")
    arena.data[:] = START
    optimizer = make_optimizer(train, [flat_of(arena)])
    for number, (lr, scale, grad) in enumerate(zip(LRS, SCALES, GRADS, strict=True), 1):
        arena.grad[:] = grad
        update(optimizer, 1, lr, scale, number)
        np.testing.assert_array_equal(arena.grad, grad)
    return {param.name: param.data for param in arena.params}


def by_tensor(values):
    found, start = {}, 0
    for name, shape in SHAPES.items():
        found[name] = values[..., start : (start := start + math.prod(shape))].reshape(
            *values.shape[:-1], *shape
        )
    return found


def expected(train, step):
    """Return the tensors after three of `step(state, weight, gradient, at)`, tensor by tensor."""
    weights, grads = by_tensor(START), by_tensor(GRADS)
    for name in SHAPES:
        state, decay = {}, train.weight_decay if name in HIDDEN else 0.0
        for number, (lr, scale) in enumerate(zip(LRS, SCALES, strict=True), start=1):
            at = SimpleNamespace(number=number, lr=lr, decay=decay, matrices=HIDDEN.get(name, 0))
            weights[name] = step(state, weights[name], scale * grads[name][number - 1], at)
    return weights


def assert_follows(train, step):
    for name, weight in expected(train, step).items():
        np.testing.assert_allclose(trained(train)[name], weight, rtol=1e-12, err_msg=name)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(tiles, "CHUNK", 5)
    monkeypatch.setattr(tiles, "TILE_BYTES", 32)


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_an_optimizer_declares_all_that_it_reads_and_the_documentation_has_it(name):
    rule, read = rule_of(name), set()

    class Noting(Train):
        def __getattribute__(self, field):
            read.add(field)
            return super().__getattribute__(field)

    arena = Arena(parameters(), "float64")
    update(make_optimizer(Noting(optimizer=name, momentum=0.5), [flat_of(arena)]), 1, 0.1)
    assert read & {each.name for each in fields(Train)} == {"optimizer", *rule.hyperparameters}
    assert f"\n| `{name}` |" in DOCUMENTATION
    meanings = "; ".join(f"`{field}`: {meaning}" for field, meaning in rule.hyperparameters.items())
    assert f"\n| `{name}` | {meanings} |\n" in DOCUMENTATION


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_moves_against_the_velocity(momentum):
    def step(state, w, g, at):
        state["velocity"] = momentum * state.get("velocity", 0) + g
        return w - at.lr * state["velocity"]

    assert_follows(Train(optimizer="sgd", momentum=momentum, weight_decay=0.3), step)


def adam(train, state, number, g):
    """Return the update of Kingma and Ba (2015), algorithm 1."""
    m = state["m"] = train.beta1 * state.get("m", 0) + (1 - train.beta1) * g
    v = state["v"] = train.beta2 * state.get("v", 0) + (1 - train.beta2) * g * g
    return m / (1 - train.beta1**number) / (np.sqrt(v / (1 - train.beta2**number)) + train.epsilon)


MOMENTS = {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-2, "weight_decay": 0.3}


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_follows_the_published_algorithm_and_adamw_decays_matrices_beside_it(optimizer):
    train = Train(optimizer=optimizer, **MOMENTS)

    def step(state, w, g, at):
        decayed = at.decay * w if optimizer == "adamw" else 0  # Loshchilov and Hutter (2019), algorithm 2
        return w - at.lr * (adam(train, state, at.number, g) + decayed)

    assert_follows(train, step)


def newton_schulz(matrix):
    """Return what five iterations of Jordan (2024) make of the singular values."""
    left, values, right = np.linalg.svd(matrix / np.linalg.norm(matrix), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


def test_muon_brings_singular_values_of_each_matrix_near_one_and_leaves_the_rest_to_adamw():
    train = Train(optimizer="muon", momentum=0.9, **MOMENTS)

    def step(state, w, g, at):
        if not at.matrices:
            return w - at.lr * adam(train, state, at.number, g)
        velocity = state["velocity"] = 0.9 * state.get("velocity", 0) + g
        ahead = np.split(g + 0.9 * velocity, at.matrices, axis=-1)
        orthogonal = [np.stack([*map(newton_schulz, each.reshape(-1, *each.shape[-2:]))]) for each in ahead]
        scale = 0.2 * math.sqrt(max(orthogonal[0].shape[-2:]))  # Liu et al. (2025), equation 4
        return w - at.lr * (scale * np.concatenate(orthogonal, -1).reshape(w.shape) + at.decay * w)

    for name, weight in expected(train, step).items():
        np.testing.assert_allclose(trained(train)[name], weight, rtol=1e-5, err_msg=name)  # SMALLEST_NORM


@pytest.mark.parametrize("shape", [(7, 20), (20, 7), (16, 16)])
def test_an_orthogonalised_matrix_has_singular_values_near_one(shape):
    matrix = RANDOM.normal(size=shape)
    values = np.linalg.svd(newton_schulz(matrix), compute_uv=False)
    orthogonalise(matrix, np.empty(2 * matrix.size), np.empty(2 * min(shape) ** 2))
    found = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(found, values, rtol=1e-5)
    assert np.all((found[:6] > 0.6) & (found[:6] < 1.3))


def test_lion_moves_by_the_sign_of_a_momentum_where_it_is_more_than_rounding():
    train = Train(optimizer="lion", **MOMENTS)

    def step(state, w, g, at):  # Chen et al. (2023), program 1
        m = state.get("m", 0)
        mixed = train.beta1 * m + (1 - train.beta1) * g
        state["m"] = train.beta2 * m + (1 - train.beta2) * g
        return w - at.lr * (np.where(np.abs(mixed) > train.epsilon, np.sign(mixed), 0) + at.decay * w)

    assert_follows(train, step)


def test_lamb_goes_as_far_as_weights_are_large_tensor_by_tensor():
    train = Train(optimizer="lamb", **MOMENTS)

    def step(state, w, g, at):  # You et al. (2020), algorithm 2
        direction = adam(train, state, at.number, g) + at.decay * w
        return w - at.lr * np.linalg.norm(w) / np.linalg.norm(direction) * direction

    assert_follows(train, step)


def test_lamb_moves_weights_that_are_zero():
    arena = Arena(parameters({"bias": (5,)}), "float64")
    optimizer = make_optimizer(Train(optimizer="lamb", epsilon=1e-12), [flat_of(arena)])
    update(optimizer, 1, 0.1)
    np.testing.assert_array_equal(arena.data, 0)
    arena.grad[:] = [1, -1, 2, -2, 3]
    update(optimizer, 1, 0.1, number=2)
    assert np.all(arena.data * arena.grad < 0)


def test_adafactor_follows_the_published_algorithm_with_the_last_two_dims_as_those_of_matrices():
    train = Train(optimizer="adafactor", epsilon=1e-3, weight_decay=0.3)

    def step(state, w, g, at):  # Shazeer and Stern (2018), algorithms 4 and 5
        keep, square = 1 - at.number**-0.8, g * g + 1e-6

        def mean(name, value):
            state[name] = keep * state.get(name, 0) + (1 - keep) * value
            return state[name]

        if g.ndim == 1:
            v = mean("v", square)
        else:
            rows = mean("rows", square.mean(-1, keepdims=True))
            v = rows * mean("columns", square.mean(-2, keepdims=True)) / rows.mean(-2, keepdims=True)
        u = g / np.sqrt(v)
        u /= max(1, np.sqrt(np.mean(u * u)))
        step = max(1e-3, np.sqrt(np.mean(w * w))) * min(at.lr, at.number**-0.5)
        return w * (1 - at.lr * at.decay) - step * u

    assert_follows(train, step)


def equal(ranks):
    """Return where the shards of ranks end that have as much each, the last ones less or nothing."""
    return [min(rank * -(-SIZE // ranks), SIZE) for rank in range(ranks + 1)]


@pytest.mark.parametrize(
    ("optimizer", "cuts"),
    [  # anywhere: through rows, and through two matrices at once; one of the ranks has nothing
        *((each, (0, 11, 23, SIZE, SIZE)) for each in ("sgd", "adamw", "lamb", "adafactor", "lion")),
        *(("muon", equal(ranks)) for ranks in (2, 5, 12)),
    ],
)
def test_shards_of_flat_memory_move_as_the_whole(optimizer, cuts):
    train = Train(optimizer=optimizer, momentum=0.9, epsilon=1e-3)

    def steps(mesh):
        axis = mesh.axis("dp")
        low, high = cuts[axis.rank : axis.rank + 2]
        flat = Flat(START[low:high].copy(), np.empty(high - low), parameters(), low)
        optimizer = make_optimizer(train, [flat], ProcessGroups(shards=axis))
        for number, (lr, scale, grad) in enumerate(zip(LRS, SCALES, GRADS, strict=True), 1):
            flat.grad[:] = grad[low:high]
            update(optimizer, 1, lr, scale, number)
        return flat.data

    whole = np.concatenate([weight.ravel() for weight in trained(train).values()])
    found = np.concatenate(run_ranks({"dp": len(cuts) - 1}, steps))
    np.testing.assert_allclose(found, whole, rtol=1e-12)


def test_neighbours_that_decay_alike_are_one_span():
    memory = np.zeros(SIZE)
    flat = Flat(memory, memory, parameters())
    assert [(span.start, span.stop, decays) for span, decays in flat.spans] == [
        (0, 5, False),
        (5, 25, True),
        (25, 34, False),
    ]
    part = Flat(memory[7:30], memory[7:30], parameters(), 7)
    assert [(span.start, span.stop, decays) for span, decays in part.spans] == [
        (0, 18, True),
        (18, 23, False),
    ]
    assert [(run.place.start, run.place.stop, run.first) for run in part.runs] == [
        (0, 0, 7),
        (0, 6, 2),
        (6, 18, 0),
        (18, 23, 0),
    ]


@pytest.mark.parametrize("first", range(13))
def test_the_rectangles_of_a_run_are_its_elements_and_never_of_two_matrices(first):
    (param,) = parameters({"experts": (2, 2, 3)})
    whole = np.arange(12).reshape(4, 3)
    for stop in range(first, 13):
        met = []
        for block in _blocks(Run(param, slice(0, stop - first), first), 2, 3):
            np.testing.assert_array_equal(block.of(np.arange(first, stop)), whole[block.rows, block.columns])
            assert {row // 2 for row in range(4)[block.rows]} == {block.matrix}
            met += whole[block.rows, block.columns].ravel().tolist()
        assert met == list(range(first, stop))


def test_a_rate_grows_falls_along_a_cosine_and_stays():
    train = Train(lr=0.4, lr_warmup=2, lr_schedule="cosine", lr_final=0.1, warmup=1, steps=6)
    rates = [learning_rate(train, step, 1) for step in range(9)]
    assert rates[:3] == pytest.approx([0.2, 0.4, 0.4])
    assert rates[4] == pytest.approx(0.4 * 0.55)
    assert rates[6:] == pytest.approx([0.04] * 3)
    constant_rate = Train(lr=0.4, lr_warmup=2)
    assert [learning_rate(constant_rate, step, 1) for step in (0, 1, 2, 99)] == [0.2, 0.4, 0.4, 0.4]


def test_a_rate_is_scaled_by_the_batch():
    def rate(scaling, replicas, **more):
        return learning_rate(Train(lr=0.1, batch=32, lr_scaling=scaling, **more), 0, replicas)

    assert rate("none", 4) == 0.1
    assert rate("linear", 4) == pytest.approx(0.4)
    assert rate("sqrt", 4) == pytest.approx(0.2)
    assert rate("linear", 4, lr_batch=16) == pytest.approx(0.2)
    assert rate("linear", 1, lr_batch=64) == pytest.approx(0.05)
