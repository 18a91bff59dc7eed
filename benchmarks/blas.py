"""Compare each installed BLAS called through pscale/blas/forward.c with the same library called at once.

    python benchmarks/blas.py --json blas.json

A linked NumPy calls a library as this program does at once, by the address of the routine. Both ways
alternate in one process for each library, on one thread: dot products of one number show the cost of a call,
products of matrices what is left of it. CPU time counts, which other work on the machine hardly changes.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from ctypes import byref, c_double, c_float, c_int, c_int64, c_void_p
from itertools import repeat
from pathlib import Path
from time import process_time

import numpy as np
from figures import Figure, figure, finish, parser

from pscale.blas import forwarding
from pscale.blas.installed import KINDS, installed

CALLS = 20_000
MOST_S, MOST_RATIO = 50e-9, 1.01
SIZE = 768
ROW_MAJOR, AS_IT_IS = c_int(101), c_int(111)
Call = Callable[[], object]


def dot(library: ctypes.CDLL, name: str, integer: type) -> Call:
    function, one, count = library[name.format("ddot")], byref(c_double(1.0)), integer(1)
    function.restype = c_double
    return lambda: [function(*arguments) for arguments in repeat((count, one, count, one, count), CALLS)]


def product(library: ctypes.CDLL, name: str, integer: type, matrices: np.ndarray) -> Call:
    function, size = library[name.format("sgemm")], integer(SIZE)
    a, b, c = (c_void_p(matrix.ctypes.data) for matrix in matrices)
    sizes, one, zero = (size, size, size), c_float(1.0), c_float(0.0)
    return lambda: function(ROW_MAJOR, AS_IT_IS, AS_IT_IS, *sizes, one, a, size, b, size, zero, c, size)


def timed(call: Call) -> float:
    start = process_time()
    call()
    return process_time() - start


def rounds(count: int) -> dict[str, list[tuple[float, float]]]:
    """Return seconds at once and forwarded, in alternation, of the library that computes for NumPy here."""
    at_once, forwarded = ctypes.CDLL(str(forwarding.library())), ctypes.CDLL(forwarding.built())
    prefix, suffix = forwarding.affixes(at_once)
    integer, spelt = (c_int64, "64_") if forwarding.has_64_bits(at_once, suffix) else (c_int, "")
    matrices = np.random.default_rng(0).normal(size=(3, SIZE, SIZE)).astype(np.float32)
    ways = ((at_once, f"{prefix}cblas_{{}}{suffix}"), (forwarded, f"cblas_{{}}{spelt}"))
    pairs = {
        "dot": [dot(library, name, integer) for library, name in ways],
        "product": [product(library, name, integer, matrices) for library, name in ways],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in pairs}
    for turn in range(count + 1):
        for name, calls in pairs.items():
            times = {each: timed(calls[each]) for each in ((0, 1), (1, 0))[turn % 2]}
            if turn:  # the first meets cold caches
                found[name].append((times[0], times[1]))
    return found


def compare(path: Path, count: int) -> dict[str, Figure]:
    argv = [sys.executable, "-m", "pscale.blas", str(path), __file__, "--rounds", str(count), "--inside"]
    alone = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "BLIS", "MKL")}
    done = subprocess.run(argv, env=os.environ | alone, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    name = f"{path.parent.name}/{path.name}"
    added_s = [(forwarded - at_once) / CALLS for at_once, forwarded in found["dot"]]
    return {
        f"{name}: added to a call": figure(
            [each * 1e6 for each in added_s], "lower", MOST_S * 1e6, unit="µs"
        ),
        f"{name}: time of a product over that of the library at once": figure(
            [forwarded / at_once for at_once, forwarded in found["product"]], "lower", MOST_RATIO
        ),
    }


def main() -> None:
    options = parser(__doc__, rounds=31)
    options.add_argument("--inside", action="store_true", help="measure the library of this process")
    args = options.parse_args()
    if args.inside:
        print(json.dumps(rounds(args.rounds)))
        return
    libraries = [library.path for kind in KINDS for library in installed(kind, os.environ)]
    found = {name: each for path in libraries for name, each in compare(path, args.rounds).items()}
    finish(args, found, {"calls": CALLS, "size": SIZE})


if __name__ == "__main__":
    main()
