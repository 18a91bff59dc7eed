"""Which kernels a case computes with."""

from __future__ import annotations

from pscale.config.choices import KernelsChoice
from pscale.errors import PscaleError
from pscale.nn import kernels
from pscale.nn.kernels import fused
from pscale.nn.kernels.narrow import NarrowFusedKernels, NarrowKernels
from pscale.worker import observe
from pscale.worker.require import has_openmp

_REMEDY = "installing pscale builds them where there is a C compiler with OpenMP; docs/kernels.md"


class KernelsError(PscaleError):
    """The kernels that a case asks for are not here."""


def use_kernels(choice: KernelsChoice, threads: int, *, narrow: bool = False) -> None:
    """Let the chosen kernels compute, by default the fused ones where they are.

    They share the threads of an OpenMP BLAS. Beside a BLAS with threads of another kind they stay on one: two
    sets of threads would wait for the same cores, each spinning in the other's way. Numbers are of 16 bits if
    they are `narrow`.
    """
    plain = NarrowKernels() if narrow else kernels.Kernels()
    if choice == "numpy":
        kernels.use(plain)
        return
    library = fused.library()
    if library is None:
        if choice == "fused":
            raise KernelsError(f"launch.kernels asks for fused ones, but they were not built; {_REMEDY}")
        kernels.use(plain)
        return
    kind = NarrowFusedKernels if narrow else fused.FusedKernels
    kernels.use(kind(library, threads if has_openmp(observe.blas()) else 1))
