"""Let NumPy multiply with another BLAS than that which it was built for, without building it again.

NumPy finds its BLAS by the names of 22 routines. forward.c defines them; loaded before NumPy, for all
libraries to see, it is found first, and passes every call on. Libraries that are installed are found by their
names where systems and users put them; none is loaded to be looked at, as it may start threads, or fail.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pscale.errors import PscaleError
from pscale.runs.atomic_files import parts

_AFFIXES = (("scipy_", "64_"), ("", "64_"), ("", "_64"), ("scipy_", ""), ("", ""))  # of cblas_sgemm
_DEEPBIND = getattr(os, "RTLD_DEEPBIND", 0)  # the library finds its own routines before those of forward.c
_AVX512 = ("skylakex", "cooperlake", "sapphirerapids")
_KERNELS = {
    b" avx512f ": _AVX512,
    b" avx2 ": (*_AVX512, "haswell", "zen"),
}  # of OpenBLAS that use what a CPU has
_SETTERS = (
    *("{}openblas_set_num_threads{}", "bli_thread_set_num_threads", "MKL_Set_Num_Threads"),
    "flexiblas_set_num_threads",
    "omp_set_num_threads",  # of a library that has none of its own
)
_BUILT = Path(__file__).with_name("_forward.so")
_CPUINFO, _CPUINFO_BYTES = Path("/proc/cpuinfo"), 4096  # of the first CPU

_used: list[Path] = []  # at most one
_declined: list[Path] = []  # loaded to look at, and without use


def library() -> Path | None:
    """Return the library that computes for NumPy in this process; None: NumPy's own."""
    return _used[0] if _used else None


def computes(loaded: Path) -> bool:
    """Tell whether a BLAS that is loaded in this process can be the one that computes for NumPy.

    That may be a library which the chosen one only calls, as Debian's libblas.so.3 calls OpenBLAS.
    """
    found = loaded.resolve()
    if not _used:
        return found not in map(Path.resolve, _declined)
    return found == _used[0].resolve() or _own_setter(found) in {_own_setter(_used[0])} - {None}


def use(choice: str) -> None:
    """Let NumPy, which is not loaded yet, compute with the BLAS of that choice (`launch.blas`).

    Its own BLAS then stays on one thread. Raises BlasError for a library that is not here or cannot be used.
    """
    loaded = "numpy" in sys.modules  # and has found its BLAS
    path = _automatic() if choice == "auto" else path_of(choice, os.environ)
    if path is None or (loaded and choice == "auto"):
        return
    if loaded:
        raise BlasError("something has loaded NumPy before its BLAS could be chosen")
    forward = _forward_to(_opened(path))
    with _one_thread():
        import numpy as np  # noqa: PLC0415 - now that its routines are defined

    np.dot(np.ones(2), np.ones(2))
    if not forward.pscale_has_forwarded():
        raise BlasError(f"NumPy {np.__version__} here calls its BLAS by names that cannot be forwarded")
    _used.append(path)


def use_as_case(document: Path) -> None:
    """Let NumPy compute with the BLAS that the case asks for which the launcher has described there."""
    use(json.loads(document.read_text(encoding="utf-8"))["case"]["launch"].get("blas", "auto"))


def path_of(choice: str, environ: Mapping[str, str]) -> Path | None:
    """Return the library of a choice, None for NumPy's own; raises BlasError where it cannot be used."""
    if choice in ("auto", "numpy"):
        return None
    if built() is None:
        raise BlasError(
            "what lends NumPy another BLAS was not built: install a C compiler, then pscale again"
            if sys.platform == "linux"
            else "NumPy can be lent another BLAS on Linux only"
        )
    if not choice.startswith("/"):
        return find(choice, environ).path
    if not Path(choice).is_file():
        raise BlasError(f"there is no {choice}")
    return Path(choice)


def _automatic() -> Path | None:
    """Return an OpenBLAS with OpenMP threads to use instead of the one in NumPy's wheel, which has none.

    A NumPy that was built for a BLAS of its system keeps it, and so does one whose wheel knows this CPU
    better.
    """
    if built() is None or not is_wheel():
        return None
    path = next((each.path for each in installed("openblas", os.environ) if each.openmp), None)
    try:
        if path is None or _knows_cpu(_opened(path)):
            return path
    except BlasError:
        return None
    _declined.append(path)
    return None


def is_wheel() -> bool:
    """Tell whether NumPy is the published wheel, which brings its BLAS."""
    spec = importlib.util.find_spec("numpy")
    folders = spec.submodule_search_locations if spec else None
    return any(any(Path(folder).parent.glob("numpy.libs/libscipy_openblas*")) for folder in folders or ())


def _knows_cpu(opened: ctypes.CDLL) -> bool:
    """Tell whether an OpenBLAS takes kernels with the widest vectors here: one older than its CPU may not."""
    try:
        name = opened.openblas_get_corename
        with _CPUINFO.open("rb") as file:
            features = file.read(_CPUINFO_BYTES)
    except (AttributeError, OSError):
        return True
    name.restype = ctypes.c_char_p
    good = next((kernels for feature, kernels in _KERNELS.items() if feature in features), None)
    return good is None or "OPENBLAS_CORETYPE" in os.environ or name().decode().lower() in good


def _opened(path: Path) -> ctypes.CDLL:
    if path.name.startswith("libmkl"):
        os.environ.setdefault("MKL_THREADING_LAYER", "GNU")  # the threads of the fused kernels
    try:
        return ctypes.CDLL(str(path), mode=_DEEPBIND)
    except OSError as error:
        raise BlasError(f"cannot load {path}: {error}") from error


def built() -> str | None:
    """Return where forward.c is built, or None."""
    return str(_BUILT) if _BUILT.is_file() else None


def _forward_to(opened: ctypes.CDLL) -> ctypes.CDLL:
    """Load forward.c, let it pass its calls on, and show it to all libraries that are loaded later."""
    prefix, suffix = affixes(opened)
    forward = ctypes.CDLL(built())
    forward.pscale_forward_to.restype = ctypes.c_char_p
    handle = ctypes.c_void_p(opened._handle)
    wide = has_64_bits(opened, suffix)
    missing = forward.pscale_forward_to(handle, prefix.encode(), suffix.encode(), wide)
    if missing:
        raise BlasError(f"{opened._name} is not a BLAS for NumPy: it lacks cblas_{missing.decode()}")
    return ctypes.CDLL(built(), mode=ctypes.RTLD_GLOBAL)


def affixes(opened: ctypes.CDLL) -> tuple[str, str]:
    """Return what a library writes before and after the names of CBLAS."""
    known = (each for each in _AFFIXES if hasattr(opened, "cblas_sgemm".join(each)))
    return next(known, ("", ""))


def thread_setter(loaded: Path) -> str | None:
    """Return the function that sets the threads of a loaded library; None: it has none that is known."""
    return next(_setters(_loaded(loaded)), None)


def _own_setter(loaded: Path) -> int | None:
    """Return where the function is that sets the threads of a library, or of the one that it calls."""
    opened = _loaded(loaded)
    name = next(_setters(opened), _SETTERS[-1])
    return None if name == _SETTERS[-1] else ctypes.cast(opened[name], ctypes.c_void_p).value


def _setters(opened: ctypes.CDLL) -> Iterator[str]:
    named = (name.format(*affixes(opened)) for name in _SETTERS)
    return (name for name in named if hasattr(opened, name))


def _loaded(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path), mode=getattr(os, "RTLD_NOLOAD", 0))


def has_64_bits(opened: ctypes.CDLL, suffix: str) -> bool:
    """Tell whether the integers of a library have 64 bits, which its names need not say.

    A dot product of 1 - 2**32 numbers is zero; one that reads 32 bits of that sees a single number.
    """
    if suffix or not hasattr(opened, "cblas_ddot"):
        return bool(suffix)
    if platform.machine() not in ("x86_64", "aarch64"):  # elsewhere the upper half may not be anything
        return "64" in Path(opened._name).name
    dot, one, step = opened["cblas_ddot"], ctypes.c_double(1.0), ctypes.c_int64(1)
    dot.restype = ctypes.c_double
    found: float = dot(ctypes.c_int64(1 - 2**32), ctypes.byref(one), step, ctypes.byref(one), step)
    return found == 0.0


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let an OpenBLAS that is loaded meanwhile start no threads: NumPy's own has nothing to do."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


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
