"""A program of two ranks: prints, per plan, what steady steps allocate and what exchanges leave undone."""

import json
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np
from patience import share

from pscale.config import Case, Data, Model, Plan, Timing, Train
from pscale.data import prepare
from pscale.mesh import grid, mpi
from pscale.parallel.ranks import GROUPS
from pscale.parallel.strategies import check
from pscale.worker.job import make_trainer
from pscale.worker.recorder import VERBS, Kind, Recorder

MODEL = Model(layers=2, width=128, heads=2, sequence=128, vocabulary=256, dtype="float64")
EXPERTS = replace(MODEL, kind="moe", experts=4, top_k=2, capacity_factor=2.0, every=1)
WARM, STEADY = 3, 10
TRAIN = Train(batch=8, micro_batches=2, clip=None, steps=WARM + STEADY, warmup=0)  # a norm needs a chunk more
PLANS = {
    "bucketed": Plan(dp=2, bucket_bytes=1),
    "all-reduce": Plan(dp=2, reduction="all-reduce"),
    "gather-broadcast": Plan(dp=2, reduction="gather-broadcast"),
    **{
        kind: Plan(dp=2, compression=kind)  # type: ignore[arg-type]
        for kind in ("fp16", "int8", "sign", "topk", "powersgd")
    },
    "zero 1": Plan(dp=2, zero=1),
    "zero 1, offloaded": Plan(dp=2, zero=1, offload="both"),
    "zero 2": Plan(dp=2, zero=2),
    "zero 3": Plan(dp=2, zero=3),
    "zero 3, kept": Plan(dp=2, zero=3, reshard_after_forward=False),
    "tensor": Plan(tp=2),
    "tensor, by columns": Plan(tp=2, embedding="column"),
    "sequence": Plan(tp=2, sp=True),
    "ring": Plan(cp=2, context="ring"),
    "ulysses": Plan(cp=2, context="ulysses"),
    "gathered keys": Plan(cp=2, context="all-gather"),
    "gpipe": Plan(pp=2, schedule="gpipe"),
    "1f1b": Plan(pp=2, schedule="1f1b"),
    "interleaved": Plan(pp=2, schedule="interleaved", virtual_stages=2),
    "zero-bubble": Plan(pp=2, schedule="zero-bubble"),
    "experts": Plan(ep=2),
}


def model_of(plan: Plan) -> Model:
    return EXPERTS if plan.ep > 1 else replace(MODEL, layers=2 * plan.virtual_stages)


def steady(plan: Plan, model: Model, folder: Path) -> dict:
    """Return what a step allocates at most, in how many steps more is kept for use, and what is noted."""
    case = Case(
        suite="s", label="l", ranks=2, plan=plan, model=model, data=Data(kind="synthetic"), train=TRAIN
    )
    case = replace(case, timing=Timing(overhead_steps=0))
    check(case)
    spans = grid.groups(plan.sizes, GROUPS)
    recorder = Recorder([grid.axis_name(span) for span in spans])
    mesh = mpi.MpiMesh(mpi.world(), plan.sizes, spans, recorder, mpi.nodes(mpi.world()))
    batches = prepare(case.data, model, TRAIN, mesh, folder)
    trainer = make_trainer(case, mesh, batches, recorder)
    recorder.reserve(10_000)
    for index in range(WARM):
        trainer.step(index)
    kept, peaks = [held(trainer)], []
    recorder.enabled = True
    tracemalloc.start()
    for index in range(WARM, TRAIN.steps):  # the least of many: now and then the interpreter needs memory too
        recorder.clear()
        tracemalloc.clear_traces()
        trainer.step(index)
        peaks.append(tracemalloc.get_traced_memory()[1])
        kept.append(held(trainer))
    tracemalloc.stop()
    rows = recorder.rows()
    return {
        "peak_bytes": min(peaks),
        "grows": int(np.count_nonzero(np.diff(kept))),
        "verbs": sorted({VERBS[verb] for verb in rows["verb"][rows["kind"] > Kind.PHASE]}),
    }


def held(trainer) -> int:
    return trainer.stage.buffers.total_bytes + sum(trainer.replicas.memory_bytes().values())


def progress_alone() -> bool:
    """Tell whether exchanges come to their end though nobody waits for them, in the order of their start."""
    recorder = Recorder(["dp"])
    recorder.enabled = True
    mesh = mpi.MpiMesh(mpi.world(), {"dp": 2}, [("dp",)], recorder, [0, 0])
    arrays = [np.full(100_000, 1.0 + mesh.world.rank) for _ in range(3)]
    calls = [mesh.axis("dp").start_all_reduce(array) for array in arrays]
    end = monotonic() + 30
    while (
        np.count_nonzero(recorder.rows()["kind"] == Kind.POLLED_COMPLETE) < len(calls) and monotonic() < end
    ):
        mesh.progress()
    rows = recorder.rows()
    order = rows["request"][rows["kind"] == Kind.POLLED_COMPLETE].tolist()
    return order == [0, 1, 2] and all(np.all(array == 3.0) for array in arrays)


def main() -> None:
    folder = Path(sys.argv[1])
    np.setbufsize(512)  # elements; NumPy's own buffers for casting are of constant size, 200 kB otherwise
    plans = {name: steady(PLANS[name], model_of(PLANS[name]), folder) for name in share([*PLANS])}
    mine = {"plans": plans, "progress": progress_alone()}
    everyone = mpi.world_axis().gather_objects(mine)
    if everyone:
        print(json.dumps(everyone))


if __name__ == "__main__":
    main()
