"""What each class of kernels costs in a step, and the roofs of the rank that runs them."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.analysis.frames import Run, records
from pscale.results.events import PHASES

_AMOUNTS = ["calls", "flops", "bytes", "time_s"]
_ROOFS = {"gemm_peak_gflops": "peak_gflops", "stream_gb_s": "stream_gb_s"}


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """One class of kernels in a phase of one step: means over ranks, the median of launches.

    Of `other`, which is computed outside kernels, time alone is known. The roofs are those of a rank while
    all ranks are busy, as means over ranks, of the best launch, since other work can but lower them; None
    where they were not measured.
    """

    case: str
    phase: str
    kernel: str
    calls: float
    flops: float
    bytes: float
    time_s: float
    peak_gflops: float | None  # of matrix products
    stream_gb_s: float | None  # of memory


def kernel_times(run: Run) -> tuple[KernelTime, ...]:
    """Return the classes of kernels of every case whose kernels were timed, in the order of a step."""
    means = run.kernels.assign(**{name: run.kernels[name] / run.kernels["ranks"] for name in _AMOUNTS})
    table = means.groupby(["case", "phase", "kernel"], observed=True)[_AMOUNTS].median().reset_index()
    of_launches = run.ranks.groupby(["case", "repeat"], observed=True)[list(_ROOFS)].mean()
    roofs = of_launches.groupby("case", observed=True).max().rename(columns=_ROOFS)
    table = table.astype({"case": str, "phase": str, "kernel": str}).join(roofs.rename(index=str), on="case")
    found = [KernelTime(**row) for row in records(table)]
    places = {phase: place for place, phase in enumerate(PHASES)}
    return tuple(sorted(found, key=lambda time: (time.case, places.get(time.phase, len(places)))))
