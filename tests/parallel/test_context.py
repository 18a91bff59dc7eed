from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from kept_activations import kept_bytes
from nn.differences import hand, slope
from plans import BLOCK, TEXT, difference, most_kept, multiplied
from thread_mesh import run_ranks

from pscale.config import Plan
from pscale.config.choices import Context
from pscale.nn.attention import Attention
from pscale.nn.buffers import Buffers
from pscale.parallel.context.form import AttentionShare, Form, attention, form_of
from pscale.parallel.context.layout import Layout
from pscale.parallel.recompute import executed_flops
from pscale.training.dry_run import step_calls
from pscale.training.prediction import memory_bytes

CONTEXTS, PLACEMENTS = ("ring", "ulysses", "all-gather"), ("zigzag", "contiguous")
HEADS, WIDTH = 12, 48  # the scale of scores, 1/2, is exact
every_way = pytest.mark.parametrize(
    ("kind", "placement"), [(kind, placement) for kind in CONTEXTS for placement in PLACEMENTS]
)


@pytest.mark.parametrize("kind", get_args(Context))
def test_a_form_is_declared_in_the_file_of_its_name(kind):
    assert isinstance(form_of(kind), Form)


def normal(*shape, seed=4):
    return np.random.default_rng(seed).normal(size=shape)


def attend(kind, layout, qkv, dy=None, *, keeps_scores=True):
    """Return the output and the gradient of `qkv` (if `dy` is given), both whole, computed by all ranks."""

    def one(mesh):
        axis, buffers = mesh.axis("cp"), Buffers()
        share = AttentionShare(
            heads=HEADS, keeps_scores=keeps_scores, mesh=mesh, layout=layout, buffers=buffers
        )
        layer = attention(share, kind)
        places = np.concatenate([np.arange(layout.sequence)[run] for run in layout.runs(axis.rank)])
        y, *caches = layer.forward(hand(qkv[:, places], buffers))
        found = [y.copy()]
        del y
        if dy is not None:
            found.append(layer.backward(hand(dy[:, places], buffers), caches.pop()).copy())
            assert buffers.held_bytes == 0
        return places, found

    sizes = {"ring": layout.parts, "ulysses": layout.slices} if kind == "unified" else {"cp": layout.parts}
    ranks = run_ranks(sizes, one)
    wholes = [np.empty((len(qkv), layout.sequence, part.shape[2])) for part in ranks[0][1]]
    for places, found in ranks:
        for whole, part in zip(wholes, found, strict=True):
            whole[:, places] = part
    return wholes


def attend_alone(qkv, dy):
    buffers = Buffers()
    layer = Attention(HEADS, keeps_scores=True, buffers=buffers)
    y, cache = layer.forward(hand(qkv, buffers))
    return y.copy(), layer.backward(hand(dy, buffers), cache).copy()


@every_way
@pytest.mark.parametrize(("parts", "sequence"), [(2, 4), (2, 280), (3, 18), (4, 24), (4, 320)])
@pytest.mark.parametrize("values", ["normal", "too large for exp"])
def test_attention_and_its_gradient_are_those_of_one_rank(kind, placement, parts, sequence, values):
    layout = Layout(sequence=sequence, parts=parts, placement=placement)
    qkv, dy = normal(2, sequence, 3 * WIDTH), normal(2, sequence, WIDTH, seed=5)
    if values == "too large for exp":
        qkv = np.round(40 * qkv)  # whole numbers: their products are exact
    for found, expected in zip(attend(kind, layout, qkv, dy), attend_alone(qkv, dy), strict=True):
        assert difference(found, expected) < 1e-12


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("keeps_scores", [True, False])
@pytest.mark.parametrize(("parts", "slices"), [(2, 2), (2, 3), (3, 2), (2, 4)])
def test_groups_on_a_ring_attend_as_one_rank(parts, slices, keeps_scores, placement):
    layout = Layout(sequence=72, parts=parts, placement=placement, slices=slices)
    qkv, dy = normal(2, 72, 3 * WIDTH), normal(2, 72, WIDTH, seed=5)
    ours = attend("unified", layout, qkv, dy, keeps_scores=keeps_scores)
    for found, expected in zip(ours, attend_alone(qkv, dy), strict=True):
        assert difference(found, expected) < 1e-12


@every_way
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("parts", "sequence"), [(2, 4), (2, 72), (3, 18), (4, 160)])
def test_attention_that_computes_scores_again_does_so_on_many_ranks(kind, placement, parts, sequence):
    layout = Layout(sequence=sequence, parts=parts, placement=placement)
    qkv, dy = normal(2, sequence, 3 * WIDTH), normal(2, sequence, WIDTH, seed=5)
    ours = attend(kind, layout, qkv, dy, keeps_scores=False)
    for found, expected in zip(ours, attend_alone(qkv, dy), strict=True):
        assert difference(found, expected) < 1e-12


@every_way
def test_gradients_are_the_slopes(kind, placement):
    layout = Layout(sequence=24, parts=4, placement=placement)
    qkv, dy = normal(2, 24, 3 * WIDTH), normal(2, 24, WIDTH, seed=5)
    direction = normal(*qkv.shape, seed=6)
    expected = slope(lambda: float(np.sum(attend(kind, layout, qkv)[0] * dy)), qkv, direction)
    assert np.vdot(attend(kind, layout, qkv, dy)[1], direction) == pytest.approx(expected, rel=1e-6)


def planned(kind, placement, *, model=None, micro_batches=1, **degrees):
    plan = Plan(context=kind, placement=placement, **degrees)
    return replace(
        TEXT,
        ranks=plan.ranks,
        plan=plan,
        model=replace(TEXT.model, sequence=144, **(model or {})),
        train=replace(TEXT.train, batch=8, micro_batches=micro_batches),
    )


DEGREES = [{"cp": 2}, {"cp": 4}, {"cp": 2, "dp": 2}, {"cp": 2, "tp": 2}, {"cp": 2, "tp": 2, "sp": True}]


UNIFIED = [
    ("unified", placement, {"cp": 4, "ulysses": 2, **more})
    for placement in PLACEMENTS
    for more in ({}, {"dp": 2}, {"tp": 2}, {"tp": 2, "sp": True}, {"checkpoint": "selective"})
]
in_every_plan = pytest.mark.parametrize(
    ("kind", "placement", "degrees"),
    [
        *((kind, placement, each) for kind in CONTEXTS for placement in PLACEMENTS for each in DEGREES),
        *UNIFIED,
    ],
    ids=str,
)


def attention_calls(case):
    """Return the calls of a step that are no sums of gradients."""
    return [call for call in step_calls(case, 0) if call.verb != "all_reduce"]


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_bytes_are_those_of_the_papers(parts):
    def sent(kind):
        case = planned(kind, "zigzag", cp=parts, model={"heads": 8})
        return sum(call.step_bytes for call in attention_calls(case)) / (case.model.layers * n0)

    n0 = 8 * 144 * 32 * 8  # bytes of one layer's activations
    assert sent("ring") == pytest.approx((6 * parts - 4) / parts)
    assert sent("ulysses") == pytest.approx(8 / parts)
    assert sent("all-gather") == pytest.approx(4 / parts + 2)


@pytest.mark.parametrize(("ring", "group"), [(2, 2), (4, 2), (2, 4)])
def test_bytes_of_groups_on_a_ring_are_those_of_both_exchanges(ring, group):
    case = planned("unified", "zigzag", cp=ring * group, ulysses=group, model={"heads": 8})
    sent = dict.fromkeys(("ring", "ulysses"), 0)
    for call in attention_calls(case):
        sent[call.axis] += call.step_bytes / (case.model.layers * 8 * 144 * 32 * 8)
    assert sent["ring"] == pytest.approx((6 * ring - 4) / (ring * group))
    assert sent["ulysses"] == pytest.approx(8 / (ring * group))


@pytest.mark.parametrize("attention", ["plain", "block"])
@in_every_plan
def test_a_rank_keeps_the_activations_that_are_predicted(kind, placement, degrees, attention, folder):
    case = planned(kind, placement, model={"attention": attention}, **degrees)
    assert most_kept(case, case.plan, folder) == [kept_bytes(case, rank) for rank in range(case.ranks)]


@every_way
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_exchanges_need_the_memory_that_is_predicted_and_no_more_in_the_next_step(kind, placement, parts):
    model = replace(BLOCK.model, width=WIDTH, heads=HEADS, sequence=24)
    plan = Plan(cp=parts, context=kind, placement=placement)
    case = replace(BLOCK, model=model, ranks=parts, plan=plan, train=replace(BLOCK.train, batch=2))
    layout = Layout(sequence=24, parts=parts, placement=placement)

    def one(mesh):
        buffers, totals = Buffers(), []
        share = AttentionShare(heads=HEADS, keeps_scores=True, mesh=mesh, layout=layout, buffers=buffers)
        layer = attention(share, kind)
        for _ in range(3):
            layer.backward(*layer.forward(hand(np.ones((2, layout.tokens, 3 * WIDTH)), buffers)))
            totals.append(buffers.total_bytes)
        return buffers.exchange_bytes, totals

    n = 2 * layout.tokens * WIDTH * 8  # bytes of q, or k, or v, of a rank
    for rank, (exchange_bytes, totals) in enumerate(run_ranks({"cp": parts}, one)):
        both_travel = any(layout.pieces(rank)[1:-1])  # keys and gradients, while gradients are computed
        arrays = {"ring": 2 * (4 + both_travel), "all-gather": 2 * (2 * parts + 1), "ulysses": 2 * 3}[kind]
        assert exchange_bytes == memory_bytes(case, rank)["exchange"] == arrays * n
        assert totals[0] == totals[2]


@every_way
@pytest.mark.parametrize("attention", ["plain", "block"])
def test_the_ranks_together_multiply_what_is_counted(kind, placement, attention, folder):
    case = planned(kind, placement, model={"attention": attention, "width": 36, "heads": 4}, cp=2)
    assert multiplied(case, case.plan, folder) == executed_flops(case)


@pytest.mark.parametrize("checkpoint", ["none", "selective"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_groups_on_a_ring_multiply_what_is_counted(placement, checkpoint, folder):
    case = planned("unified", placement, cp=4, ulysses=2, model={"attention": "plain"}, checkpoint=checkpoint)
    assert multiplied(case, case.plan, folder) == executed_flops(case)
