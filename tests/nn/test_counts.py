import numpy as np
import pytest
from arena import serial
from kept_activations import activation_bytes
from plans import held_after_forward, product_flops

from pscale.config import Model
from pscale.nn import counts
from pscale.nn.kernels import reference
from pscale.nn.kernels.attention_block import ROWS, TILE

MODELS = [
    Model(kind="gpt", layers=3, width=12, heads=3, sequence=ROWS + 9, vocabulary=17, dtype="float32"),
    Model(
        kind="gpt", layers=1, width=12, heads=3, sequence=TILE + ROWS + 9, vocabulary=17, attention="block"
    ),
    Model(kind="block", width=12, heads=2, sequence=20, dtype="float64"),
    Model(kind="linear", width=5, dtype="float64"),
    Model(kind="moe", layers=3, width=12, heads=3, sequence=20, vocabulary=17, experts=5, top_k=2, every=2),
    Model(
        layers=2,
        width=12,
        heads=6,
        kv_heads=2,
        sequence=20,
        vocabulary=17,
        norm="rmsnorm",
        mlp="swiglu",
        mlp_width=30,
        positions="rope",
    ),
    Model(kind="moe", layers=2, width=12, heads=3, sequence=20, vocabulary=17, bias=False, mlp="swiglu"),
]
SEQUENCES = 2


def data(model: Model):
    shape = {"linear": (SEQUENCES, model.width)}.get(model.kind, (SEQUENCES, model.sequence, model.width))
    x = np.ones(shape, model.dtype)
    return (
        (x[..., 0].astype(int),) * 2
        if model.kind in ("gpt", "moe")
        else (x, x[..., :1] if model.kind == "linear" else x)
    )


@pytest.mark.parametrize(
    ("layers", "heads", "width", "expected"),
    [
        (12, 8, 256, 10_001_664),
        (24, 8, 256, 19_478_784),
        (32, 8, 256, 25_796_864),
        (32, 8, 512, 101_925_376),
        (48, 8, 512, 152_363_520),
        (64, 8, 512, 202_801_664),
        (64, 32, 1024, 808_256_512),
    ],
)
def test_parameter_counts_of_mingpt_on_images(layers, heads, width, expected):
    model = Model(layers=layers, heads=heads, width=width, vocabulary=512, sequence=1023)
    assert counts.parameters(model) == expected


@pytest.mark.parametrize(
    "model", MODELS, ids=lambda model: f"{model.kind} {model.attention} {model.mlp} {model.norm}"
)
def test_units_have_the_parameters_that_are_counted(model):
    stage = serial(model, 1)
    found = [(unit.name, sum(param.size for param in unit.layer.params)) for unit in stage.units]
    assert found == counts.unit_parameters(model)
    assert stage.arena.data.size == counts.parameters(model)


@pytest.mark.parametrize(
    "model", MODELS, ids=lambda model: f"{model.kind} {model.attention} {model.mlp} {model.norm}"
)
def test_activations_hold_the_bytes_that_are_counted(model):
    assert held_after_forward(serial(model, 1), *data(model)) == activation_bytes(model, SEQUENCES)


@pytest.mark.parametrize(
    "model", MODELS, ids=lambda model: f"{model.kind} {model.attention} {model.mlp} {model.norm}"
)
def test_a_step_multiplies_what_is_counted(model, monkeypatch):
    multiply, total = np.matmul, 0

    def counting(a, b, out=None):
        nonlocal total
        result = multiply(a, b, out=out)
        if a.ndim > 1 and b.ndim > 1:
            total += product_flops(model, a, result)
        return result

    stage, (x, targets) = serial(model, 1), data(model)
    monkeypatch.setattr(np, "matmul", counting)
    monkeypatch.setattr(reference, "add_product", lambda *_: False)
    caches = []
    for unit in stage.units:
        x, cache = unit.layer.forward(x)
        caches.append(cache)
    _, dx = stage.loss.forward(x, targets, 1.0)
    for unit in reversed(stage.units):
        dx = unit.layer.backward(dx, caches.pop())
    assert total == counts.executed_flops(model, SEQUENCES)


def test_model_flops_are_six_a_weight_and_token_plus_attention_over_the_past():
    model = Model(layers=4, width=512, heads=8, sequence=256, vocabulary=256)
    matrices = 4 * 12 * 512**2 + 512 * 256
    pairs = sum(range(1, 257))  # of query and key, in a sequence
    assert counts.model_flops(model, 8) == 6 * matrices * 8 * 256 + 4 * 8 * pairs * 512 * 2 * 2 * 3
    assert (
        counts.model_flops(model, 8) < counts.executed_flops(model, 8) < 1.02 * counts.model_flops(model, 8)
    )


def test_scores_that_are_computed_again_cost_a_seventh_product_and_save_their_memory():
    plain, block = (Model(heads=8, sequence=4096, attention=way) for way in ("plain", "block"))
    scores = 4096 * 4096 / 2
    more_flops = counts.executed_flops(block, 1) - counts.executed_flops(plain, 1)
    assert more_flops == pytest.approx(4 * scores * 2 * plain.width, rel=0.1)
    saved = activation_bytes(plain, 1) - activation_bytes(block, 1)
    assert saved == pytest.approx(4 * scores * 8 * 4, rel=0.03)
    assert counts.model_flops(plain, 1) == counts.model_flops(block, 1)


def test_scores_are_kept_where_that_is_asked_for_or_faster():
    assert [Model(sequence=sequence).keeps_scores for sequence in (256, 1023, 1024, 8192)] == [
        True,
        True,
        False,
        False,
    ]
    assert Model(sequence=8192, attention="plain").keeps_scores
    assert not Model(sequence=64, attention="block").keeps_scores
