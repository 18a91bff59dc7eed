import pytest

from pscale.config import Omp, Require
from pscale.worker.require import has_openmp, unmet

PTHREADS = {"blas": "openblas", "blas_threading": "pthreads"}
OPENMP = {"blas": "openblas", "blas_threading": "openmp"}
MKL = {"blas": "mkl", "blas_threading": "intel"}
UNKNOWN = {"blas": None, "blas_threading": None}


@pytest.mark.parametrize(
    ("found", "require", "omp", "reason"),
    [
        (UNKNOWN, Require(), Omp(), ""),
        (PTHREADS, Require(), Omp(), ""),
        (PTHREADS, Require(blas="openblas", blas_threading="pthreads"), Omp(), ""),
        (OPENMP, Require(blas_threading="openmp"), Omp(proc_bind="close"), ""),
        (MKL, Require(blas_threading="openmp"), Omp(wait_policy="passive"), ""),
        (
            PTHREADS,
            Require(blas_threading="openmp"),
            Omp(),
            "requires blas_threading: openmp, but NumPy here",
        ),
        (OPENMP, Require(blas_threading="pthreads"), Omp(), "requires blas_threading: pthreads"),
        (MKL, Require(blas="openblas"), Omp(), "requires blas: openblas, but NumPy here multiplies with mkl"),
        (UNKNOWN, Require(blas_threading="openmp"), Omp(), "an unknown BLAS, threads by unknown means"),
        (PTHREADS, Require(), Omp(places="cores"), "launch.omp is about OpenMP threads"),
    ],
)
def test_a_blas_that_is_not_the_one_asked_for_is_refused_with_both_names(found, require, omp, reason):
    refusal = unmet(require, omp, found)
    assert reason in refusal
    assert bool(reason) == bool(refusal)


def test_what_to_do_is_said_where_openmp_threads_are_missing():
    assert "make openmp" in unmet(Require(blas_threading="openmp"), Omp(), PTHREADS)
    assert "make openmp" not in unmet(Require(blas_threading="pthreads"), Omp(), OPENMP)
    assert [has_openmp(found) for found in (PTHREADS, OPENMP, MKL, UNKNOWN)] == [False, True, True, False]
