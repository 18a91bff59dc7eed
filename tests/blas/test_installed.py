import sys

import pytest

from pscale.blas import forwarding as on_disk
from pscale.blas.forwarding import BlasError, find, installed

OPENMP, PTHREADS = b"\0libgomp.so.1\0", b"\0libpthread.so.0\0"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Make up a system with libraries: files of these names, needing these others."""

    def with_files(files):
        for name, needs in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(needs)
        monkeypatch.setattr(on_disk, "_usual", lambda *_: iter(sorted(tmp_path.glob("usr/*/"))))

    return with_files


def paths(folder, kind, environ):
    return [str(library.path.relative_to(folder)) for library in installed(kind, environ)]


def test_a_library_with_openmp_threads_comes_before_others_and_one_that_a_variable_names_before_both(
    system, tmp_path
):
    system(
        {
            "usr/a/libopenblas.so.0": PTHREADS,
            "usr/b/libopenblas.so.0": OPENMP,
            "own/lib/libopenblasp-r0.3.30.so": PTHREADS,
        }
    )
    assert paths(tmp_path, "openblas", {}) == ["usr/b/libopenblas.so.0", "usr/a/libopenblas.so.0"]
    for variable in ("OPENBLAS_ROOT", "EBROOTOPENBLAS", "BLAS_ROOT", "LD_LIBRARY_PATH", "LIBRARY_PATH"):
        value = tmp_path / ("own/lib" if variable.endswith("PATH") else "own")
        assert paths(tmp_path, "openblas", {variable: str(value)})[0] == "own/lib/libopenblasp-r0.3.30.so"


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("mkl", "env/lib/libmkl_rt.so.2"),  # pip install mkl
        ("openblas", "env/lib/python3.12/site-packages/scipy_openblas32/lib/libscipy_openblas.so"),
        ("openblas", "env/lib/python3.12/site-packages/scipy_openblas64/lib/libscipy_openblas64_.so"),
        ("mkl", "home/.local/lib/libmkl_rt.so.2"),  # pip install --user mkl
        ("blis", "conda/lib/libblis.so.4"),
    ],
)
def test_what_pip_and_conda_have_installed_for_this_python_is_found(tmp_path, monkeypatch, kind, file):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.touch()
    packages = [f"{tmp_path}/{place}/lib/python3.12/site-packages" for place in ("env", "home/.local")]
    monkeypatch.setattr(sys, "path", [f"{tmp_path}/project", *packages])
    assert path in [each.path for each in installed(kind, {"CONDA_PREFIX": f"{tmp_path}/conda"})]


def test_names_of_one_file_are_one_library(system, tmp_path):
    system({"usr/a/libblis.so.4.0.0": OPENMP})
    for name in ("libblis.so", "libblis.so.4"):
        (tmp_path / "usr/a" / name).symlink_to("libblis.so.4.0.0")
    assert paths(tmp_path, "blis", {}) == ["usr/a/libblis.so"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("libopenblas.so", "openblas"),
        ("libopenblaso.so.0", "openblas"),
        ("libopenblas64_.so.0", "openblas"),
        ("libopenblas_sapphirerapidsp-r0.3.28.so", "openblas"),
        ("libscipy_openblas64_.so", "openblas"),
        ("libblis-mt.so.4", "blis"),
        ("libblis64.so.4", "blis"),
        ("libmkl_rt.so.2", "mkl"),
        ("libopenblas.a", None),
        ("libmkl_core.so.2", None),
        ("libbliss.so", None),
    ],
)
def test_libraries_are_known_by_the_names_that_their_builds_have(system, name, kind):
    system({f"usr/a/{name}": b""})
    assert [each for each in on_disk.KINDS if installed(each, {})] == ([kind] if kind else [])


def test_no_library_is_reported_with_how_to_install_it_and_how_to_say_where_it_is(system):
    system({})
    with pytest.raises(
        BlasError, match=r"no blis is installed here \(.*apt install libblis4-openmp\).*BLIS_ROOT"
    ):
        find("blis", {})
