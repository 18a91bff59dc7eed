"""Which variables of the environment are stored with results: those that computing and MPI depend on.

Results are shared: a variable is stored if its name is one of these, and if its value cannot open a door.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_NAMES = re.compile(
    r"OMP_(NUM_THREADS|NUM_TEAMS|TEAMS_THREAD_LIMIT|THREAD_LIMIT|DYNAMIC|NESTED|MAX_ACTIVE_LEVELS|PROC_BIND"
    r"|PLACES|SCHEDULE|WAIT_POLICY|STACKSIZE|CANCELLATION|DISPLAY_ENV|DISPLAY_AFFINITY|AFFINITY_FORMAT"
    r"|TARGET_OFFLOAD|DEFAULT_DEVICE|TOOL|TOOL_LIBRARIES)|GOMP_(CPU_AFFINITY|SPINCOUNT|STACKSIZE)"
    r"|KMP_(AFFINITY|BLOCKTIME|HW_SUBSET|LIBRARY|SETTINGS|STACKSIZE|TOPOLOGY_METHOD|\w+_BARRIER(_PATTERN)?"
    r"|DUPLICATE_LIB_OK|DYNAMIC_MODE|INIT_AT_FORK|WARNINGS|ADAPTIVE_LOCK_PROPS|TEAMS_\w+)"
    r"|OPENBLAS_(NUM_THREADS|DEFAULT_NUM_THREADS|CORETYPE|MAIN_FREE|THREAD_TIMEOUT|VERBOSE|LOOPS)"
    r"|MKL_(NUM_THREADS|DYNAMIC|DOMAIN_NUM_THREADS|THREADING_LAYER|INTERFACE_LAYER|ENABLE_INSTRUCTIONS|CBWR"
    r"|NUM_STRIPES|VERBOSE|DEBUG_CPU_TYPE|FAST_MEMORY_LIMIT)"
    r"|BLIS_(NUM_THREADS|[JI][CR]_NT|PC_NT|ARCH_TYPE|ARCH_DEBUG|THREAD_IMPL)|\w+_NUM_THREADS"
)
_SETTINGS = (  # of MPI libraries, which have hundreds
    *("MPIR_CVAR_", "MPICH_", "HYDRA_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "I_MPI_", "UCX_", "FI_"),
    *("MPI4PY_",),
)
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|(?<!BY)PASS(?!IVE)|PWD|CRED|AUTH|COOKIE|JWT|KEY|CERT|LOGIN|PRIVATE|_PW(_|$)", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"://[^/\s]*@|[^\s:/@]+:[^\s:/@]+@|-----BEGIN|\b(eyJ|AKIA|gh[a-z]_|xox[a-z]-|sk-|glpat-)"
    r"|(?<![\w./+=-])(?!0x)(?=\S*\d)(?=\S*[A-Za-z])[\w+=-]{32,}"  # as keys are; no mask, no path
)


def stored(environ: Mapping[str, str], also: Callable[[str], bool] = lambda _: False) -> dict[str, str]:
    """Return the variables to store, and those whose names are to be stored `also`, sorted."""
    found = {}
    for name, value in sorted(environ.items()):
        is_good = _NAMES.fullmatch(name) or name.startswith(_SETTINGS) or also(name)
        if is_good and not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value):
            found[name] = value
    return found
