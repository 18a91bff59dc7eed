"""Whether the BLAS that was found is the one that a case is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pscale.config import Omp, Require

_OPENMP = ("openmp", "intel", "gnu")  # MKL calls its layer after the OpenMP runtime that it loads
_REMEDY = (
    "`make openmp` builds NumPy for OpenMP threads; docs/blas.md has the commands for other environments"
)


def has_openmp(found: Mapping[str, Any]) -> bool:
    """Tell whether the BLAS of `observe.blas` has OpenMP threads."""
    return found["blas_threading"] in _OPENMP


def unmet(require: Require, omp: Omp, found: Mapping[str, Any]) -> str:
    """Return why the BLAS of `observe.blas` will not do, or nothing."""
    library = found["blas"] or "an unknown BLAS"
    threading = found["blas_threading"] or "unknown means"
    here = f"NumPy here multiplies with {library}, threads by {threading}"
    if require.blas not in (None, library):
        return f"the suite requires blas: {require.blas}, but {here}"
    layer = "openmp" if has_openmp(found) else threading
    if require.blas_threading not in (None, layer):
        remedy = f"; {_REMEDY}" if require.blas_threading == "openmp" else ""
        return f"the suite requires blas_threading: {require.blas_threading}, but {here}{remedy}"
    if omp != Omp() and layer != "openmp":
        return f"launch.omp is about OpenMP threads, but {here}; {_REMEDY}"
    return ""
