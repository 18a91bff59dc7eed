"""What a run adds to the history of its suite: times, exact counters and the fingerprint of every case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis import scaling
from pscale.analysis.compare import command_of, labels_of, work_of
from pscale.analysis.environment import environment, machine
from pscale.analysis.frames import KINDS, Run
from pscale.analysis.stats import Sample
from pscale.metrics import MEMORY_KINDS
from pscale.results.history import Entry

_MEMORY = (*MEMORY_KINDS, "offloaded", "buffers")
_FIELDS = {  # of a fingerprint, by what the machine or the run calls it
    "MPI": "MPI",
    "BLAS": "BLAS",
    "Kernels": "kernels",
    "Hosts": "host",
    "CPU": "processor",
    "kernel": "operating system",
    "driver": "driver",
    "job.governor": "governor",
    "job.python": "Python",
}
_COMPUTING = ("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "NVPL_")  # variables of a rank
_COMMUNICATING = ("MPICH_", "OMPI_MCA_", "I_MPI_", "UCX_", "FI_", "HYDRA_", "PRTE_")  # of who launches it
_SMALL = 1e-3  # of a step: a time below is not kept
_DIGITS = 7  # of a logarithm: to 0.00001 %


def entries(run: Run) -> list[Entry]:
    """Return what is known of each case that was measured."""
    times, labels = scaling.step_samples(run), labels_of(run)
    often = Counter(labels.values())
    return [
        _entry(run, case, label if often[label] == 1 else case, times[case])
        for case, label in labels.items()
        if case in times and times[case].logs is not None
    ]


def _entry(run: Run, case: str, label: str, times: Sample) -> Entry:
    own = replace(
        run,
        cases=run.cases[(run.cases["case"] == case) & (run.cases["status"] == "ok")],
        ranks=run.ranks[run.ranks["case"] == case],
    )
    known = {**environment(own), **dict(machine(own))}
    begun = run.cases["started_unix_s"].min()  # of the run: its cases stay in the order of the suite
    program = command_of(run, case)
    step = [value for name, value in work_of(run, case).items() if name not in program]
    work = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in step)
    return Entry(
        run=run.name,
        begun_unix_s=0.0 if pd.isna(begun) else float(begun),
        case=case,
        label=label,
        work=work + "".join(f"; {name} {value}" for name, value in program.items()),
        steps=_rounded(np.log(times.medians)),
        levels=_rounded(times.levels if times.paces else ()),
        paces=_rounded(times.paces if times.levels else ()),
        times_s=_times(own, case, times.value),
        code=_code(known),
        fingerprint=dict(_fingerprint(known)) | {"case": case},
        counters=dict(_counters(own, case)),
    )


def _rounded(values: Any) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]


def _times(run: Run, case: str, step_s: float) -> dict[str, float]:
    """Return means over ranks and steps, by phase and kind."""
    rows, steps = run.phases[run.phases["case"] == case], run.seats.loc[run.seats["case"] == case, "steps"]
    kinds = [name for name in KINDS if name in rows.columns]
    sums = rows.groupby("phase", observed=True)[kinds].sum() / max(int(steps.sum()), 1)
    return {
        f"{phase} {str(kind).removesuffix('_s').replace('_', ' ')}": float(f"{value:.4g}")
        for phase, row in sums.iterrows()
        for kind, value in row.items()
        if value >= _SMALL * step_s
    }


def _counters(run: Run, case: str) -> Iterator[tuple[str, float]]:
    """Yield what launches count of a step, over all ranks; memory is that of the largest rank."""
    steps = run.seats[run.seats["case"] == case].groupby("repeat")["steps"].max()
    calls = run.calls[run.calls["case"] == case]
    for (axis, verb), rows in calls.groupby(["axis", "verb"], observed=True):
        for column, name in (("count", "calls"), ("bytes", "bytes")):
            by_launch = rows.groupby("repeat")[column].sum() / steps
            yield from _agreed(f"{name} of {axis} {verb}", by_launch)
    for column in ("executed_flops", "model_flops"):
        yield from _agreed(column.replace("_flops", " FLOPs"), run.cases[column])
    kernels = run.kernels[run.kernels["case"] == case].groupby("repeat")[["calls", "flops", "bytes"]].sum()
    for column, name in (("calls", "calls"), ("flops", "FLOPs"), ("bytes", "bytes")):
        yield from _agreed(f"{name} of kernels", kernels[column])
    for kind in _MEMORY:
        yield from _agreed(f"bytes of {kind}", run.ranks.groupby("repeat")[f"{kind}_bytes"].max())


def _agreed(name: str, by_launch: Any) -> Iterator[tuple[str, float]]:
    values = set(by_launch.astype(float))
    if len(values) == 1 and (value := values.pop()) > 0:
        yield name, int(value) if value.is_integer() else value


def _fingerprint(known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield everything else that may explain a change of times, in words."""
    for name, field in _FIELDS.items():
        yield from ((field, known[name]) for _ in (1,) if known.get(name))
    for name, value in sorted(known.items()):
        group, _, rest = name.partition(".")
        if group == "packages":
            yield f"package {rest}", value
        elif name.startswith("job.environment.") and (short := name.split(".", 2)[2]).startswith(_COMPUTING):
            if short == "OMP_NUM_THREADS" or not short.endswith("_NUM_THREADS"):  # whose values are the same
                yield short, value
        elif group == "environment" and rest.startswith(_COMMUNICATING):
            yield rest, value


def _code(known: Mapping[str, str]) -> str:
    """Return the commit, and whether files differ from it."""
    commit = known.get("git.commit", "")[:12]
    return f"{commit} with changes" if commit and known.get("git.dirty") == "true" else commit
