"""The numbers that a model may consist of, by the names that a suite gives them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pscale.config.training import ROUNDINGS, ROUNDOFF

BYTES = {"float64": 8, "float32": 4, "fp16": 2, "bf16": 2}
HALF_BYTES = 2  # bytes of such a number
_WIDE = np.dtype(np.float32)  # in which numbers of fewer bytes are computed with
_CHUNK = 8 << 10  # numbers that are added up at once: they stay in cache
_FEW = 128  # numbers that NumPy converts in the time of a call into C


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the type called `name`: fp16 is IEEE's of 16 bits, bf16 a float32 without its lower half."""
    if name == "fp16":
        return np.dtype(np.float16)
    if name == "bf16":
        import ml_dtypes  # noqa: PLC0415 - takes time that other types need not spend

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def tolerance(name: str) -> float:
    """Return how far two ways to compute with numbers of 16 bits may be from each other."""
    return ROUNDINGS * ROUNDOFF[name]


def has_16_bits(dtype: DTypeLike) -> bool:
    """Tell whether numbers have 16 bits: they are stored and sent so, and computed with in float32."""
    return np.dtype(dtype).itemsize == HALF_BYTES


def compute_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the type in which numbers of `dtype` are computed with."""
    return _WIDE if has_16_bits(dtype) else np.dtype(dtype)


def convert(x: NDArray[Any], out: NDArray[Any]) -> None:
    """Write `x` to `out` in the type of that, rounded to the nearest, ties to even.

    NumPy converts fp16 one number at a time; the compiled kernels do so 10 times as fast, to the same bits.
    """
    name = _compiled(x, out)
    library = _kernels() if name else None
    if library is None:
        np.copyto(out, x, casting="unsafe")
    else:
        addresses = (ctypes.c_void_p(each.ctypes.data) for each in (x, out))
        getattr(library, name)(*addresses, ctypes.c_int64(x.size))


def _compiled(x: NDArray[Any], out: NDArray[Any]) -> str:
    """Return the compiled conversion for these arrays; empty for others, such as those of a dry run."""
    types = (x.dtype.type, out.dtype.type)
    name = {(np.float16, np.float32): "widen_fp16", (np.float32, np.float16): "narrow_fp16"}.get(types, "")
    plain = type(x) is type(out) is np.ndarray and x.flags.c_contiguous and out.flags.c_contiguous
    return name if plain and x.shape == out.shape and x.size > _FEW else ""


@cache
def _kernels() -> ctypes.CDLL | None:
    """Return the compiled kernels; None where there are none, or older ones."""
    try:
        library = ctypes.CDLL(str(Path(__file__).parent / "kernels" / "_fused.so"))
    except OSError:
        return None
    return library if hasattr(library, "narrow_fp16") else None


def combine(
    parts: Sequence[NDArray[Any]] | NDArray[Any], out: NDArray[Any], function: np.ufunc = np.add
) -> None:
    """Write the sum of flat arrays to `out`, which may be one of them: in their order, rounded once."""
    if not has_16_bits(out.dtype):
        function.reduce(parts, axis=0, out=out)
        return
    first, *others = parts
    work, wide = np.empty((2, min(_CHUNK, out.size)), _WIDE)
    for start in range(0, out.size, _CHUNK):
        here = slice(start, min(start + _CHUNK, out.size))
        total, widened = (each[: here.stop - start] for each in (work, wide))
        convert(first[here], total)
        for part in others:
            addend = part[here]
            if _compiled(addend, widened):
                convert(addend, widened)
                addend = widened
            function(total, addend, out=total)
        convert(total, out[here])
