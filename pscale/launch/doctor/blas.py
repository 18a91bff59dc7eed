"""How fast matrices are multiplied here, and whether something keeps that slow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pscale.blas.forwarding import is_wheel, path_of
from pscale.blas.installed import KINDS, BlasError, installed
from pscale.launch.blas import probe
from pscale.launch.doctor import Finding, fail, ok, warn
from pscale.launch.machine import Machine

_KERNEL_VARIABLES = {  # by threadpoolctl's name of the library
    "openblas": ("OPENBLAS_CORETYPE",),
    "mkl": ("MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_CBWR"),
    "blis": ("BLIS_ARCH_TYPE",),
}
_LOSS = 1.1  # how many times faster it has to be without a variable before that is worth a warning
_WITHIN_S, _EACH_S = 19.0, 7.0  # for all libraries, and for one of them with one thread or with all
_GAIN = 1.3  # how many times faster all cores have to be for threads to be of any use


def findings(machine: Machine) -> Iterator[Finding]:
    """Probe BLAS in a process of its own, with one thread and with all cores."""
    one = probe(1, os.environ)
    if "error" in one:
        yield fail("BLAS", str(one["error"]), "reinstall NumPy: pip install --force-reinstall numpy")
        return
    yield library(one)
    yield kernels(one)
    if machine.usable_cores > 1:
        yield threads(one, probe(machine.usable_cores, os.environ), machine.usable_cores)
    names = _KERNEL_VARIABLES.get(one["blas"], ())
    if forced := {name: os.environ[name] for name in names if name in os.environ}:
        free = {name: value for name, value in os.environ.items() if name not in forced}
        yield kernel(forced, one, probe(1, free))
    elif names:
        yield ok("BLAS code path", f"chosen by the library for this CPU ({' and '.join(names)} not set)")


def library(one: Mapping[str, Any]) -> Finding:
    """Say which BLAS it is."""
    if one["blas"] is None:
        return warn(
            "BLAS",
            f"unknown library, {one['gflops']:.0f} GFLOP/s with one thread (float32)",
            "pscale cannot control its threads: measure with `threads: 1`",
        )
    layer = one["blas_threading"]
    text = (
        f"{one['blas']} {one['blas_version']}, {one['blas_architecture']} kernels, {layer} build; "
        f"{one['gflops']:.0f} GFLOP/s with one thread (float32)"
    )
    if one["blas_library"]:
        text += f"; {one['blas_library']}, lent to NumPy (launch.blas)"
    return ok("BLAS", text, "" if one["openmp"] else _openmp_advice())


def _openmp_advice() -> str:
    known = next((each for each in installed("openblas", os.environ) if each.openmp), None)
    if known is None:
        return "for a build whose threads can be pinned: apt install libopenblas0-openmp, or docs/blas.md"
    try:
        path_of(str(known.path), os.environ)
    except BlasError as error:
        return f"{known.path} is an OpenMP build, but {error}"
    if not is_wheel():
        return f"{known.path} is an OpenMP build: launch.blas=openblas uses it (docs/blas.md)"
    return (
        f"{known.path} is an OpenMP build, but picks old kernels on this CPU: update it, or set "
        "OPENBLAS_CORETYPE (docs/blas.md)"
    )


def kernels(one: Mapping[str, Any]) -> Finding:
    """Say which kernels run outside of matrix products."""
    if one["kernels"] == "fused":
        alone = "" if one["openmp"] else ", single-threaded because BLAS is not an OpenMP build"
        return ok("kernels", f"fused in C{alone}")
    missing = "gomp" in one["kernels_obstacle"]
    advice = (
        "the OpenMP runtime of GCC: apt install libgomp1"
        if missing
        else "a C compiler with OpenMP, then pscale"
    )
    return warn(
        "kernels",
        f"NumPy instead of fused C: {one['kernels_obstacle']}",
        f"install {advice}; steps become about 10% faster (docs/kernels.md)",
    )


def threads(one: Mapping[str, Any], many: Mapping[str, Any], cores: int) -> Finding:
    """Say whether more threads make a product faster."""
    if "error" in many:
        return fail("BLAS threads", str(many["error"]))
    ratio = many["gflops"] / one["gflops"]
    text = (
        f"{many['gflops']:.0f} GFLOP/s with {cores} threads, {ratio:.2f} times one thread; "
        f"they kept {many['cores']:.1f} cores busy"
    )
    if ratio >= _GAIN:
        return ok("BLAS threads", text)
    return warn(
        "BLAS threads",
        text,
        "this BLAS used only one thread: install a threaded one (such as that of NumPy's wheel)"
        if many["threads"] == 1
        else "look for other work on the machine, or use more ranks with one thread each: `threads: 1`",
    )


def kernel(forced: Mapping[str, str], one: Mapping[str, Any], free: Mapping[str, Any]) -> Finding:
    """Say whether variables that choose the kernel cost speed; `free` was measured without them."""
    named = ", ".join(f"{name}={value}" for name, value in forced.items())
    if "error" in free:
        return warn("BLAS code path", f"without {named}: {free['error']}")
    ratio = free["gflops"] / one["gflops"]
    text = (
        f"{named}: {one['blas_architecture']} kernels, {one['gflops']:.0f} GFLOP/s; without: "
        f"{free['blas_architecture']}, {free['gflops']:.0f} GFLOP/s, {ratio:.2f} times as fast"
    )
    if ratio < _LOSS:
        return ok("BLAS code path", text)
    return warn("BLAS code path", text, f"unset {' '.join(forced)}: this CPU can do better")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast one BLAS multiplies matrices here."""

    choice: str  # as of `launch.blas`
    auto: bool  # what `launch.blas: auto` takes
    name: str
    kernels: str
    threading: str
    gflops: float  # with one thread
    gflops_all: float  # with all cores
    error: str = ""


def ranking(cores: int) -> list[Speed]:
    """Measure NumPy's own BLAS and those that are installed, with one thread and with all cores.

    The fastest comes first; takes some two seconds for each, and less than 20 however many there are.
    """
    until = time.monotonic() + _WITHIN_S
    found = [str(library.path) for kind in KINDS for library in installed(kind, os.environ)]
    automatic = probe(1, os.environ, limit_s=_EACH_S).get("blas_library") or "numpy"
    speeds = [_speed(choice, automatic, cores, until) for choice in ("numpy", *found)]
    return sorted(speeds, key=lambda speed: -max(speed.gflops, speed.gflops_all))


def _speed(choice: str, automatic: str, cores: int, until: float) -> Speed:
    one = _probe(1, choice, until)
    many = _probe(cores, choice, until) if cores > 1 and "error" not in one else one
    return Speed(
        choice=choice,
        auto=choice == automatic,
        name=" ".join(filter(None, (one.get("blas"), one.get("blas_version")))),
        kernels=one.get("blas_architecture") or "",
        threading=one.get("blas_threading") or "",
        gflops=one.get("gflops", 0.0),
        gflops_all=many.get("gflops", 0.0),
        error=one.get("error") or many.get("error") or "",
    )


def _probe(threads: int, choice: str, until: float) -> dict[str, Any]:
    left_s = until - time.monotonic()
    if left_s <= 0:
        return {"error": f"not measured: {_WITHIN_S:.0f} s were over"}
    return probe(threads, os.environ, choice, min(_EACH_S, left_s))
