"""What is offloaded changes no bit under any plan, and moves and takes what was predicted."""

from collections import Counter
from dataclasses import replace
from time import sleep

import numpy as np
import pytest
from kept_activations import message_bytes
from plans import TEXT, each_rank, name, on_plan, predicted_state

from pscale.config import Data, Matrix, Model, Plan
from pscale.nn.offload.scratch import Scratch
from pscale.parallel.strategies import check
from pscale.runs.schema import PHASES, VERBS, Kind
from pscale.training.dry_run import pool_use
from pscale.training.prediction import offloaded
from pscale.worker.tables import phase_table
from pscale.worker.verify import assembled, outcome

STEPS = 2
GPT = replace(
    TEXT,
    model=Model(layers=4, width=32, heads=4, sequence=24, vocabulary=64, dtype="float32"),
    data=Data(kind="synthetic"),
    train=replace(TEXT.train, batch=8, steps=STEPS, momentum=0.9),
)
MOE = replace(GPT, model=replace(GPT.model, kind="moe", experts=4, top_k=2, every=2, balance_weight=0.1))


def using(optimizer, case=GPT):
    return replace(case, train=replace(case.train, optimizer=optimizer))


PLANS = [
    ("both", GPT, 1, Plan()),
    ("optimizer", using("sgd"), 1, Plan(dp=2, reduction="all-reduce")),
    ("both", using("lamb"), 2, Plan(dp=2, zero=1)),
    ("both", replace(GPT, model=replace(GPT.model, dtype="bf16")), 1, Plan(dp=2)),
    ("both", GPT, 2, Plan(dp=2, zero=3)),
    ("both", GPT, 4, Plan(tp=2, pp=2, sp=True)),
    ("both", using("lamb", MOE), 1, Plan(ep=2)),
    ("both", using("muon", MOE), 1, Plan(ep=2, tp=2)),
    ("optimizer", using("muon"), 1, Plan(dp=2, tp=2, zero=3)),
    ("both", GPT, 1, Plan(matrix=Matrix(tx=2, ty=2, algorithm="summa"))),
    ("activations", GPT, 1, Plan(checkpoint="selective")),
    ("activations", GPT, 1, Plan(checkpoint="full")),
    ("activations", GPT, 4, Plan(pp=2, schedule="zero-bubble")),
    ("activations", using("adafactor"), 2, Plan(pp=2, schedule="interleaved", virtual_stages=2)),
    ("activations", GPT, 1, Plan(cp=2)),
    ("activations", GPT, 1, Plan(cp=2, context="ulysses", checkpoint="selective")),
]


def trained(case, folder):
    """Return losses and tensors; and of each rank the bytes of every step, the file, the pool, the state."""

    def one(trainer, mesh):
        result, pool = outcome(trainer, mesh), trainer.stage.buffers
        held = pool.total_bytes, pool.exchange_bytes
        room = trainer.storage.size_bytes if trainer.storage else 0
        return result, handed(trainer.recorder.rows()), room, held, trainer.replicas.memory_bytes()

    ranks = each_rank(case, case.plan, folder, one, record=True)
    parts = {
        kind: [part for rank in ranks for part in getattr(rank[0], kind)] for kind in ("gradients", "weights")
    }
    tensors = {(kind, *key): whole for kind in parts for key, whole in assembled(parts[kind]).items()}
    return ranks[0][0].losses, tensors, [rank[1:] for rank in ranks]


def handed(rows):
    """Return the bytes that are read and written in each step."""
    chosen, found = rows["kind"] == Kind.IO_SUBMITTED, Counter()
    for step, verb, size in zip(*(rows[key][chosen] for key in ("step", "verb", "bytes")), strict=True):
        found[step, VERBS[verb]] += int(size)
    return [(found[step, "read"], found[step, "write"]) for step in dict.fromkeys(step for step, _ in found)]


@pytest.mark.parametrize(("offload", "case", "micro_batches", "plan"), PLANS, ids=name)
def test_what_is_in_a_file_changes_no_bit_and_takes_and_moves_what_is_predicted(
    offload, case, micro_batches, plan, folder
):
    here = on_plan(case, plan, micro_batches)
    away = replace(here, plan=replace(plan, offload=offload))
    check(away)
    losses, tensors, without = trained(here, folder)
    other_losses, other_tensors, ranks = trained(away, folder)
    assert np.array_equal(losses, other_losses)
    assert all(np.array_equal(tensors[key], other_tensors[key]) for key in tensors)
    assert [state for *_, state in ranks] == predicted_state(away, away.plan)
    for rank, (steps, room, held, state) in enumerate(ranks):
        predicted, pool = offloaded(away, rank), pool_use(away, rank)
        assert steps == [(predicted.read_bytes, predicted.written_bytes)] * STEPS
        assert room == predicted.file_bytes > 0
        later = micro_batches * message_bytes(away) * (plan.pp > 1)  # messages come when they come
        assert abs(held[0] - pool.total_bytes) <= later
        assert plan.pp > 1 or held[1] == pool.exchange_bytes
        *_, all_state = without[rank]
        assert offload == "activations" or state["optimizer"] < all_state["optimizer"]
        plain = pool_use(here, rank).total_bytes
        assert offload == "optimizer" or plan.checkpoint == "full" or pool.total_bytes < plain


SLOW = [
    ("optimizer", "fetch", {"update"}),
    ("activations", "read", {"forward", "backward"}),
    ("both", "read", {"forward", "backward", "update"}),
]


@pytest.mark.parametrize(("offload", "verb", "phases"), SLOW, ids=[each[0] for each in SLOW])
def test_stalls_are_a_kind_of_time_of_their_own_to_the_nanosecond(offload, verb, phases, folder, monkeypatch):
    case = on_plan(GPT, Plan(offload=offload))
    at_once = getattr(Scratch, verb)

    def slowly(*given, **named):
        sleep(0.05)
        at_once(*given, **named)

    monkeypatch.setattr(Scratch, verb, slowly)  # what is fast may be there before anybody waits for it

    def table(trainer, _):
        for index in range(STEPS):
            trainer.step(index)
        rows = trainer.recorder.rows()
        none = np.zeros_like(rows["enter"])
        return rows, phase_table(rows, none, none, none.astype(np.float64), int(rows["enter"].min()))

    ((rows, sums),) = each_rank(case, case.plan, folder, table, record=True)
    stalls = rows["kind"] == Kind.IO_WAITED
    assert {PHASES[phase] for phase in rows["phase"][stalls]} <= phases
    length = rows["leave"] - rows["enter"]
    assert round(sums["offload_s"].sum() * 1e9) == length[stalls].sum() > 0
    parts = sum(sums[f"{kind}_s"] for kind in ("compute", "transfer", "wait", "copy", "offload"))
    assert np.abs(parts - sums["wall_s"]).max() < 1e-12
    assert sums["offload_read_bytes"].sum() == STEPS * offloaded(case, 0).read_bytes
    assert sums["offload_write_bytes"].sum() == STEPS * offloaded(case, 0).written_bytes
