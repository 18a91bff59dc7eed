"""Build the wheel's C objects and pack the suites into it; what cannot be compiled is left out.

The objects use nothing of Python's API, so one wheel of a platform serves every Python: py3-none-PLATFORM.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

_RECORDER = ("pscale/watch/watch.c", "-O2", "-pthread")
_OBJECTS = {
    # Without it NumPy computes the same (docs/kernels.md).
    "pscale/nn/kernels/_fused.so": (
        *("pscale/nn/kernels/fused.c", "-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    ),
}
_OBJECTS_OF_LINUX = {  # whose loader lets one library come before another
    # Without it NumPy keeps its own BLAS (docs/blas.md).
    "pscale/blas/_forward.so": ("pscale/blas/forward.c", "-O3"),
    # Two, as mpi4py under Open MPI 5 must not find functions with large counts (pscale/watch/preload.py).
    "pscale/watch/_watch.so": _RECORDER,
    "pscale/watch/_watch_large.so": (*_RECORDER, "-DLARGE_COUNTS"),
}
_COMPILERS = ("cc", "gcc", "clang")
_OLDEST_GLIBC = 17  # 2.17, older than any Python that runs pscale is built for
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)")


class BuildHook(BuildHookInterface[Any]):
    """What hatchling calls before and after it packs files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into the wheel; for an editable installation, which has the suites, into the tree."""
        root = Path(self.root)
        if version == "editable":
            self._compiled(root)
            return
        self._folder = tempfile.TemporaryDirectory()
        objects = self._compiled(Path(self._folder.name))
        build_data["force_include"] |= {
            str(root / "suites"): "pscale/suites",
            **{str(built): name for name, built in objects.items()},
        }
        if objects:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(objects.values())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled for a wheel."""
        if version != "editable":
            self._folder.cleanup()

    def _compiled(self, folder: Path) -> Mapping[str, Path]:
        """Compile what this system can into `folder`; return the objects by their names in the package."""
        wanted = _OBJECTS | (_OBJECTS_OF_LINUX if sys.platform == "linux" else {})
        compiler = _compiler()
        if compiler is None:
            self.app.display_warning(f"no C compiler: {', '.join(wanted)} are left out")
            return {}
        with ThreadPoolExecutor() as pool:
            done = list(pool.map(lambda name: self._run(compiler, folder / name, wanted[name]), wanted))
        for process in done:
            if process.returncode:
                self.app.display_warning(f"left out: {shlex.join(process.args)}\n{process.stderr}")
        return {name: folder / name for name, p in zip(wanted, done, strict=True) if p.returncode == 0}

    def _run(
        self, compiler: list[str], target: Path, source: Iterable[str]
    ) -> subprocess.CompletedProcess[str]:
        target.parent.mkdir(parents=True, exist_ok=True)
        flags, links = (shlex.split(os.environ.get(name, "")) for name in ("CFLAGS", "LDFLAGS"))
        built = target.with_name(f"{target.name}.{os.getpid()}")  # environments are made side by side
        command = [*compiler, *flags, "-shared", "-fPIC", *source, "-o", str(built), *links, "-ldl"]
        process = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if process.returncode == 0:
            built.replace(target)
        return process


def _compiler() -> list[str] | None:
    if named := os.environ.get("CC"):
        return shlex.split(named)
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    return found and [found]


def platform_tag(objects: Iterable[Path]) -> str:
    """Return the tag of systems that have what the objects need: of glibc, the version that they name."""
    needed = {int(minor) for path in objects for minor in _GLIBC.findall(path.read_bytes())}
    if needed:
        machine = sysconfig.get_platform().partition("-")[2].replace("-", "_")
        return f"manylinux_2_{max(_OLDEST_GLIBC, *needed)}_{machine}"
    here = list(platform_tags())
    return next((tag for tag in here if tag.startswith("musllinux")), here[0])
