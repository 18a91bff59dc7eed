"""What the launches of a run ran on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pscale.analysis.frames import Run


def machine(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what the launches ran on; several values where they differ."""
    ranks = run.ranks
    blas = ranks[["blas", "blas_version", "blas_architecture", "blas_threading"]].astype(object).fillna("")
    kernels = ranks[["kernels", "kernel_threads"]]
    found = {
        "Hosts": sorted(set(ranks["host"].dropna().astype(str))),
        "CPU": [_processor(run.document.get("provenance", {}).get("machine", {}))],
        "BLAS": sorted({" ".join(filter(None, map(str, row))) for row in blas.drop_duplicates().to_numpy()}),
        "Kernels": sorted({_kernels(*row) for row in kernels.dropna().to_numpy()}),
        "MPI": sorted({_mpi(text) for text in run.cases["provenance"].dropna().unique()}),
    }
    return tuple((name, listed(values)) for name, values in found.items() if any(values))


def elsewhere(run: Run, other: Run) -> list[str]:
    """Return in what another run's hosts or MPI differ."""
    own, others = dict(machine(run)), dict(machine(other))
    return [
        name for name, key in (("set of hosts", "Hosts"), ("MPI", "MPI")) if own.get(key) != others.get(key)
    ]


def listed(values: Sequence[str], most: int = 4) -> str:
    """Return the first values, and how many more there are."""
    named = ", ".join(value for value in values[:most] if value)
    return named if len(values) <= most else f"{named} and {len(values) - most} more"


def _kernels(name: str, threads: int) -> str:
    return f"{name}, {threads} threads" if threads > 1 else name


def _processor(known: Mapping[str, Any]) -> str:
    cores = known.get("cores")
    said = [known.get("cpu_model"), f"{cores} cores" if cores else None]
    return ", ".join(str(value) for value in said if value)


def _mpi(provenance: str) -> str:
    try:
        found = json.loads(provenance)["mpi"]
        name = f"{found['vendor']} {found['version']}" if "vendor" in found else str(found["library"])
    except (ValueError, KeyError, TypeError):
        return ""
    return " ".join(name.split())[:60]
