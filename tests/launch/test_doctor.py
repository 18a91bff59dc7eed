import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
from noop_runs import make_launcher

from pscale.blas import forwarding
from pscale.blas.forwarding import Library
from pscale.errors import LaunchError
from pscale.launch import doctor, launcher, machine
from pscale.launch.blas import probe
from pscale.launch.doctor import OtherWork, findings, other_work, wait_until_idle
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine

HYDRA = Launcher(path="/opt/mpiexec", flavour="mpich", version="5.0.2")
HERE = Machine(host="host", cpu_model="CPU", core_cpus=((0, 2), (1, 3)), memory_bytes=2**34)
SLOW = {"blas": "openblas", "blas_architecture": "Nehalem", "gflops": 30.0, "threads": 1, "cores": 1.0}
FAST = {**SLOW, "blas_architecture": "SkylakeX", "gflops": 100.0}


def answer(size, *cpus, vendor="MPICH"):
    ranks = [{"rank": rank, "cpus": list(mine)} for rank, mine in enumerate(cpus)]
    return {"vendor": vendor, "version": "5.0.2", "library": vendor, "size": size, "ranks": ranks}


def by_topic(found):
    return {finding.topic: finding for finding in found}


def test_two_ranks_are_really_started_and_found_on_cores_of_their_own():
    try:
        launcher.find()
    except LaunchError as error:
        pytest.skip(str(error))
    here = machine.inspect()
    found = by_topic(doctor.mpi(here, "auto"))
    assert found["MPI"].level == "ok", found["MPI"]
    assert found["binding"].level == ("ok" if here.usable_cores > 1 else "warn"), found["binding"]


def test_two_worlds_of_one_rank_are_told_as_launcher_and_library_that_do_not_belong_together():
    singletons = [answer(1, [0, 1, 2, 3], vendor="Open MPI")] * 2
    [found] = doctor.judge(HERE, HYDRA, singletons, 1.0)
    assert found.level == "fail"
    for part in ("/opt/mpiexec", "started 2 processes", "mpi4py loads Open MPI 5.0.2", "world of 1"):
        assert part in found.text
    assert "launcher: /path/to/mpiexec" in found.advice


@pytest.mark.parametrize(
    ("cpus", "level"),
    [
        (([0, 2], [1, 3]), "ok"),
        (([0, 2], [0, 2]), "warn"),
        (([0], [1]), "warn"),
        (([0, 1, 2, 3], [0, 1, 2, 3]), "warn"),
    ],
)
def test_ranks_that_do_not_have_a_whole_core_each_are_reported(cpus, level):
    found = by_topic(doctor.judge(HERE, HYDRA, [answer(2, *cpus)], 1.0))
    assert (found["MPI"].level, found["binding"].level) == ("ok", level)


def test_ranks_that_cannot_be_started_are_a_finding_that_shows_why_and_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.tempfile, "mkdtemp", lambda **_: tmp_path)
    monkeypatch.setattr(doctor, "_match", lambda *_: True)  # whichever MPI mpi4py has here
    program = make_launcher(tmp_path / "mpiexec", "echo no >&2; exit 5\n")
    found = by_topic(doctor.mpi(HERE, str(program)))
    assert found["MPI"].level == "fail"
    assert "exit code 5: no [" in found["MPI"].text
    assert f"{program} -bind-to core:1 -n 2 hostname" in found["MPI"].advice


def test_no_mpi_is_one_finding_and_not_the_end_of_the_examination():
    [found] = doctor.mpi(HERE, "/none/mpiexec")
    assert (found.level, "pip install" in found.text) == ("fail", True)


def test_a_variable_that_forces_slow_kernels_is_reported_with_both_speeds():
    found = doctor.kernel({"OPENBLAS_CORETYPE": "Nehalem"}, SLOW, FAST)
    assert (found.level, found.advice.split(":")[0]) == ("warn", "unset OPENBLAS_CORETYPE")
    assert found.text.endswith(
        "Nehalem kernels, 30 GFLOP/s; without: SkylakeX, 100 GFLOP/s, 3.33 times as fast"
    )
    assert doctor.kernel({"OPENBLAS_CORETYPE": "Haswell"}, FAST, FAST).level == "ok"


def test_a_forced_kernel_is_what_the_probe_computes_with():
    if probe(1, os.environ)["blas"] != "openblas":
        pytest.skip("NumPy here is not linked to OpenBLAS")
    assert probe(1, {**os.environ, "OPENBLAS_CORETYPE": "Nehalem"})["blas_architecture"] == "Nehalem"


def test_a_kernel_is_compared_with_a_free_one_only_where_a_variable_forces_it(monkeypatch):
    here = {**FAST, "blas_version": "1", "blas_threading": "pthreads", "openmp": False, "kernels": "fused"}
    here["blas_library"] = None
    monkeypatch.setattr(
        doctor,
        "probe_blas",
        lambda _, env: {**here, **(SLOW if "OPENBLAS_CORETYPE" in env else FAST)},
    )
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    assert by_topic(doctor.blas_findings(HERE))["BLAS code path"].text.startswith("chosen by the library")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")  # of a library that is not in use
    found = by_topic(doctor.blas_findings(HERE))["BLAS code path"]
    assert (found.level, found.advice.split(":")[0]) == ("warn", "unset OPENBLAS_CORETYPE")


def test_the_threading_layer_is_named_and_where_it_is_not_openmp_what_to_do(monkeypatch, tmp_path):
    here = {**FAST, "blas_version": "1", "blas_threading": "pthreads", "openmp": False, "blas_library": None}
    monkeypatch.setattr(doctor, "installed", lambda *_: [])
    found = doctor.library(here)
    assert (found.level, "pthreads build" in found.text) == ("ok", True)
    assert "apt install libopenblas0-openmp" in found.advice
    known = Library(kind="openblas", path=tmp_path / "libopenblas.so", openmp=True)
    known.path.touch()
    monkeypatch.setattr(doctor, "installed", lambda *_: [known])
    for built, wheel, said in (
        (None, True, "was not built: install a C compiler"),
        ("_forward.so", True, "picks old kernels on this CPU"),
        ("_forward.so", False, "launch.blas=openblas uses it"),
    ):
        monkeypatch.setattr(forwarding, "built", lambda built=built: built)
        monkeypatch.setattr(doctor, "is_wheel", lambda wheel=wheel: wheel)
        assert said in doctor.library(here).advice
    lent = doctor.library({**here, "openmp": True, "blas_library": "/opt/libopenblas.so"})
    assert (lent.advice, "/opt/libopenblas.so, lent to NumPy" in lent.text) == ("", True)


def test_libraries_are_ranked_by_their_speed_and_one_that_fails_comes_last(monkeypatch):
    def probed(threads, _environ, choice="auto", *_, **__):
        if choice == "/opt/libblis.so":
            return {"error": "it fails"}
        gflops = {"numpy": 50.0, "/opt/libopenblas.so": 60.0, "auto": 50.0}[choice] * threads
        return {"blas": "openblas", "blas_library": None, "gflops": gflops}

    known = {
        kind: [Library(kind=kind, path=Path(f"/opt/lib{kind}.so"), openmp=True)]
        for kind in ("openblas", "blis")
    }
    monkeypatch.setattr(doctor, "probe_blas", probed)
    monkeypatch.setattr(doctor, "installed", lambda kind, _: known.get(kind, []))
    ranked = doctor.ranking(2)
    assert [speed.choice for speed in ranked] == ["/opt/libopenblas.so", "numpy", "/opt/libblis.so"]
    assert [speed.gflops_all for speed in ranked] == [120.0, 100.0, 0.0]
    assert [speed.auto for speed in ranked] == [False, True, False]
    assert [speed.error for speed in ranked] == ["", "", "it fails"]


def test_kernels_that_were_not_built_or_lack_a_runtime_are_reported_with_what_to_do():
    assert doctor.kernels({"kernels": "fused", "openmp": True}).text == "fused in C"
    assert "single-threaded" in doctor.kernels({"kernels": "fused", "openmp": False}).text
    for obstacle, install in (
        ("they were not built", "install a C compiler with OpenMP"),
        ("libgomp.so.1: cannot open shared object file", "install the OpenMP runtime of GCC"),
    ):
        found = doctor.kernels({"kernels": "numpy", "openmp": True, "kernels_obstacle": obstacle})
        assert (found.level, obstacle in found.text) == ("warn", True)
        assert found.advice.startswith(install)


def test_threads_that_bring_nothing_are_reported():
    twice = {**SLOW, "gflops": 59.0, "threads": 2, "cores": 1.96}
    assert doctor.threads(SLOW, twice, 2).level == "ok"
    assert "kept 2.0 cores busy" in doctor.threads(SLOW, twice, 2).text
    assert "other work" in doctor.threads(SLOW, {**twice, "gflops": 31.0}, 2).advice
    assert "a threaded one" in doctor.threads(SLOW, {**twice, "gflops": 31.0, "threads": 1}, 2).advice


def test_a_numpy_that_does_not_work_is_a_finding_with_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise ImportError('broken here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    [found] = doctor.blas_findings(HERE)
    assert (found.level, found.text) == ("fail", "NumPy cannot multiply matrices: ImportError: broken here")


def test_a_control_group_that_allows_less_than_the_cores_is_reported():
    limited = Machine(
        host="h", cpu_model="C", core_cpus=tuple((n,) for n in range(8)), memory_bytes=1, cpu_limit=2
    )
    found = by_topic(doctor.cores(limited))["CPU limit"]
    assert (found.level, "CPU time to 2 of" in found.text) == ("warn", True)
    assert "CPU limit" not in by_topic(doctor.cores(HERE))


def test_inherited_thread_variables_are_named(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("PMI_RANK", "0")
    found = list(doctor.environment())
    assert any("OMP_NUM_THREADS=64" in finding.text for finding in found)
    assert any(finding.level == "warn" and "PMI_RANK" in finding.text for finding in found)


@pytest.mark.parametrize(
    ("name", "harm"),
    [("AS", "map more than they use"), ("FSIZE", "ended by SIGXFSZ"), ("MEMLOCK", "register the memory")],
)
def test_a_limit_of_the_shell_is_told_with_what_it_breaks(monkeypatch, tmp_path, name, harm):
    (tmp_path / "mlx5_0").touch()
    (tmp_path / "quota").write_text("#!/bin/sh\necho 'Disk quotas for user u: over limit on /home'; exit 1\n")
    (tmp_path / "quota").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    limited = {getattr(resource, f"RLIMIT_{name}"): 1 << 32}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limited.get(which, -1), -1))
    found = [finding for finding in doctor.limits(tmp_path) if finding.level == "warn"]
    assert [finding.topic for finding in found] == ["limits", "quota"]
    assert "4,096 MiB" in found[0].text
    assert harm in found[0].text
    assert "over limit on /home" in found[1].text


def test_little_shared_memory_is_told_with_what_helps():
    assert "--shm-size" in doctor.shared_memory(1 << 60).advice


def test_a_place_for_results_that_cannot_be_written_is_a_failure(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert by_topic(doctor.storage(HERE, file))["results"].level == "fail"
    assert by_topic(doctor.storage(HERE, tmp_path / "not" / "yet"))["results"].level == "ok"
    assert list(tmp_path.iterdir()) == [file]


def test_the_whole_examination_has_something_to_say_on_every_topic(tmp_path):
    found = findings(tmp_path)
    assert {"cores", "load", "memory", "results", "MPI launcher", "BLAS"} <= by_topic(found).keys()
    assert all(finding.advice for finding in found if finding.level == "warn")


def test_libraries_are_ranked_within_20_s_however_many_there_are_and_however_long_they_take(monkeypatch):
    now = [0.0]

    def probe(threads, _, choice="auto", limit_s=0.0):
        now[0] += (took := min(limit_s, 30.0 if choice == "/lib/3" else 1.0))
        return {"error": "took too long"} if took == limit_s else {"blas": choice, "gflops": float(threads)}

    libraries = [Library(kind="blis", path=Path(f"/lib/{number}"), openmp=True) for number in range(9)]
    monkeypatch.setattr(doctor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(doctor, "probe_blas", probe)
    monkeypatch.setattr(doctor, "installed", lambda kind, _: libraries if kind == "blis" else [])
    errors = {speed.choice: speed.error for speed in doctor.ranking(2)}
    assert now[0] < 20
    assert errors == dict.fromkeys(("numpy", "/lib/0", "/lib/1", "/lib/2", "/lib/4"), "") | {
        "/lib/3": "took too long",
        "/lib/5": "took too long",
    } | {f"/lib/{number}": "not measured: 19 s were over" for number in (6, 7, 8)}


IDLE, BUSY = OtherWork(cores=0.02, of=2), OtherWork(cores=1.3, of=2)


def waited(*seen):
    """Return whether waiting ended with an idle machine, what was told, and how many looks were left."""
    looks, told = list(seen), []
    found = wait_until_idle(told.append, look=lambda: looks.pop(0), sleep=lambda _: None, longest_s=10)
    return found, told, len(looks)


def test_waiting_ends_after_two_idle_looks_in_turn():
    assert waited(IDLE, IDLE) == (True, [], 0)
    idle, told, left = waited(BUSY, IDLE, BUSY, IDLE, IDLE, BUSY)
    assert (idle, left) == (True, 1)
    assert told == ["waiting for at most 0 minutes: other processes use 1.3 of 2 CPUs"]


def test_waiting_has_an_end_on_a_machine_that_stays_busy():
    idle, told, left = waited(*[BUSY] * 20)
    assert not idle
    assert left == 15
    assert told[-1].endswith("measuring anyway")


def test_a_look_counts_the_cores_that_are_busy():
    found = other_work(look_s=0.05)
    assert 0 <= found.cores <= found.of + 1e-9
    assert OtherWork(cores=0.09, of=1).disturbs is False
    assert OtherWork(cores=0.2, of=2).disturbs
    assert not OtherWork(cores=2.0, of=64).disturbs
