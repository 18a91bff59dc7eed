import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from arena import Serial, serial

from pscale.config import Model, Train
from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.optimizers import make_optimizer
from pscale.nn.optimizers.base import update
from pscale.nn.optimizers.state import Flat

pytestmark = pytest.mark.slow

MODELS = {
    "gpt": Model(kind="gpt", layers=2, width=16, heads=2, sequence=70, vocabulary=11, dtype="float64"),
    "block": Model(kind="block", width=16, heads=2, sequence=70, dtype="float64"),
    "linear": Model(kind="linear", width=5, dtype="float64"),
}
MODELS["moe"] = replace(
    MODELS["gpt"], kind="moe", experts=5, top_k=2, capacity_factor=0.8, every=1, balance_weight=0.5
)
MODELS["llama"] = replace(
    MODELS["gpt"],
    norm="rmsnorm",
    bias=False,
    mlp="swiglu",
    mlp_width=24,
    positions="rope",
    heads=4,
    kv_heads=2,
)
SAMPLES = 4
STEP = 1e-6


def data(model: Model, samples: int = SAMPLES) -> tuple[Array, Array]:
    random = np.random.default_rng(9)
    shape = (samples, model.sequence, model.width)
    match model.kind:
        case "gpt" | "moe":
            return random.integers(0, model.vocabulary, shape[:2]), random.integers(
                0, model.vocabulary, shape[:2]
            )
        case "block":
            return random.normal(size=shape), random.normal(size=shape)
        case "linear":
            return random.normal(size=(samples, model.width)), random.normal(size=(samples, 1))


def forward(stage: Serial, x: Array, targets: Array) -> tuple[float, list]:
    caches = []
    for unit in stage.units:
        x, cache = unit.layer.forward(x)
        caches.append(cache)
    value, gradient = stage.loss.forward(x, targets, 1 / (SAMPLES * 70))
    for stats in stage.routers:
        value += stats.loss
        stats.clear()
    return value, [*caches, gradient]


def backward(stage: Serial, caches: list) -> None:
    dx = caches.pop()
    for unit in reversed(stage.units):
        dx = unit.layer.backward(dx, caches.pop())
    assert dx is None


def step(stage: Serial, x: Array, targets: Array) -> float:
    value, caches = forward(stage, x, targets)
    backward(stage, caches)
    return value


def made(kind: str) -> Serial:
    """Build a stage whose weights are large enough for every part to matter."""
    stage = serial(MODELS[kind], 1)
    stage.arena.data[:] = np.random.default_rng(8).normal(size=stage.arena.data.size) / 3
    return stage


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_of_whole_models_are_the_slopes_of_their_loss(kind):
    stage, batch = made(kind), data(MODELS[kind])
    stage.arena.grad.fill(np.nan)
    stage.arena.clear_grads()
    step(stage, *batch)
    grads = [param.grad.copy() for param in stage.arena.params]
    assert stage.buffers.held_bytes == (2 * 70 * 2 * 8 if kind == "llama" else 0)  # sines and cosines
    random = np.random.default_rng(10)
    for param, grad in zip(stage.arena.params, grads, strict=True):
        direction, start = random.normal(size=param.shape), param.data.copy()
        values = []
        for sign in (1, -1):
            param.data[...] = start + sign * STEP * direction
            values.append(step(stage, *batch))
        param.data[...] = start
        slope = (values[0] - values[1]) / (2 * STEP)
        assert np.vdot(grad, direction) == pytest.approx(slope, rel=1e-5, abs=1e-8), param.name


@pytest.mark.parametrize("kind", ["gpt", "moe"])
def test_a_later_token_never_changes_what_is_said_before_it(kind):
    stage = made(kind)
    x, _ = data(MODELS[kind], samples=1)
    changed = x.copy()
    changed[0, 40] = (x[0, 40] + 1) % 11
    logits = []
    for tokens in (x, changed):
        y = tokens
        for unit in stage.units:
            y, _ = unit.layer.forward(y)
        logits.append(y[0].copy())
    np.testing.assert_array_equal(logits[0][:40], logits[1][:40])
    assert np.all(np.any(logits[0][40:] != logits[1][40:], axis=1))


@pytest.mark.parametrize("kind", MODELS)
def test_all_is_computed_in_the_dtype_of_the_model(kind):
    model = replace(MODELS[kind], dtype="float32")
    stage, (x, targets) = serial(model, 1), data(model)
    if kind not in ("gpt", "moe"):
        x, targets = x.astype(np.float32), targets.astype(np.float32)
    y = x
    for unit in stage.units:
        y, _ = unit.layer.forward(y)
        assert y.dtype == np.float32
    assert stage.loss.forward(y, targets, 1.0)[1].dtype == np.float32
    assert stage.arena.data.dtype == stage.arena.grad.dtype == np.float32


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("kind", ["gpt", "block", "moe"])
def test_a_steady_step_allocates_nothing_of_the_size_of_model_or_batch(kind, micro_batches):
    model = replace(MODELS[kind], width=128)
    stage, (x, targets) = serial(model, 1), data(model, samples=32)
    optimizer = make_optimizer(Train(), [Flat(stage.arena.data, stage.arena.grad, stage.arena.params)])

    def whole_step() -> None:
        stage.arena.clear_grads()
        for part in range(micro_batches):
            rows = slice(32 // micro_batches * part, 32 // micro_batches * (part + 1))
            step(stage, x[rows], targets[rows])
        update(optimizer, 1, 1e-3, 1 / kernels.current().square_norm(stage.arena.grad))

    whole_step()
    pool = stage.buffers.total_bytes
    tracemalloc.start()
    whole_step()
    peaks = []
    for _ in range(3):  # what every step allocates, and not what the interpreter does now and then
        tracemalloc.clear_traces()
        whole_step()
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert stage.buffers.total_bytes == pool
    smallest_activation = 32 // micro_batches * model.sequence * model.width * 8
    assert min(peaks) < smallest_activation / 2, f"{peaks} bytes"


def test_initial_weights_start_the_loss_at_that_of_guessing():
    model = Model(layers=2, width=32, heads=4, sequence=16, vocabulary=64)
    stage, (x, targets) = serial(model, 3), data(model)
    value, _ = forward(stage, x, targets)
    assert value * 70 / 16 == pytest.approx(np.log(64), rel=0.02)


def test_every_block_starts_different_and_writes_less_to_a_deeper_stream():
    model = Model(layers=8, width=64, heads=4, sequence=16, vocabulary=64)
    blocks = [
        {param.name: param.data for param in unit.layer.params} for unit in serial(model, 3).units[1:-1]
    ]
    for name, deviation in (("qkv", 0.02), ("up", 0.02), ("projection", 0.005), ("down", 0.005)):
        weights = np.array([block[f"{name}.weight"] for block in blocks])
        assert weights.std() == pytest.approx(deviation, rel=0.02)
        assert len(np.unique(weights[:, 0, 0])) == model.layers


def test_matrices_of_products_are_decayed_and_nothing_else():
    decayed = {param.name for param in serial(MODELS["gpt"], 1).arena.params if param.decay}
    assert decayed == {"qkv.weight", "projection.weight", "up.weight", "down.weight", "head.weight"}


def test_a_linear_model_starts_from_zero():
    np.testing.assert_array_equal(serial(MODELS["linear"], 1).arena.data, np.zeros(5))
