"""The profile of a machine by its data sheet: nothing of it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pscale.analysis.text import rate, size_of
from pscale.config import Case
from pscale.errors import UsageError
from pscale.predict.profile import Machine, Paces, Profile
from pscale.simulator.network import DataSheet
from pscale.training.prediction import fullest_rank
from pscale.training.prediction import predict as predict_rank


def profile_by_sheet(sheet: DataSheet, case: Case) -> Profile:
    """Return the profile of a case by a data sheet; raises UsageError where that says too little."""
    dtype, one = case.model.dtype, np.ones(1)
    if dtype not in sheet.peak:
        raise UsageError(
            f"{sheet.origin}: peak: has {', '.join(sheet.peak)}, and {case.label} computes in {dtype}: "
            f"add its FLOP/s, or choose another by --set precision={next(iter(sheet.peak))}"
        )
    if case.threads > (sheet.cores or case.threads):
        raise UsageError(
            f"{sheet.origin}: cores: {sheet.cores}, and a rank of {case.label} has {case.threads} threads"
        )
    paces = Paces(case=case.id, repeat=0, ranks=1, common=one, calls=one, own=np.ones((1, 1)))
    return Profile(
        origin=f"the data sheet {sheet.origin}",
        machine=Machine(host=sheet.name, cpu_model="", cores=sheet.cores or 0, ranks_per_node=1),
        paces=(paces,),
        dtypes=(dtype,),
        threads=(case.threads,),
        notes=tuple(_notes(sheet, case)),
        sheet=sheet,
    )


def check_sheet(
    sheet: DataSheet, cases: Sequence[Case], measured: Mapping[str, object], *, tiers: bool
) -> None:
    """Raise UsageError for options that give what was measured, and for calls that no tiers price."""
    for option in (name for name, given in measured.items() if given):
        raise UsageError(
            f"--on {sheet.origin} is a machine that was not measured: leave out {option}, or --on"
        )
    largest = max(cases, key=lambda case: case.ranks)
    if largest.ranks > 1 and not tiers:
        raise UsageError(
            f"{sheet.origin}: network: is missing, and the {largest.ranks} ranks of {largest.label} exchange "
            "data: add its tiers, or --network FILE"
        )


def _notes(sheet: DataSheet, case: Case) -> Iterator[str]:
    """Yield what the times of a case rest on, and whether it has the memory."""
    flops = sheet.peak[case.model.dtype]
    yield (
        "by data sheet, nothing was measured: a kernel takes as long as its FLOPs at "
        f"{sheet.products:.0%} of {rate(flops, 'FLOP/s')} or its bytes at {rate(sheet.bandwidth, 'B/s')}, "
        "whichever is longer; starting kernels, uneven ranks, files and interruptions are left out"
    )
    needed_bytes = predict_rank(case, fullest_rank(case)).total_bytes
    limit_bytes = sheet.memory * sheet.share(case.threads)
    if needed_bytes > limit_bytes:
        yield (
            f"a rank needs {size_of(needed_bytes)} of memory and has {size_of(limit_bytes)}: so this cannot "
            "run, and the time is that of a machine as fast with more memory"
        )


def by_sheet(sheet: DataSheet) -> list[str]:
    """Say how far to trust predictions by a data sheet."""
    return [
        f"By data sheet: no time of {sheet.name} was measured, and no interval is known. docs/machines.md "
        "compares such predictions with published times of training, which took longer."
    ]
