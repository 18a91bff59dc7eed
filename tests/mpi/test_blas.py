"""Under a real MPI: the threads that a case asks for are those that it gets, or the case is invalid."""

import os

import pytest
from whole_runs import TINY

from pscale.blas import forwarding
from pscale.blas.forwarding import KINDS, installed
from pscale.launch import blas, machine

pytestmark = pytest.mark.slow

CORES = machine.inspect().usable_cores
FOUND = blas.probe(1, os.environ)
SWEEP = "sweep: {ranks: [1, 2, 4]}"
TWO_RANKS = TINY.replace(SWEEP, "ranks: 2")
THREADS = TINY.replace(SWEEP, "sweep: {threads: [1, 2]}").replace("oversubscribe: true, ", "")
LAYER = "openmp" if FOUND["openmp"] else "pthreads"
OTHER_LAYER = "pthreads" if FOUND["openmp"] else "openmp"

LIBRARIES = [library.path for kind in KINDS for library in installed(kind, os.environ)]

needs_forwarding = pytest.mark.skipif(
    forwarding.built() is None or not LIBRARIES, reason="no other BLAS than NumPy's own can be used"
)
OTHERS = {library.kind: library.path for kind in KINDS for library in installed(kind, os.environ)[:1]}
needs_two_kinds = pytest.mark.skipif(
    forwarding.built() is None or len(OTHERS) < 2, reason="no two kinds of BLAS are installed"
)
needs_openblas = pytest.mark.skipif(
    FOUND["blas"] != "openblas", reason="NumPy here is not linked to OpenBLAS"
)
needs_cores = pytest.mark.skipif(CORES < 2, reason="one core")
needs_openmp = pytest.mark.skipif(not FOUND["openmp"], reason="NumPy here has no OpenMP threads")

# What NumPy has where pscale is started is not what its ranks find.
OTHER_BLAS_IN_RANKS = """
import os
if {"PMI_RANK", "OMPI_COMM_WORLD_RANK"} & os.environ.keys():
    import pscale.worker.environment as environment
    found = environment.blas
    environment.blas = lambda: {**found(), "blas_threading": "tbb"}
"""

# The nodes of a cluster may have other software than where pscale is started.
OTHER_ROOT_IN_RANKS = """
import os
if {{"PMI_RANK", "OMPI_COMM_WORLD_RANK"}} & os.environ.keys():
    os.environ["BLAS_ROOT"] = {root!r}
"""


def cpus(ranges):
    spans = [part.partition("-") for part in ranges.split(",")]
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


@needs_openblas
@needs_cores
def test_a_rank_gets_the_threads_of_its_case_and_cpus_for_them_and_its_row_names_the_blas(cli):
    required = f"require: {{blas: openblas, blas_threading: {LAYER}}}\n"
    results = cli.run(cli.suite(THREADS.replace("gemm_peak: false", "gemm_peak: true") + required))
    threads = {row["case"]: row["threads"] for row in results.rows("cases")}
    for row in results.rows("ranks"):
        assert row["threads"] == threads[row["case"]]
        assert len(cpus(row["cpus"])) >= row["threads"]
        assert (row["blas"], row["blas_threading"]) == ("openblas", LAYER)
        assert row["gemm_cores"] > 0


@needs_openblas
def test_a_suite_that_requires_other_threads_is_refused_before_anything_starts(cli):
    suite = cli.suite(f"{TINY}require: {{blas_threading: {OTHER_LAYER}}}\n")
    done = cli.call("run", suite, "--reports", cli.reports, code=3)
    assert f"requires blas_threading: {OTHER_LAYER}, but NumPy here uses openblas" in done.stderr
    assert not cli.reports.exists()


@needs_openblas
def test_ranks_that_find_another_blas_than_is_required_make_the_launch_invalid(cli, sitecustomize):
    sitecustomize(OTHER_BLAS_IN_RANKS)
    suite = cli.suite(f"{TWO_RANKS}require: {{blas_threading: {LAYER}}}\n")
    (row,) = cli.run(suite, code=1).cases.values()
    assert row["status"] == "invalid"
    assert f"rank 0: the suite requires blas_threading: {LAYER}" in row["reason"]
    assert "with tbb threads" in row["reason"]


@needs_openblas
@needs_cores
def test_two_threads_on_one_cpu_are_invalid_however_the_blas_counts_them(cli):
    bound = THREADS.replace("threads: [1, 2]", "threads: [2]").replace(
        "launch: {", "launch: {extra: [--bind-to, hwthread], "
    )
    (row,) = cli.run(cli.suite(bound), code=1).cases.values()
    assert row["status"] == "invalid"
    assert "got 1 BLAS threads" in row["reason"] or "share 1 CPU " in row["reason"]


@needs_openmp
@needs_cores
def test_openmp_threads_are_bound_to_a_core_each_and_all_to_one_is_invalid(cli):
    spread = "sweep: {threads: [2], launch.omp.proc_bind: [close, spread]}"
    bound = THREADS.replace("sweep: {threads: [1, 2]}", spread)
    bound = bound.replace("launch: {", "launch: {omp: {places: cores, wait_policy: passive}, ")
    results = cli.run(cli.suite(bound))
    assert set(results.cases) == {"close", "spread"}
    assert all(len(cpus(row["cpus"])) >= 2 for row in results.rows("ranks"))
    crowded = cli.suite(bound.replace("launch: {", "launch: {env: {OMP_PROC_BIND: master}, "))
    for row in cli.run(crowded, code=1).cases.values():
        assert row["status"] == "invalid"
        assert "2 threads of rank 0" in row["reason"]
        assert "share 1 CPU " in row["reason"]


@needs_forwarding
@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_plans_compute_with_every_library_what_the_serial_program_does(cli, path):
    (verdict,) = cli.verify(
        cli.suite(TWO_RANKS), "--set", "plan={dp: 1, tp: 2}", "--set", f"launch.blas={path}"
    )
    assert verdict["passed"]


@needs_forwarding
def test_a_swept_blas_is_named_by_its_ranks_and_one_that_is_not_here_is_skipped(cli):
    library = LIBRARIES[0]
    sweep = f"ranks: 2\nsweep: {{launch.blas: [numpy, {library}, /none/libblas.so]}}"
    results = cli.run(cli.suite(TINY.replace(SWEEP, sweep)))
    statuses = {label.removeprefix("blas "): row["status"] for label, row in results.cases.items()}
    assert statuses == {"numpy": "ok", str(library): "ok", "/none/libblas.so": "skipped"}
    labels = {row["case"]: row["label"] for row in results.rows("cases")}
    used = {labels[row["case"]].removeprefix("blas "): row["blas_library"] for row in results.rows("ranks")}
    assert used == {"numpy": None, str(library): str(library)}


@needs_two_kinds
def test_ranks_that_compute_with_another_library_than_the_one_asked_for_make_the_launch_invalid(
    cli, sitecustomize, monkeypatch
):
    (asked, right), (other, wrong) = list(OTHERS.items())[:2]
    for folder, path in (("here", right), ("nodes", wrong)):
        (cli.folder / folder).mkdir()
        (cli.folder / folder / f"lib{asked}.so").symlink_to(path)
    monkeypatch.setenv("BLAS_ROOT", str(cli.folder / "here"))
    sitecustomize(OTHER_ROOT_IN_RANKS.format(root=str(cli.folder / "nodes")))
    suite = cli.suite(TWO_RANKS.replace("launch: {", f"launch: {{blas: {asked}, "))
    results = cli.run(suite, code=1)
    (row,) = results.cases.values()
    assert row["status"] == "invalid"
    assert f"rank 0: the suite asks for launch.blas: {asked}" in row["reason"]
    assert f"NumPy here uses {other}" in row["reason"]
    assert {rank["blas"] for rank in results.rows("ranks")} == {other}


@needs_forwarding
def test_a_library_that_is_no_blas_makes_the_launch_invalid(cli):
    other = forwarding.built().replace("pscale/blas/_forward", "pscale/nn/kernels/_fused")
    suite = cli.suite(TWO_RANKS.replace("launch: {", f"launch: {{blas: {other}, "))
    (row,) = cli.run(suite, code=1).cases.values()
    assert row["status"] == "invalid"
    assert "is not a BLAS for NumPy" in row["reason"]
