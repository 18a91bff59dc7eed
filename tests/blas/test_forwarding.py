import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

from pscale.blas import forwarding
from pscale.blas.forwarding import KINDS, installed

LIBRARIES = [library.path for kind in KINDS for library in installed(kind, os.environ)]
ROUTINES = Path(__file__).parent / "routines.py"
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"
)
SAYS_WHICH = """
from pscale.worker.environment import blas
print(blas())
"""
SETS_THREADS = """
import ctypes, sys
from pscale.worker.environment import blas
found = blas()
ctypes.CDLL(sys.argv[1])[found["blas_thread_setter"]](2)
print((found["blas_thread_setter"], found["threads"], blas()["threads"]))
"""
SETTERS = {
    "openblas": "openblas_set_num_threads",
    "blis": "bli_thread_set_num_threads",
    "mkl": "MKL_Set_Num_Threads",
}


@pytest.fixture(autouse=True)
def is_built():
    if forwarding.built() is None:
        assert not os.environ.get("CI"), "there is a compiler: forward.c must be built"
        pytest.skip("forward.c was not built: no C compiler when pscale was installed")


@pytest.fixture
def library():
    if not LIBRARIES:
        assert not os.environ.get("CI"), "there must be a BLAS to lend to NumPy"
        pytest.skip("no BLAS is installed but NumPy's own")
    return LIBRARIES[0]


def run(choice, *program, environ=os.environ):
    return subprocess.run(
        [sys.executable, "-m", "pscale.blas", choice, *map(str, program)],
        capture_output=True,
        text=True,
        env={**environ, **ONE_THREAD},
        check=False,
        timeout=LIMIT_S,
    )


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_name_that_numpy_may_call_computes_what_sums_in_float64_give(path):
    done = run(str(path), ROUTINES)
    assert (done.stdout, done.stderr) == (f"{path}\n", "")


def test_a_dimension_that_integers_of_the_library_cannot_hold_ends_the_process_and_says_so(library):
    done = run(str(library), ROUTINES, "too-large")
    if done.returncode == 0:
        pytest.skip(f"{library} has integers of 64 bits")
    assert "2147483648 is more than the 32-bit integers of this BLAS hold" in done.stderr


def test_what_computes_is_named_with_its_library_version_kernels_and_threads(library, tmp_path):
    program = tmp_path / "says which.py"
    program.write_text(SAYS_WHICH)
    said = ast.literal_eval(run(str(library), program).stdout)
    assert Path(said["blas_library"]) == library
    assert said["threads"] == 1
    assert said["blas"] in KINDS
    assert said["blas_version"]
    own = ast.literal_eval(run("numpy", program).stdout)
    assert own["blas_library"] is None
    assert own["blas_thread_setter"]


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_function_that_is_said_to_set_the_threads_of_a_library_does(path, tmp_path):
    program = tmp_path / "sets threads.py"
    program.write_text(SETS_THREADS)
    setter, before, after = ast.literal_eval(run(str(path), program, path).stdout)
    assert any(own in setter and kind in str(path) for kind, own in SETTERS.items())
    assert (before, after) == (1, 2)


def test_a_library_that_calls_another_for_its_products_is_known_as_that_one(tmp_path):
    program = tmp_path / "says which.py"
    program.write_text(SAYS_WHICH)
    callers = [path.with_name("libblas.so.3") for path in LIBRARIES if "openblas" in path.name]
    caller = next((path for path in callers if path.is_file()), None)
    if caller is None:
        pytest.skip("no libblas.so.3 of Debian's lies beside an OpenBLAS")
    said = ast.literal_eval(run(str(caller), program).stdout)
    assert (said["blas"], said["blas_library"], said["threads"]) == ("openblas", str(caller), 1)
    assert said["blas_version"]


def test_a_published_numpy_gets_an_openblas_with_openmp_threads_by_itself_and_another_keeps_its_own(tmp_path):
    program = tmp_path / "says which.py"
    program.write_text(SAYS_WHICH)
    openmp = [library.path for library in installed("openblas", os.environ) if library.openmp]
    chosen = {**os.environ, "OPENBLAS_CORETYPE": "Haswell"}  # also where the library does not know the CPU
    said = ast.literal_eval(run("auto", program, environ=chosen).stdout)
    expected = str(openmp[0]) if openmp and forwarding.is_wheel() else None
    assert said["blas_library"] == expected
    assert expected is None or (said["blas_threading"], said["blas_architecture"]) == ("openmp", "Haswell")


def test_what_is_no_blas_or_not_there_is_refused_in_one_line(tmp_path):
    (tmp_path / "libblas.so").write_text("not a library")
    for path, said in ((tmp_path / "libblas.so", "cannot load"), (tmp_path / "none", "there is no")):
        done = run(str(path), ROUTINES)
        assert done.returncode == 1
        assert done.stderr.startswith(f"pscale: {said} {path}")
        assert len(done.stderr.splitlines()) == 1


def test_an_openblas_that_takes_narrow_kernels_on_this_cpu_is_not_chosen_by_itself(monkeypatch, tmp_path):
    class OpenBlas:
        def __init__(self, name):
            self.openblas_get_corename = lambda: name

    cpu = tmp_path / "cpuinfo"
    monkeypatch.setattr(forwarding, "_CPUINFO", cpu)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    found = {}
    for features in ("fpu avx avx2 avx512f avx512cd", "fpu avx avx2 fma", "fpu sse2 pni"):
        cpu.write_text(f"flags\t\t: {features} end\n")
        names = (b"Prescott", b"Haswell", b"SkylakeX")
        found[features.split()[-1]] = [forwarding._knows_cpu(OpenBlas(name)) for name in names]
    assert found == {"avx512cd": [False, False, True], "fma": [False, True, True], "pni": [True, True, True]}
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    cpu.write_text("flags\t\t: avx512f end\n")
    assert forwarding._knows_cpu(OpenBlas(b"Prescott"))
