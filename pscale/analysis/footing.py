"""Whether two cases compute with the same means, so that a fixed piece of work costs both the same by itself.

Where they do not, a difference in pace may be theirs, not the machine's, and must stay in their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pscale.analysis.frames import Run

_OF_RANKS = {
    "blas": "BLAS",
    "blas_version": "BLAS",
    "blas_architecture": "BLAS",
    "blas_threading": "BLAS",
    "threads": "threads",
    "kernels": "kernels",
    "kernel_threads": "threads",
    "cpus": "pinning",
}
_OF_LAUNCH = {"bind": "pinning", "omp": "pinning", "kernels": "kernels", "env": "environment"}


def unlike(a: Run, case: str, b: Run, other: str) -> tuple[str, ...]:
    """Return in what the means of a case of A differ from those of one of B, in words."""
    return tuple(dict.fromkeys(_differences(a, case, b, other)))


def _differences(a: Run, case: str, b: Run, other: str) -> Iterator[str]:
    if _processor(a) != _processor(b):
        yield "processor"
    left, right = (run.ranks[run.ranks["case"] == name] for run, name in ((a, case), (b, other)))
    if set(left["rank"]) != set(right["rank"]):
        yield "ranks"
    for column, word in _OF_RANKS.items():
        if _values(left[column]) != _values(right[column]):
            yield word
    launches = [run.planned.get(name, {}).get("launch", {}) for run, name in ((a, case), (b, other))]
    for field, word in _OF_LAUNCH.items():
        if launches[0].get(field) != launches[1].get(field):
            yield word


def _values(column: Any) -> set[str]:
    return set(column.dropna().astype(str))


def _processor(run: Run) -> Any:
    return run.document.get("provenance", {}).get("machine", {}).get("cpu_model")
