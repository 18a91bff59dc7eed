"""How fast a machine computes: the phases of steps of small models of a case's kind, on one rank.

python -m pscale.worker.calibration < CASES    the seconds of the phases of each case, as JSON

Comes after `python -m pscale.blas CHOICE -m`, as the ranks of the cases do.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter, perf_counter_ns, thread_time_ns

import numpy as np
from threadpoolctl import threadpool_limits

from pscale.config import Case, Data, from_dict
from pscale.config.training import is_16_bit
from pscale.data import prepare
from pscale.mesh.alone import SelfMesh
from pscale.runs.schema import PHASES, Kind
from pscale.worker.environment import use_kernels
from pscale.worker.job import make_trainer
from pscale.worker.recorder import Recorder

KINDS = ("gpt", "moe")
_FEWEST, _MOST, _SECONDS = 3, 40, 0.15  # steps of a shape, after one that warms up
# Layers, width, heads, sequence, batch, vocabulary: next to nothing, and each of them large beside others.
_SHAPES = (
    (1, 16, 1, 8, 1, 16),
    (1, 64, 4, 64, 8, 256),
    (1, 64, 4, 64, 64, 256),
    (1, 64, 4, 256, 8, 256),
    (1, 256, 4, 64, 8, 256),
    (1, 64, 4, 64, 8, 4096),
    (4, 64, 4, 16, 1, 256),
    (1, 512, 8, 128, 2, 256),
    (1, 64, 4, 1024, 1, 256),
)


def shapes(case: Case) -> list[Case]:
    """Return small models of the kind, number type, optimizer and threads of a case, on one rank."""
    found: list[Case] = []
    for layers, width, heads, sequence, batch, vocabulary in _SHAPES:
        model = replace(
            case.model,
            layers=layers,
            width=width,
            heads=heads,
            sequence=sequence,
            vocabulary=vocabulary,
            every=1,
        )
        train = replace(case.train, batch=batch, micro_batches=1, steps=_MOST, warmup=1)
        found.append(
            Case(
                suite="calibration",
                label=f"calibration {len(found)}",
                threads=case.threads,
                model=model,
                data=Data(kind="synthetic"),
                train=train,
                precision=case.precision,
                launch=case.launch,
            )
        )
    return found


def phases_s(case: Case) -> dict[str, float]:
    """Return the seconds of each phase of a step of a case on one rank: the least of some steps."""
    alone = case.threads == 1  # then the thread's own time is that of the work, whatever else runs here
    recorder = Recorder([], now=thread_time_ns if alone else perf_counter_ns)
    mesh, least = SelfMesh(), np.full(len(PHASES), np.inf)
    with tempfile.TemporaryDirectory(prefix="pscale-") as folder:
        batches = prepare(case.data, case.model, case.train, mesh, Path(folder))
        trainer = make_trainer(case, mesh, batches, recorder)
        trainer.step(0)
        recorder.enabled, began = True, perf_counter()
        for index in range(1, 1 + _MOST):
            if index > _FEWEST and perf_counter() > began + _SECONDS:
                break
            recorder.clear()
            trainer.step(index)
            rows = recorder.rows()
            of_phases = rows["kind"] == Kind.PHASE
            took = (rows["leave"] - rows["enter"])[of_phases] * 1e-9
            least = np.minimum(least, np.bincount(rows["phase"][of_phases], took, len(PHASES)))
        batches.close()
    return {name: float(took) for name, took in zip(PHASES, least, strict=True) if took}


def main() -> None:
    """Measure the cases on standard input, which compute with the same threads and libraries."""
    cases = [from_dict(Case, each) for each in json.load(sys.stdin)]
    first = cases[0]
    with threadpool_limits(first.threads, user_api="blas"):
        use_kernels(first.launch.kernels, first.threads, narrow=is_16_bit(first.model.dtype))
        sys.stdout.write(json.dumps([phases_s(each) for each in cases]) + "\n")


if __name__ == "__main__":
    main()
