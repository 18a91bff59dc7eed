"""Which OpenBLAS with OpenMP threads this machine has for building NumPy, as pkg-config knows it.

Builds of OpenBLAS differ in their threads but not in their name, and several may lie side by side, of which a
system shows one as the default. So each is asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "openblas"
HINT = "on Debian and Ubuntu: apt install libopenblas-openmp-dev gcc g++ pkg-config"

_SIDE_BY_SIDE = "openblas-openmp"  # the folder that Debian and Ubuntu give the build with OpenMP
_OPENMP = 2  # openblas_get_parallel(): 0 one thread, 1 threads of its own, 2 OpenMP
_ASK = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).openblas_get_parallel())"
_LIMIT_S = 20


@dataclass(frozen=True, kw_only=True)
class OpenBlas:
    """An OpenBLAS with OpenMP threads. `search` is where pkg-config finds it, empty for its own places."""

    version: str
    folder: Path  # of the library
    search: str = ""


def find(environ: Mapping[str, str]) -> OpenBlas | None:
    """Return the first that is found: what pkg-config prefers, then what lies beside it."""
    program = shutil.which(environ.get("PKG_CONFIG", "pkg-config"), path=environ.get("PATH"))
    if program is None:
        return None
    for search in ("", *_beside(program, environ)):
        place = [search, environ.get("PKG_CONFIG_PATH", "")] if search else []
        path = os.pathsep.join(filter(None, place))
        given = {**environ, "PKG_CONFIG_PATH": path} if path else environ
        version = _say([program, "--modversion", PACKAGE], given)
        folder = _say([program, "--variable=libdir", PACKAGE], given)
        if version and folder and _has_openmp(Path(folder), environ):
            return OpenBlas(version=version, folder=Path(folder), search=path)
    return None


def _beside(program: str, environ: Mapping[str, str]) -> Iterator[str]:
    known = _say([program, "--variable=pc_path", "pkg-config"], environ)
    for folder in filter(None, known.split(os.pathsep)):
        other = Path(folder).parent / _SIDE_BY_SIDE / "pkgconfig"
        if other.is_dir():
            yield str(other)


def _has_openmp(folder: Path, environ: Mapping[str, str]) -> bool:
    """Ask the library in a process of its own, which it may fill with threads or bring down."""
    found = (folder / name for name in ("libopenblas.so", "libopenblas.dylib"))
    library = next((path for path in found if path.exists()), None)
    return library is not None and _say([sys.executable, "-c", _ASK, str(library)], environ) == str(_OPENMP)


def _say(argv: list[str], environ: Mapping[str, str]) -> str:
    """Return what a program prints; nothing where it cannot be asked."""
    try:
        answer = subprocess.run(
            argv, env=dict(environ), capture_output=True, text=True, timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
