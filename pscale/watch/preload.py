"""The recorder as a shared object; the MPI library of a program, from its file: asking ld.so could start it.

Open MPI 5.0 has no functions with large counts. mpi4py tests for them, and would call those of the recorder.
"""

from __future__ import annotations

import functools
import mmap
import os
import platform
import re
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pscale.errors import LaunchError
from pscale.runs.atomic_files import open_file

FOLDER = "PSCALE_WATCH"  # the environment variable that names the folder of the record, and starts it
_SONAMES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}  # by their ABI, as MPI4PY_MPIABI names it
_LARGE = b"\0PMPI_Send_c\0"
_SPLITS = " :"  # where ld.so ends a name in LD_PRELOAD; in LD_LIBRARY_PATH a space is part of a name
_MPI = re.compile(r"libmpi(ch|_abi)?\.so")
_IS_ELF = b"\x7fELF\x02\x01"  # of 64 bits, the lowest first
_LOAD, _DYNAMIC = 1, 2  # segments
_NEEDED, _STRINGS, _RPATH, _RUNPATH = 1, 5, 15, 29  # entries of the dynamic one
_MOST, _MOST_ENTRIES, _LONGEST = 100, 1000, 4096  # of files, headers, needed libraries and folders; of bytes
_CACHE, _CACHE_BEGIN = Path("/etc/ld.so.cache"), b"glibc-ld.so.cache1.1"
_OF_64_BITS = 0xFF00
_DEFAULTS = [
    f"{lib}{of}" for of in (f"/{platform.machine()}-linux-gnu", "64", "") for lib in ("/lib", "/usr/lib")
]


def preload_words(library: Path | None, environ: Mapping[str, str]) -> tuple[str, ...]:
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


def program_library(program: Path, environ: Mapping[str, str], launcher: str = "auto") -> Path | None:
    """Return the MPI library of a program: nothing is started.

    It is the one that the program is linked with, or that variables name for mpi4py; else the one beside a
    `launcher` that the user has chosen, or beside the program.
    """
    program, chosen = program.absolute(), Path(shutil.which(os.path.expanduser(launcher)) or "")  # noqa: PTH111
    return (
        mpi_library(program)
        or _of_mpi4py(program, environ)
        or (sibling_library(chosen) if chosen.name.startswith("mpi") else None)  # srun is of no library
        or sibling_library(program)
    )


def _of_mpi4py(program: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the library that variables make mpi4py load, in the folders in which it looks."""
    for path in environ.get("MPI4PY_LIBMPI", "").split(":"):
        name = os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 - Path drops ./
        names = [f"{name}/{each}" for each in _SONAMES.values()] if os.path.isdir(name) else [name]  # noqa: PTH112
        if library := next(filter(None, map(find_library, filter(None, names))), None):
            return library.absolute()
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


def sibling_library(program: Path) -> Path | None:
    """Return the MPI library that is installed with a program, such as that of a virtual environment."""
    folder = program.parent.parent / "lib"
    libraries: Sequence[Path] = [*folder.glob("libmpi.so.*"), *folder.glob("libmpi_abi.so.*")]
    return next((path for path in libraries if path.is_file()), None)


@dataclass(frozen=True, kw_only=True)
class _Linked:
    """What a file says of the libraries that it needs."""

    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


def mpi_library(program: Path) -> Path | None:
    """Return the MPI library that a program, or a library that it needs, is linked with; None: with none."""
    todo: list[tuple[Path, tuple[str, ...]]] = [(program, ())]
    seen = {program.name}
    for path, inherited in todo:
        linked = _read(path)
        rpath = (*linked.rpath, *inherited)[:_MOST]
        for name in linked.needed:
            library = find_library(name, rpath, linked.runpath)
            if library and _MPI.match(library.name):
                return library
            if library and name not in seen and len(seen) < _MOST:
                seen.add(name)
                todo.append((library, rpath))
    return None


def find_library(name: str, rpath: tuple[str, ...] = (), runpath: tuple[str, ...] = ()) -> Path | None:
    """Return the file that the dynamic linker loads for the name, or path, of a library."""
    if "/" in name:
        return Path(name) if os.path.isfile(name) else None  # noqa: PTH113 - False for what can be no path
    given = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders = [*(() if runpath else rpath), *given, *runpath]
    places = [Path(folder, name) for folder in folders if folder]
    places += [_cached()[name]] if name in _cached() else []
    places += [Path(folder, name) for folder in _DEFAULTS]
    return next((path for path in places if os.path.isfile(path)), None)  # noqa: PTH113


def _read(path: Path) -> _Linked:
    """Return what a file needs: nothing if it is none, or damaged."""
    try:
        with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parsed(data, path.resolve().parent)
    except (OSError, ValueError, OverflowError, struct.error):
        return _Linked()


def _parsed(data: mmap.mmap, folder: Path) -> _Linked:
    if data[: len(_IS_ELF)] != _IS_ELF:
        return _Linked()
    (first,), (size, count) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<HH", data, 54)
    headers = [
        struct.unpack_from("<IIQQQQ", data, first + size * place) for place in range(min(count, _MOST))
    ]
    dynamic = next(
        ((offset, length) for kind, _, offset, _, _, length in headers if kind == _DYNAMIC), (0, 0)
    )
    entries = list(_entries(data, *dynamic))
    address = next((value for tag, value in entries if tag == _STRINGS), 0)
    strings = next(
        (
            address - at + offset
            for kind, _, offset, at, _, length in headers
            if kind == _LOAD and 0 <= address - at < length
        ),
        None,
    )
    if strings is None:
        return _Linked()

    def texts(wanted: int) -> Iterator[str]:
        for value in [value for tag, value in entries if tag == wanted][:_MOST]:
            if value < len(data):
                text = data[strings + value : strings + value + _LONGEST]
                yield os.fsdecode(text.partition(b"\0")[0])

    def folders(wanted: int) -> tuple[str, ...]:
        paths = ":".join(texts(wanted))
        return tuple(
            re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _: str(folder), each)
            for each in paths.split(":")[:_MOST]
            if each
        )

    return _Linked(needed=tuple(texts(_NEEDED)), rpath=folders(_RPATH), runpath=folders(_RUNPATH))


def _entries(data: mmap.mmap, offset: int, length: int) -> Iterator[tuple[int, int]]:
    for place in range(min(length // 16, _MOST_ENTRIES)):
        tag, value = struct.unpack_from("<qQ", data, offset + 16 * place)
        if tag == 0:
            return
        yield tag, value


@functools.cache
def _cached() -> Mapping[str, Path]:
    """Return where the system's own libraries are; nothing where there is no glibc."""
    libraries: dict[str, Path] = {}
    try:
        data = _CACHE.read_bytes()
        begin = data.index(_CACHE_BEGIN)
        (count,) = struct.unpack_from("<I", data, begin + len(_CACHE_BEGIN))
        for place in range(count):
            flags, name, path = struct.unpack_from("<III", data, begin + 48 + 24 * place)
            if flags & _OF_64_BITS:
                words = (data[begin + at : data.index(b"\0", begin + at)] for at in (name, path))
                key, value = map(os.fsdecode, words)
                libraries.setdefault(key, Path(value))
    except (OSError, ValueError, OverflowError, struct.error):
        return libraries
    return libraries
