"""Which variables of the environment are stored with results: those that computing and MPI depend on.

What opens doors never is: results are shared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "NVPL_"),
    *("MPICH_", "MPIR_", "HYDRA_", "OMPI_", "PRTE_", "PMIX_", "I_MPI_", "UCX_", "FI_", "MPI4PY_"),
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|JWT|KEY", re.IGNORECASE)


def stored(environ: Mapping[str, str], also: Callable[[str], bool] = lambda _: False) -> dict[str, str]:
    """Return the variables to store, and those whose names are to be stored `also`, sorted."""
    names = (name for name in sorted(environ) if name.startswith(_PREFIXES) or also(name))
    return {name: environ[name] for name in names if not _SECRET.search(name)}
