import os
import threading

import pytest

from pscale.config import Case, Launch, Omp, Require
from pscale.worker import environment
from pscale.worker.environment import has_openmp, unmet


def test_the_cpus_of_a_process_are_those_of_all_its_threads():
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one CPU")
    one, other, *_ = sorted(allowed)
    bound, done = threading.Event(), threading.Event()

    def elsewhere() -> None:
        os.sched_setaffinity(0, {other})
        bound.set()
        done.wait()

    before = environment.affinity()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    bound.wait()
    try:
        os.sched_setaffinity(0, {one})
        assert {one, other} <= set(environment.affinity())
    finally:
        os.sched_setaffinity(0, allowed)
        done.set()
        thread.join()
    assert environment.affinity() == before


PTHREADS = {"blas": "openblas", "blas_threading": "pthreads", "blas_library": None}
OPENMP = {**PTHREADS, "blas_threading": "openmp"}
MKL = {**PTHREADS, "blas": "mkl", "blas_threading": "intel"}
UNKNOWN = {"blas": None, "blas_threading": None, "blas_library": None}
LENT = {**OPENMP, "blas_library": "/opt/libopenblas.so"}


def case_of(blas="auto", omp=None, required=None, blas_threading=None):
    require = Require(blas=required, blas_threading=blas_threading)
    return Case(suite="s", label="c", require=require, launch=Launch(blas=blas, omp=omp or Omp()))


@pytest.mark.parametrize(
    ("found", "case", "reason"),
    [
        (UNKNOWN, case_of(), ""),
        (PTHREADS, case_of(), ""),
        (PTHREADS, case_of(required="openblas", blas_threading="pthreads"), ""),
        (OPENMP, case_of(omp=Omp(proc_bind="close"), blas_threading="openmp"), ""),
        (MKL, case_of(omp=Omp(wait_policy="passive"), blas_threading="openmp"), ""),
        (PTHREADS, case_of(blas_threading="openmp"), "requires blas_threading: openmp, but NumPy here"),
        (OPENMP, case_of(blas_threading="pthreads"), "requires blas_threading: pthreads"),
        (MKL, case_of(required="openblas"), "requires blas: openblas, but NumPy here uses mkl"),
        (UNKNOWN, case_of(blas_threading="openmp"), "an unknown BLAS with unknown threads"),
        (PTHREADS, case_of(omp=Omp(places="cores")), "launch.omp is about OpenMP threads"),
        (LENT, case_of("openblas"), ""),
        (LENT, case_of("/opt/libopenblas.so"), ""),
        (LENT, case_of("numpy"), "launch.blas: numpy, but NumPy here uses openblas"),
        (LENT, case_of("blis"), "launch.blas: blis, but"),
        (LENT, case_of("/opt/libblis.so"), "launch.blas: /opt/libblis.so, but"),
        (PTHREADS, case_of("openblas"), "launch.blas: openblas, but"),
        (PTHREADS, case_of("numpy"), ""),
    ],
)
def test_a_blas_that_is_not_the_one_asked_for_is_refused_with_both_names(found, case, reason):
    refusal = unmet(case, found)
    assert reason in refusal
    assert bool(reason) == bool(refusal)


def test_what_to_do_is_said_where_openmp_threads_are_missing():
    assert "docs/blas.md" in unmet(case_of(blas_threading="openmp"), PTHREADS)
    assert "docs/blas.md" not in unmet(case_of(blas_threading="pthreads"), OPENMP)
    assert [has_openmp(found) for found in (PTHREADS, OPENMP, MKL, UNKNOWN)] == [False, True, True, False]


def test_the_kernels_of_mkl_are_known_by_the_library_that_has_them(tmp_path):
    loaded = (
        "7f00-7f01 r--p 0 00:00 1 /env/libmkl_vml_avx2.so.3\n7f01-7f02 r--p 0 00:00 2 /env/libmkl_{}.so.3\n"
    )
    found = [environment.mkl_kernels(tmp_path / "maps")]
    for library in ("core", "avx512", "def"):
        (tmp_path / "maps").write_text(loaded.format(library))
        found.append(environment.mkl_kernels(tmp_path / "maps"))
    assert found == [None, None, "avx512", "def"]
