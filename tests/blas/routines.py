"""Call every routine of forward.c by every name that NumPy may use, and NumPy itself, beside sums in float64.

python -m pscale.blas LIBRARY routines.py            fails by an assertion
python -m pscale.blas LIBRARY routines.py too-large  asks for more rows than 32 bits can count
"""

import ctypes
import sys
from ctypes import byref, c_double, c_float, c_int, c_int64, c_void_p
from itertools import product

import numpy as np

from pscale.blas import forwarding

SPELLINGS = [(pre, *post) for pre, post in product(("", "scipy_"), (("", c_int), ("64_", c_int64)))]
TYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
REALS = {"s": c_float, "d": c_double}
ROW_MAJOR, UPPER = c_int(101), c_int(121)
OPERATIONS = {111: lambda a: a, 112: lambda a: a.T, 113: lambda a: a.conj().T}
M, N, K, STRIDE = 5, 4, 3, 3
FORWARD = ctypes.CDLL(forwarding.built())
RANDOM = np.random.default_rng(0)


def numbers(dtype, *shape):
    real, imaginary = RANDOM.normal(size=(2, *shape))
    return (real + 1j * imaginary if np.dtype(dtype).kind == "c" else real).astype(dtype)


def wide(array):
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def check(found, expected):
    limit = 1e-4 if np.asarray(found).dtype.name in ("float32", "complex64") else 1e-12
    assert np.abs(found - expected).max() < limit, (found, expected)


def function(prefix, routine, suffix):
    return FORWARD[f"{prefix}cblas_{routine}{suffix}"]


def at(array):
    return c_void_p(array.ctypes.data)


def routines(letter, prefix, suffix, size):
    """Call what a type has, spelt so, with integers of that size."""
    dtype = TYPES[letter]
    alpha, beta = factors = numbers(dtype, 2)
    by_alpha, by_beta = (
        (REALS[letter](each) for each in factors) if letter in REALS else map(at, factors[:, None])
    )
    for of_a, of_b in product(OPERATIONS, OPERATIONS):
        a, b = (
            numbers(dtype, *((M, K) if of_a == 111 else (K, M))),
            numbers(dtype, *((K, N) if of_b == 111 else (N, K))),
        )
        c = numbers(dtype, M, N + 2)  # with room at the end of each row
        expected = wide(c)
        expected[:, :N] = (
            alpha * (OPERATIONS[of_a](wide(a)) @ OPERATIONS[of_b](wide(b))) + beta * expected[:, :N]
        )
        sizes = map(size, (M, N, K))
        rows = (at(a), size(a.shape[1]), at(b), size(b.shape[1]), by_beta, at(c), size(N + 2))
        function(prefix, f"{letter}gemm", suffix)(
            ROW_MAJOR, c_int(of_a), c_int(of_b), *sizes, by_alpha, *rows
        )
        check(c, expected)
    for operation, applied in OPERATIONS.items():
        a = numbers(dtype, M, N)
        long, short = applied(a).shape
        x, y = numbers(dtype, short * STRIDE), numbers(dtype, long * STRIDE)
        expected = wide(y)
        expected[::STRIDE] = alpha * (applied(wide(a)) @ wide(x[::STRIDE])) + beta * expected[::STRIDE]
        vectors = (at(x), size(STRIDE), by_beta, at(y), size(STRIDE))
        function(prefix, f"{letter}gemv", suffix)(
            ROW_MAJOR, c_int(operation), size(M), size(N), by_alpha, at(a), size(N), *vectors
        )
        check(y, expected)
    for operation in (111, 112):
        a = numbers(dtype, *((N, K) if operation == 111 else (K, N)))
        c = numbers(dtype, N, N)
        of_a = OPERATIONS[operation](wide(a))
        expected = np.where(np.triu(np.ones((N, N))), alpha * (of_a @ of_a.T) + beta * wide(c), wide(c))
        function(prefix, f"{letter}syrk", suffix)(
            ROW_MAJOR,
            UPPER,
            c_int(operation),
            size(N),
            size(K),
            by_alpha,
            at(a),
            size(a.shape[1]),
            by_beta,
            at(c),
            size(N),
        )
        check(c, expected)
    for stride in (1, STRIDE, -1):
        x, y = numbers(dtype, N * STRIDE), numbers(dtype, N * STRIDE)
        of_x, of_y = wide(x)[: N * abs(stride) : abs(stride)], y[: N * STRIDE : STRIDE]
        of_x = of_x[::-1] if stride < 0 else of_x
        vectors = (size(N), at(x), size(stride), at(y), size(STRIDE))
        if letter in REALS:
            dot = function(prefix, f"{letter}dot", suffix)
            dot.restype = REALS[letter]
            check(dtype(dot(*vectors)), of_x @ wide(of_y))
        else:
            for name, left in (("dotu", of_x), ("dotc", of_x.conj())):
                result = np.empty(1, dtype)
                function(prefix, f"{letter}{name}_sub", suffix)(*vectors, at(result))
                check(result, left @ wide(of_y))
        expected = wide(y)
        expected[: N * STRIDE : STRIDE] += alpha * of_x
        function(prefix, f"{letter}axpy", suffix)(size(N), by_alpha, *vectors[1:])
        check(y, expected)


def products_of_numpy(dtype):
    """Multiply what NumPy hands to BLAS as it is, transposed, with steps, and what it copies before."""
    large = numbers(dtype, 14, 14)
    left = (large[:6, :7], large[:7, :6].T, large[1:12:2, ::2])
    right = (large[7:, :5], large[:5, 7:].T, large[::2, 4:14:2])
    for a, b in product(left, right):
        check(a @ b, wide(a) @ wide(b))
    for a in left:
        check(a @ a.T, wide(a) @ wide(a).T)
        for x, y in product((large[0, :7], large[::2, 0]), repeat=2):
            check(a @ x, wide(a) @ wide(x))
            check(x[:6] @ a, wide(x[:6]) @ wide(a))
            check(np.dot(x, y), wide(x) @ wide(y))
            check(np.vdot(x, y), wide(x).conj() @ wide(y))
            check(np.dot(a[:1, :1], x[None]), wide(a[:1, :1]) * wide(x))


if sys.argv[1:] == ["too-large"]:
    x = np.ones(1)
    function("", "ddot", "64_").restype = c_double
    function("", "ddot", "64_")(
        c_int64(1 << 31), byref(c_double()), c_int64(1), byref(c_double()), c_int64(1)
    )
for letter, spelling in product(TYPES, SPELLINGS):
    routines(letter, *spelling)
for dtype in TYPES.values():
    products_of_numpy(dtype)
print(forwarding.library())
