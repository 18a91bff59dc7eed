"""Build NumPy for OpenMP threads: python -m pscale.launch.numpy_build [--if-possible] [--wheels FOLDER].

The wheel is kept and used again. Its search path for libraries names the folder of the OpenBLAS that was
found, since a system may show programs another build under the same name.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pscale.errors import LaunchError, PscaleError
from pscale.launch import openmp
from pscale.launch.doctor import blas
from pscale.launch.openmp import OpenBlas

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_SETTINGS = ("-Csetup-args=-Dblas=openblas", "-Csetup-args=-Dlapack=openblas")
_OLDEST_PIP = (23, 1)  # the first that passes on a setting given twice
_LOG, _FAILED = "build.log", "failed.log"


def main(arguments: list[str]) -> int:
    """See that NumPy has OpenMP threads and say in one line what it has; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pscale.launch.numpy_build")
    parser.add_argument("--wheels", type=Path, default=Path(".wheels"), help="where wheels are kept")
    parser.add_argument(
        "--if-possible", action="store_true", help="go on with the NumPy that is there if not"
    )
    asked = parser.parse_args(arguments)
    found, reason = blas.ask(1, os.environ), ""
    try:
        found = ensure(found, asked.wheels, again=not asked.if_possible)
    except PscaleError as error:
        reason = str(error)
    sys.stdout.write(described(found) + (f"; for OpenMP threads: {reason}" if reason else "") + "\n")
    return LaunchError.exit_code if reason and not asked.if_possible else 0


def described(found: Mapping[str, Any]) -> str:
    """Say which BLAS a probe has found."""
    if "error" in found:
        return f"BLAS: {found['error']}"
    layer = (
        "OpenMP threads" if found["openmp"] else f"threads by {found['blas_threading'] or 'unknown means'}"
    )
    return f"BLAS: {found['blas']} {found['blas_version']}, {found['blas_architecture']} kernels, {layer}"


def ensure(found: dict[str, Any], wheels: Path, *, again: bool) -> dict[str, Any]:
    """Install a NumPy with OpenMP threads unless `found`, what a probe says of this one, has them.

    Unless the user asks for it, with `again`, a build that has failed is not repeated and another BLAS than
    OpenBLAS, as of a site, is left alone. Raises LaunchError where there can be no such NumPy.
    """
    if found.get("openmp") or not (again or found.get("blas") == "openblas"):
        return found
    library = openmp.find(os.environ)
    if library is None:
        raise LaunchError(f"{openmp.HINT}, then: make openmp")
    if missing := _missing():
        raise LaunchError(f"{missing} is missing to build NumPy; {openmp.HINT}, then: make openmp")
    version = importlib.metadata.version("numpy")
    wheel = _wheel(library, version, wheels, again=again)
    _pip("install", "--quiet", "--force-reinstall", "--no-deps", "--no-index", str(wheel))
    now = blas.ask(1, os.environ)
    if not now.get("openmp"):
        wheel.unlink()
        _pip("install", "--quiet", "--force-reinstall", "--no-deps", f"numpy=={version}")
        raise LaunchError(
            f"NumPy was built for the OpenBLAS in {library.folder} and yet came out as {described(now)}; "
            f"the published NumPy {version} is installed again"
        )
    return now


def _missing() -> str:
    """Return what a build needs and this machine lacks, or nothing."""
    compilers = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}
    for variable, names in compilers.items():
        chosen = os.environ.get(variable, "").split()[:1] or names
        if not any(map(shutil.which, chosen)):
            return f"a compiler ({chosen[0]})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers (python3-dev)"
    return "" if sys.prefix != sys.base_prefix else "a virtual environment to put it in"


def key(library: OpenBlas, version: str) -> str:
    """Name what a wheel depends on."""
    place = hashlib.sha256(str(library.folder).encode()).hexdigest()[:8]
    system = sysconfig.get_platform().replace("-", "_")
    return f"numpy-{version}-{sys.implementation.cache_tag}-{system}-openblas-{library.version}-{place}"


def _wheel(library: OpenBlas, version: str, wheels: Path, *, again: bool) -> Path:
    """Return the kept wheel, or build it."""
    folder = wheels.absolute() / key(library, version)
    kept = next(folder.glob("*.whl"), None)
    if kept:
        return kept
    failed = folder / _FAILED
    reason = f"building NumPy has failed, see {failed}; again: make openmp"
    if failed.exists() and not again:
        raise LaunchError(reason)
    folder.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(
        f"building NumPy {version} for the OpenBLAS in {library.folder} (once, some minutes) …\n"
    )
    numbers = re.findall(r"\d+", importlib.metadata.version("pip"))
    if tuple(map(int, numbers[:2])) < _OLDEST_PIP:
        _pip("install", "--quiet", "--upgrade", "pip")
    with tempfile.TemporaryDirectory(dir=folder) as scratch, (folder / _LOG).open("wb") as log:
        # pip's cache does not tell wheels of other settings apart
        argv = (*_PIP, "wheel", "--no-deps", "--no-cache-dir", "--no-binary=numpy", *_SETTINGS)
        order = [*argv, f"--wheel-dir={scratch}", f"numpy=={version}"]
        env = variables(library, os.environ)
        done = subprocess.run(order, env=env, stdout=log, stderr=subprocess.STDOUT, check=False)
        built = next(Path(scratch).glob("*.whl"), None)
        if done.returncode or built is None:
            (folder / _LOG).replace(failed)
            raise LaunchError(reason)
        return built.rename(folder / built.name)


def variables(library: OpenBlas, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a build finds that library, and the wheel finds it again."""
    flags = f"{environ.get('LDFLAGS', '')} -Wl,-rpath,{library.folder}".strip()
    search = {"PKG_CONFIG_PATH": library.search} if library.search else {}
    return {**environ, **search, "LDFLAGS": flags}


def _pip(*arguments: str) -> None:
    done = subprocess.run([*_PIP, *arguments], stdout=sys.stderr, check=False)
    if done.returncode:
        raise LaunchError(f"pip {' '.join(arguments)} has failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
