import importlib.metadata
import sys
from pathlib import Path

import pytest

from pscale.launch import numpy_build
from pscale.launch.openmp import OpenBlas

LIBRARY = OpenBlas(version="0.3.21", folder=Path("/opt/openblas"), search="/opt/openblas/pkgconfig")
PTHREADS = {
    "blas": "openblas",
    "blas_version": "0.3.31",
    "blas_architecture": "SkylakeX",
    "blas_threading": "pthreads",
    "openmp": False,
}
OPENMP = {**PTHREADS, "blas_version": "0.3.21", "blas_threading": "openmp", "openmp": True}
PIP = """
import os, pathlib, sys
arguments = sys.argv[1:]
search, flags = (os.environ.get(name) for name in ("PKG_CONFIG_PATH", "LDFLAGS"))
with open({notes!r}, "a") as notes:
    print(arguments[0], arguments[-1], search, flags, file=notes)
if arguments[0] == "wheel":
    print("compiling")
    if {fails}:
        sys.exit(1)
    folder = next(a for a in arguments if a.startswith("--wheel-dir=")).partition("=")[2]
    pathlib.Path(folder, "numpy-openmp.whl").touch()
"""


class Workshop:
    """A place with a pip that only notes what it is asked, and a NumPy that is what was installed last."""

    def __init__(self, folder, monkeypatch):
        self.wheels, self._notes = folder / ".wheels", folder / "notes"
        self._program, self._patch = folder / "pip.py", monkeypatch
        self.comes_out = OPENMP
        self.pip(fails=False)
        monkeypatch.setattr(numpy_build, "_PIP", (sys.executable, str(self._program)))
        monkeypatch.setattr(numpy_build, "_missing", lambda: "")
        monkeypatch.setattr(numpy_build, "_OLDEST_PIP", (0, 0))
        monkeypatch.setattr(numpy_build.openmp, "find", lambda _: LIBRARY)
        monkeypatch.setattr(numpy_build.blas, "ask", self._ask)
        monkeypatch.setenv("LDFLAGS", "-Wl,-O1")
        monkeypatch.delenv("PKG_CONFIG_PATH", raising=False)

    def pip(self, *, fails):
        self._program.write_text(PIP.format(notes=str(self._notes), fails=fails))

    def _ask(self, *_):
        installed = [line for line in self.notes if line.startswith("install")]
        return self.comes_out if installed and ".whl" in installed[-1] else PTHREADS

    @property
    def notes(self):
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def forget(self):
        self._notes.unlink()

    def make(self, *options):
        return numpy_build.main([*options, "--wheels", str(self.wheels)])


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    return Workshop(tmp_path, monkeypatch)


def test_the_wheel_is_built_for_the_library_found_installed_and_kept_for_the_next_environment(
    workshop, capfd
):
    assert workshop.make() == 0
    build, install = workshop.notes
    version = importlib.metadata.version("numpy")
    flags = "-Wl,-O1 -Wl,-rpath,/opt/openblas"
    assert build == f"wheel numpy=={version} /opt/openblas/pkgconfig {flags}"
    (wheel,) = workshop.wheels.glob("*/*.whl")
    assert install.startswith(f"install {wheel} ")
    assert capfd.readouterr().out == "BLAS: openblas 0.3.21, SkylakeX kernels, OpenMP threads\n"
    assert workshop.make() == 0
    assert len(workshop.notes) == 2, "it has what it needs"
    workshop.forget()
    assert workshop.make("--if-possible") == 0
    assert [line.split()[0] for line in workshop.notes] == ["install"]


def test_a_wheel_is_kept_apart_from_those_of_another_numpy_or_library():
    other = OpenBlas(version="0.3.30", folder=LIBRARY.folder)
    elsewhere = OpenBlas(version="0.3.21", folder=Path("/usr/lib"))
    keys = {numpy_build.key(library, "2.4") for library in (LIBRARY, other, elsewhere)}
    assert len({*keys, numpy_build.key(LIBRARY, "2.5")}) == 4
    assert all(sys.implementation.cache_tag in key for key in keys)


def test_a_build_that_failed_is_told_with_its_log_and_repeated_only_when_asked_for(workshop, capfd):
    workshop.pip(fails=True)
    assert workshop.make("--if-possible") == 0
    assert workshop.make("--if-possible") == 0
    (log,) = workshop.wheels.glob("*/failed.log")
    assert log.read_text() == "compiling\n"
    assert [line.split()[0] for line in workshop.notes] == ["wheel"]
    said = capfd.readouterr().out
    assert "threads by pthreads" in said
    assert str(log) in said
    assert workshop.make() == 4
    assert len(workshop.notes) == 2
    workshop.pip(fails=False)
    assert workshop.make() == 0


def test_a_numpy_that_comes_out_with_other_threads_is_taken_back_and_told_loudly(workshop, capfd):
    workshop.comes_out = PTHREADS
    assert workshop.make() == 4
    version = importlib.metadata.version("numpy")
    assert workshop.notes[-1].startswith(f"install numpy=={version} ")
    assert not list(workshop.wheels.glob("*/*.whl"))
    assert "yet came out as BLAS: openblas 0.3.31" in capfd.readouterr().out


def test_the_blas_of_a_site_is_left_alone_unless_the_user_asks_for_another(workshop, monkeypatch, capfd):
    site = {**PTHREADS, "blas": "mkl", "blas_threading": "tbb"}
    monkeypatch.setattr(numpy_build.blas, "ask", lambda *_: OPENMP if workshop.notes else site)
    assert workshop.make("--if-possible") == 0
    assert capfd.readouterr().out.startswith("BLAS: mkl 0.3.31")
    assert workshop.notes == []
    assert workshop.make() == 0
    assert workshop.notes


@pytest.mark.parametrize("missing", ["library", "compiler"])
def test_without_library_or_compiler_all_goes_on_with_one_line_that_says_what_would_be_better(
    workshop, monkeypatch, capfd, missing
):
    if missing == "library":
        monkeypatch.setattr(numpy_build.openmp, "find", lambda _: None)
    else:
        monkeypatch.setattr(numpy_build, "_missing", lambda: "a compiler (cc)")
    assert workshop.make("--if-possible") == 0
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("BLAS: openblas 0.3.31, SkylakeX kernels, threads by pthreads; ")
    assert line.endswith(", then: make openmp")
    assert "apt install libopenblas-openmp-dev" in line
    assert ("a compiler (cc)" in line) == (missing == "compiler")
    assert workshop.make() == 4
    assert workshop.notes == []
