"""Compare each installed BLAS called through pscale/blas/forward.c with the same library linked.

    python benchmarks/blas.py --json blas.json
    pip install --target FOLDER mkl && MKLROOT=FOLDER python benchmarks/blas.py

For each library one small program is compiled twice: linked to the library, as a NumPy built for it is, and
to forward.c, which it calls by the names of NumPy's published wheel. Both alternate in one process on one
thread: dot products of one number show the cost of a call, products of matrices what is left of it. CPU time
counts, which other work on the machine hardly changes. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from ctypes import c_double, c_int64, c_void_p
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
from figures import Figure, blas, figure, finish, parser

from pscale.blas import forwarding
from pscale.blas.forwarding import KINDS, installed

CALLS = 20_000
MOST_S, MOST_RATIO = 50e-9, 1.01
SIZE = 768
Call = Callable[[ctypes.CDLL], object]
PROGRAM = """
#include <stdint.h>
double DDOT(INT, const double *, INT, const double *, INT);
void SGEMM(int, int, int, INT, INT, INT, float, const float *, INT, const float *, INT, float, float *, INT);
void *routine(void) { return DDOT; }
double dots(int64_t calls) {
    double one = 1, sum = 0;
    while (calls--) sum += DDOT(1, &one, 1, &one, 1);
    return sum;
}
void product(int64_t size, const float *a, const float *b, float *c) {
    SGEMM(101, 111, 111, size, size, size, 1, a, size, b, size, 0, c, size);
}
"""


def program(folder: Path, library: str, prefix: str, suffix: str, integer: str) -> ctypes.CDLL:
    """Compile the program against a library whose routines are so spelt, and load it."""
    source, target = folder / "program.c", folder / f"program-{Path(library).name}"
    source.write_text(PROGRAM)
    names = {"DDOT": "ddot", "SGEMM": "sgemm"}
    defined = [f"-D{macro}={prefix}cblas_{name}{suffix}" for macro, name in names.items()]
    where = [library, f"-Wl,-rpath,{Path(library).parent}"]
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", f"-DINT={integer}", *defined, "-o", target, source, *where],
        check=True,
    )
    loaded = ctypes.CDLL(str(target), mode=os.RTLD_DEEPBIND)  # calls what it is linked to
    loaded.dots.restype, loaded.routine.restype = c_double, c_void_p
    called, wanted = loaded.routine(), ctypes.CDLL(library)[f"{prefix}cblas_ddot{suffix}"]
    assert called == ctypes.cast(wanted, c_void_p).value, f"{target} does not call {library}"
    return loaded


def timed(call: Call, way: ctypes.CDLL) -> float:
    start = process_time()
    call(way)
    return process_time() - start


def rounds(count: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return seconds linked and forwarded, in alternation, of the library that computes for NumPy here."""
    library, forward = str(forwarding.library()), forwarding.built()
    assert forward is not None
    opened = ctypes.CDLL(library)
    prefix, suffix = forwarding.affixes(opened)
    integer = "int64_t" if forwarding.has_64_bits(opened, suffix) else "int"
    ways = (
        program(folder, library, prefix, suffix, integer),
        program(folder, forward, "scipy_", "64_", "int64_t"),
    )
    matrices = np.random.default_rng(0).normal(size=(3, SIZE, SIZE)).astype(np.float32)
    pointers = [c_void_p(matrix.ctypes.data) for matrix in matrices]
    calls: dict[str, Call] = {
        "dot": lambda way: way.dots(c_int64(CALLS)),
        "product": lambda way: way.product(c_int64(SIZE), *pointers),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(count + 1):
        for name, call in calls.items():
            times = {each: timed(call, ways[each]) for each in ((0, 1), (1, 0))[turn % 2]}
            if turn:  # the first meets cold caches
                found[name].append((times[0], times[1]))
    return found


def measure(path: Path, count: int) -> dict[str, Any]:
    """Return the rounds of a library, in a process whose NumPy computes with it, and what it is."""
    argv = [sys.executable, "-m", "pscale.blas", str(path), __file__, "--rounds", str(count), "--inside"]
    alone = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "BLIS", "MKL")}
    done = subprocess.run(argv, env=os.environ | alone, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def as_figures(name: str, found: dict[str, Any]) -> dict[str, Figure]:
    added_s = [(forwarded - linked) / CALLS for linked, forwarded in found["dot"]]
    ratios = [forwarded / linked for linked, forwarded in found["product"]]
    return {
        f"{name}: added to a call": figure(
            [each * 1e6 for each in added_s], "lower", MOST_S * 1e6, unit="µs"
        ),
        f"{name}: time of a product over that of the library linked": figure(ratios, "lower", MOST_RATIO),
    }


def main() -> None:
    options = parser(__doc__, rounds=101)
    options.add_argument("--inside", action="store_true", help="measure the library of this process")
    args = options.parse_args()
    if args.inside:
        with TemporaryDirectory() as folder:
            print(json.dumps({**rounds(args.rounds, Path(folder)), "blas": blas()}))
        return
    paths = [library.path for kind in KINDS for library in installed(kind, os.environ)]
    found = {f"{path.parent.name}/{path.name}": measure(path, args.rounds) for path in paths}
    figures = {
        name: each for library, said in found.items() for name, each in as_figures(library, said).items()
    }
    versions = {
        library: ", ".join(f"{each['internal_api']} {each['version']}" for each in said["blas"])
        for library, said in found.items()
    }
    finish(args, figures, {"calls": CALLS, "size": SIZE, "libraries": versions})


if __name__ == "__main__":
    main()
