"""The BLAS libraries that are installed here, found by their names where systems and users put them.

Nothing is loaded: a library may start threads, or fail.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pscale.errors import PscaleError
from pscale.runs.atomic_files import parts

_FILES = {  # by kind, the names of the library
    "openblas": re.compile(r"lib(scipy_)?openblas\w*([-.][\w.]+)?\.so[.\d]*"),
    "blis": re.compile(r"libblis(64)?(-mt)?\.so[.\d]*"),
    "mkl": re.compile(r"libmkl_rt\.so[.\d]*"),
}
_ROOTS = {  # variables that name the folder of an installation
    "openblas": ("OPENBLAS_ROOT", "OpenBLAS_ROOT", "OPENBLAS_HOME", "OPENBLAS_DIR", "EBROOTOPENBLAS"),
    "blis": ("BLIS_ROOT", "BLIS_HOME", "BLIS_DIR", "AOCL_ROOT", "EBROOTBLIS"),
    "mkl": ("MKLROOT", "MKL_ROOT", "EBROOTIMKL"),
}
_ANY_ROOT = ("BLAS_ROOT", "BLAS_DIR")
_INSTALL = {
    "openblas": "on Debian and Ubuntu: apt install libopenblas0-openmp",
    "blis": "on Debian and Ubuntu: apt install libblis4-openmp",
    "mkl": "anywhere: pip install mkl",
}
_OPENMP = (b"omp.so", b"omp5.so")  # libgomp, libomp, libiomp5: the runtimes that a library may be linked to
_HEAD_PARTS = 2  # of a library, MiB: where the names of those that it needs are

KINDS = tuple(_FILES)


class BlasError(PscaleError):
    """The BLAS that a case asks for is not here or cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """One BLAS library on disk."""

    kind: str
    path: Path
    openmp: bool  # has OpenMP threads


def find(kind: str, environ: Mapping[str, str]) -> Library:
    """Return the library of that kind to prefer; raises BlasError where there is none."""
    if found := installed(kind, environ):
        return found[0]
    roots = " or ".join((_ROOTS[kind][0], _ANY_ROOT[0], "LD_LIBRARY_PATH"))
    raise BlasError(f"no {kind} is installed here ({_INSTALL[kind]}); {roots} may say where it is")


def installed(kind: str, environ: Mapping[str, str]) -> list[Library]:
    """Return all libraries of that kind: where variables say first, then those with OpenMP."""
    named, usual = _files(kind, _named(kind, environ)), _files(kind, _usual(kind, environ))
    unique: dict[str, Path] = {}  # files have several names
    for path in (*named, *usual):
        unique.setdefault(os.path.realpath(path), path)
    libraries = [Library(kind=kind, path=path, openmp=_has_openmp(path)) for path in unique.values()]
    return sorted(libraries, key=lambda library: (library.path not in named, not library.openmp))


def _named(kind: str, environ: Mapping[str, str]) -> Iterator[Path]:
    for variable in (*_ROOTS[kind], *_ANY_ROOT):
        if root := environ.get(variable):
            yield from (Path(root, part) for part in ("lib", "lib64", "lib/intel64", "."))
    for variable in ("LD_LIBRARY_PATH", "LIBRARY_PATH"):
        yield from map(Path, filter(None, environ.get(variable, "").split(os.pathsep)))


def _usual(kind: str, environ: Mapping[str, str]) -> Iterator[Path]:
    if conda := environ.get("CONDA_PREFIX"):
        yield Path(conda, "lib")
    for packages in (Path(folder) for folder in sys.path if folder.endswith("-packages")):
        yield packages.parents[1]  # lib, where wheels and conda put what is no Python
        yield from sorted(packages.glob("scipy_openblas*/lib"))
    for folder in (*sorted(Path("/usr/lib").glob("*-linux-*")), Path("/usr/lib64"), Path("/usr/lib")):
        yield from sorted(folder.glob(f"{kind}*"))  # Debian has every build in a folder of its own
        yield folder
    yield from map(Path, ("/usr/local/lib", "/usr/local/lib64"))
    yield from sorted(Path("/opt/intel/oneapi/mkl/latest").glob("lib*/"))


def _files(kind: str, folders: Iterator[Path]) -> Sequence[Path]:
    found: dict[Path, None] = {}
    for folder in folders:
        try:
            names = sorted(entry.name for entry in os.scandir(folder))  # paths would take ten times as long
        except OSError:
            continue
        found |= {folder / name: None for name in names if _FILES[kind].fullmatch(name)}
    return [path for path in found if path.is_file()]


def _has_openmp(path: Path) -> bool:
    if _FILES["mkl"].fullmatch(path.name):
        return True  # loads the runtime itself
    try:
        head = b"".join(islice(parts(path), _HEAD_PARTS))
    except OSError:
        return False
    return any(name in head for name in _OPENMP)
