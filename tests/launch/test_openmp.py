import os
import shutil
import subprocess

import pytest

from pscale.launch import openmp
from pscale.launch.openmp import OpenBlas

# A system whose pkg-config knows the OpenBLAS in {default}, and any that PKG_CONFIG_PATH names first.
PKG_CONFIG = """#!/bin/sh
[ "$2" = pkg-config ] && echo "{root}/lib/pkgconfig:{root}/share/pkgconfig" && exit
folder=${{PKG_CONFIG_PATH%%:*}}
folder=${{folder%/pkgconfig}}
[ -d "$folder" ] || folder={root}/{default}
[ -d "$folder" ] || exit 1
[ "$1" = --modversion ] && echo 0.3.21 || echo "$folder"
"""
OPENMP, PTHREADS = 2, 1


@pytest.fixture
def system(tmp_path):
    """Make up a system with libraries, in folders of these names, that answer how they are threaded."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")

    def with_libraries(libraries, default=""):
        for name, threading in libraries.items():
            folder = tmp_path / name
            (folder / "pkgconfig").mkdir(parents=True)
            source = f"int openblas_get_parallel(void) {{ return {threading}; }}"
            order = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libopenblas.so")]
            subprocess.run(order, input=source, text=True, check=True)
        program = tmp_path / "bin" / "pkg-config"
        program.parent.mkdir()
        program.write_text(PKG_CONFIG.format(root=tmp_path, default=default))
        program.chmod(0o755)
        return {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}

    return with_libraries


def test_what_the_system_prefers_is_taken_if_it_has_openmp(system, tmp_path):
    environ = system({"lib/openblas": OPENMP, "lib/openblas-openmp": OPENMP}, default="lib/openblas")
    assert openmp.find(environ) == OpenBlas(version="0.3.21", folder=tmp_path / "lib/openblas")


@pytest.mark.parametrize("default", ["lib/openblas-pthread", ""])
def test_a_build_with_openmp_is_found_beside_another_that_the_system_prefers(system, tmp_path, default):
    environ = system({"lib/openblas-pthread": PTHREADS, "lib/openblas-openmp": OPENMP}, default=default)
    found = openmp.find(environ)
    assert found.folder == tmp_path / "lib/openblas-openmp"
    assert found.search == str(tmp_path / "lib/openblas-openmp/pkgconfig")


def test_the_places_that_the_user_names_come_first_and_stay_behind_those_that_are_tried(system, tmp_path):
    environ = system({"own": OPENMP, "lib/openblas-openmp": OPENMP})
    environ["PKG_CONFIG_PATH"] = str(tmp_path / "own/pkgconfig")
    assert openmp.find(environ).folder == tmp_path / "own"
    (tmp_path / "own/libopenblas.so").unlink()
    assert openmp.find(environ).search == f"{tmp_path}/lib/openblas-openmp/pkgconfig:{tmp_path}/own/pkgconfig"


def test_a_library_with_other_threads_or_that_cannot_be_loaded_is_none(system, tmp_path):
    environ = system({"lib/openblas-openmp": PTHREADS, "lib/broken": OPENMP}, default="lib/broken")
    (tmp_path / "lib/broken/libopenblas.so").write_text("not a library")
    assert openmp.find(environ) is None
    assert openmp.find({"PATH": "/none"}) is None
