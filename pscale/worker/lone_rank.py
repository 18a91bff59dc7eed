"""One rank of a plan, alone: its true program and shapes, its peers emulated, until a time is over.

Only what it computes is worth measuring: its calls take no time that a network would. Copies of it on other
cores take the same steps at once, as its peers would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.data import prepare
from pscale.mesh import grid
from pscale.mesh.alone import Arriving, EmulatedComm
from pscale.mesh.axis import Mesh
from pscale.nn.dtypes import HALF_BYTES, dtype_of
from pscale.parallel.ranks import GROUPS
from pscale.runs.atomic_files import write_json
from pscale.training.trainer import assemble
from pscale.worker.job import JobSpec, make_storage
from pscale.worker.measure import warm_up
from pscale.worker.recorder import Recorder
from pscale.worker.tables import event_table
from pscale.worker.usage import set_up

_WARMUP = 2  # steps: in the first, strategies learn in which order weights are needed
_FEWEST, _MOST = 3, 256  # steps that are recorded


def communicator(case: Case, rank: int) -> EmulatedComm:
    """Return what stands for the communicator of all ranks of a case."""
    kind, sizes = dtype_of(case.model.dtype), case.plan.sizes
    arriving = Arriving(kind if kind.itemsize == HALF_BYTES else None)
    return EmulatedComm([*sizes.values()], [*grid.coordinates(sizes, rank).values()], arriving)


def run(spec: JobSpec, mesh: Mesh, recorder: Recorder, copy: int, meet: Callable[[], None]) -> None:
    """Take steps, once all copies `meet`, until `spec.seconds` since the launch; leave this copy's events."""
    case = replace(spec.case, train=replace(spec.case.train, warmup=_WARMUP, steps=_MOST))
    batches = prepare(case.data, case.model, case.train, mesh, spec.folder)
    axes = [mesh.axis(*span) for span in grid.groups(mesh.sizes, GROUPS)]
    set_up(axes)
    trainer = assemble(case, mesh, batches, recorder, make_storage(case, recorder))
    trainer.replicas.fill(case.train.seed, lambda _: None)  # every rank draws its weights itself
    warm_up(trainer, _WARMUP)
    recorder.reserve(2 * max(len(recorder), 16) * _MOST)
    meet()
    recorder.enabled = True
    start_ns, ends, count = recorder.now(), spec.launched_unix_s + spec.seconds, 0
    while count < _FEWEST or (count < _MOST and time.time() < ends):
        trainer.step(_WARMUP + count)
        count += 1
    recorder.enabled = False
    trainer.batches.close()
    if trainer.storage is not None:
        trainer.storage.close()
    rows = recorder.rows()
    rows["step"] -= _WARMUP
    events = event_table(rows, np.zeros_like(rows["enter"]), axes, spec.rank, start_ns)
    from pscale.runs.store import write_columns  # noqa: PLC0415 - Arrow takes memory, which steps need

    columns: dict[str, Any] = {**events, "rank": np.full(len(rows["step"]), spec.rank)}
    (data := spec.data / str(copy)).mkdir(exist_ok=True)
    write_columns(data, "events", spec.case.id, spec.repeat, columns)
    if not copy:
        write_json(spec.folder / "result.json", {"status": "ok", "reason": "", "columns": {}})
