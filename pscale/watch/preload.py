"""The recorder as a shared object: where it is, and which of the two suits an MPI library.

Open MPI 5.0 has no functions with large counts. mpi4py tests for them, and would call those of the recorder.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pscale.errors import LaunchError
from pscale.watch.linked import find_library, mpi_library

FOLDER = "PSCALE_WATCH"  # the environment variable that names the folder of the record, and starts it
_SONAMES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}  # by their ABI, as MPI4PY_MPIABI names it
_LARGE = b"\0PMPI_Send_c\0"
_SPLITS = " :"  # where ld.so ends a name in LD_PRELOAD; in LD_LIBRARY_PATH a space is part of a name


def preloading(library: Path | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words before a program that load the recorder before what `environ` has it load.

    More variables may follow them. Raises LaunchError where it was not built, or lies where ld.so cannot be
    told of it.
    """
    shared = recorder(library)
    added = {"LD_PRELOAD": str(shared)}
    if any(each in str(shared) for each in _SPLITS):
        if ":" in str(shared) or ";" in str(shared):
            raise LaunchError(
                f"{shared} cannot be preloaded: ld.so splits its path; install pscale elsewhere"
            )
        added = {"LD_PRELOAD": shared.name, "LD_LIBRARY_PATH": str(shared.parent)}
    lists = {name: ":".join(filter(None, (value, environ.get(name)))) for name, value in added.items()}
    return "env", *(f"{name}={value}" for name, value in lists.items())


def library_of(program: Path, environ: Mapping[str, str], launcher: str = "auto") -> Path | None:
    """Return the MPI library of a program: nothing is started.

    It is the one that the program is linked with, or that variables name for mpi4py; else the one beside a
    `launcher` that the user has chosen, or beside the program.
    """
    program, chosen = program.absolute(), Path(shutil.which(os.path.expanduser(launcher)) or "")  # noqa: PTH111
    return (
        mpi_library(program)
        or _of_mpi4py(program, environ)
        or (beside(chosen) if chosen.name.startswith("mpi") else None)  # srun is of no library
        or beside(program)
    )


def _of_mpi4py(program: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the library that variables make mpi4py load, in the folders in which it looks."""
    for path in environ.get("MPI4PY_LIBMPI", "").split(":"):
        name = os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 - Path drops ./
        names = [f"{name}/{each}" for each in _SONAMES.values()] if os.path.isdir(name) else [name]  # noqa: PTH112
        if found := next(filter(None, map(find_library, filter(None, names))), None):
            return found.absolute()
    name = _SONAMES.get(environ.get("MPI4PY_MPIABI", "").lower(), "")
    return find_library(name, rpath=(str(program.parent.parent / "lib"),)) if name else None


def recorder(library: Path | None) -> Path:
    """Return the shared object that records programs of an MPI library; None: unknown.

    Raises LaunchError where it was not built.
    """
    large = library is not None and library.stat().st_size > 0 and _exports_large(library)
    built = Path(__file__).with_name(f"_watch{'_large' if large else ''}.so")
    if sys.platform != "linux":
        raise LaunchError("`pscale watch` records programs on Linux only")
    if not built.is_file():
        raise LaunchError(
            "the recorder of `pscale watch` was not built: install a C compiler, then pscale again "
            "(`pip install --force-reinstall --no-deps .`)"
        )
    return built


def _exports_large(library: Path) -> bool:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(_LARGE) >= 0


def beside(program: Path) -> Path | None:
    """Return the MPI library that is installed with a program, such as that of a virtual environment."""
    folder = program.parent.parent / "lib"
    found: Sequence[Path] = [*folder.glob("libmpi.so.*"), *folder.glob("libmpi_abi.so.*")]
    return next((path for path in found if path.is_file()), None)
