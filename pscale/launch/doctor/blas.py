"""How fast matrices are multiplied here, and whether something keeps that slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pscale.launch.command import environment
from pscale.launch.doctor.finding import Finding
from pscale.launch.machine import Machine

_KERNEL_VARIABLES = {  # by what threadpoolctl calls the library
    "openblas": ("OPENBLAS_CORETYPE",),
    "mkl": ("MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_CBWR"),
    "blis": ("BLIS_ARCH_TYPE",),
}
_LOSS = 1.1  # how many times faster it has to be without a variable before that is worth a warning
_GAIN = 1.3  # how many times faster all cores have to be for threads to be of any use
_LIMIT_S = 30


def findings(machine: Machine) -> Iterator[Finding]:
    """Ask a process of its own which BLAS it has, and time it with one thread and with all cores."""
    one = ask(1, os.environ)
    if "error" in one:
        remedy = "reinstall NumPy: pip install --force-reinstall numpy"
        yield Finding(topic="BLAS", level="fail", text=str(one["error"]), remedy=remedy)
        return
    yield library(one)
    yield kernels(one)
    if machine.usable_cores > 1:
        yield threads(one, ask(machine.usable_cores, os.environ), machine.usable_cores)
    names = _KERNEL_VARIABLES.get(one["blas"], ())
    if forced := {name: os.environ[name] for name in names if name in os.environ}:
        free = {name: value for name, value in os.environ.items() if name not in forced}
        yield kernel(forced, one, ask(1, free))
    elif names:
        text = f"chosen by the library for this CPU ({' and '.join(names)} not set)"
        yield Finding(topic="BLAS kernel", level="ok", text=text)


def ask(threads: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer of a probe that computes with `threads`; what kept it from answering is `error`."""
    argv = [sys.executable, "-P", "-m", "pscale.worker.probe", "blas", "--threads", str(threads)]
    size = ["--size", "2048"] if threads > 4 else []  # large enough for every thread to have work
    env = environment(threads, environ)
    try:
        done = subprocess.run(
            [*argv, *size], env=env, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"a product of matrices took more than {_LIMIT_S} s"}
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": f"NumPy cannot multiply matrices: {said[-1]}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def library(one: Mapping[str, Any]) -> Finding:
    """Say which BLAS it is."""
    if one["blas"] is None:
        text = f"of an unknown kind, {one['gflops']:.0f} GFLOP/s with one thread (float32)"
        remedy = "its threads cannot be set or seen by pscale: measure with `threads: [1]`"
        return Finding(topic="BLAS", level="warn", text=text, remedy=remedy)
    layer = one["blas_threading"]
    text = (
        f"{one['blas']} {one['blas_version']}, {one['blas_architecture']} kernels, threads by "
        f"{layer}; {one['gflops']:.0f} GFLOP/s with one thread (float32)"
    )
    remedy = "" if one["openmp"] else "for OpenMP threads, which can be bound: make openmp (docs/blas.md)"
    return Finding(topic="BLAS", level="ok", text=text, remedy=remedy)


def kernels(one: Mapping[str, Any]) -> Finding:
    """Say what computes between the products."""
    if one["kernels"] == "fused":
        alone = "" if one["openmp"] else ", on one thread beside a BLAS without OpenMP threads"
        return Finding(topic="kernels", level="ok", text=f"fused in C{alone}")
    remedy = "install a C compiler with OpenMP, then pscale: a step takes a tenth less (docs/kernels.md)"
    return Finding(
        topic="kernels",
        level="warn",
        text="NumPy; fused ones were not built from these sources",
        remedy=remedy,
    )


def threads(one: Mapping[str, Any], many: Mapping[str, Any], cores: int) -> Finding:
    """Say whether more threads make a product faster."""
    if "error" in many:
        return Finding(topic="BLAS threads", level="fail", text=str(many["error"]))
    ratio = many["gflops"] / one["gflops"]
    text = (
        f"{many['gflops']:.0f} GFLOP/s with {cores} threads, {ratio:.2f} times those of one; "
        f"they kept {many['cores']:.1f} cores busy"
    )
    if ratio >= _GAIN:
        return Finding(topic="BLAS threads", level="ok", text=text)
    remedy = (
        "this BLAS got no more than one thread: install one with threads (NumPy's own wheel has)"
        if many["threads"] == 1
        else "look for other work on the machine, or give the cores to ranks: `threads: [1]`"
    )
    return Finding(topic="BLAS threads", level="warn", text=text, remedy=remedy)


def kernel(forced: Mapping[str, str], one: Mapping[str, Any], free: Mapping[str, Any]) -> Finding:
    """Say whether variables that choose the kernel cost speed; `free` was measured without them."""
    named = ", ".join(f"{name}={value}" for name, value in forced.items())
    if "error" in free:
        return Finding(topic="BLAS kernel", level="warn", text=f"without {named}: {free['error']}")
    ratio = free["gflops"] / one["gflops"]
    text = (
        f"{named}: {one['blas_architecture']} kernels, {one['gflops']:.0f} GFLOP/s; without: "
        f"{free['blas_architecture']}, {free['gflops']:.0f} GFLOP/s, {ratio:.2f} times as fast"
    )
    if ratio < _LOSS:
        return Finding(topic="BLAS kernel", level="ok", text=text)
    remedy = f"unset {' '.join(forced)}: this CPU can do better"
    return Finding(topic="BLAS kernel", level="warn", text=text, remedy=remedy)
