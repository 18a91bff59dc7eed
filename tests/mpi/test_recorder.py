"""Neither the recorder of `pscale watch` nor `pscale watch` itself changes what a program does."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from errno import EDQUOT, EFAULT, EMFILE, ENOMEM, ENOSPC
from pathlib import Path

import numpy as np
import pytest
from patience import LIMIT_S, lives, run_program, wait_for
from whole_runs import FREE_OPEN_MPI, needs_recorder

from pscale.errors import ResultsError
from pscale.watch.notes import read
from pscale.watch.preload import preload_words, recorder, sibling_library
from pscale.watch.tables import record_tables

PROGRAMS = Path(__file__).parent.parent / "watch" / "programs"
FAILING = "malloc", "calloc", "realloc", "open", "mmap", "madvise", "pwrite", "ftruncate", "write"
SOURCE = Path(__file__).parents[2] / "pscale" / "watch" / "watch.c"
SMALL = (  # ranks, program, its arguments
    (4, "calls.c"),
    (4, "corners.c"),
    (2, "crowd.c"),
    (2, "plain.c", "20000", "100"),
    (2, "serving.c", "0"),
)
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
UNDER_SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=0",  # MPI libraries leave some
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",  # locks of MPI hide what they do not protect
    "UCX_TLS": "^cma",  # reads other processes, which the runtimes take for wrong addresses
    "UCX_MEM_EVENTS": "n",  # puts its own functions in place of those of the runtimes
    "PMIX_MCA_gds": "hash",  # the default wants the same address in every process
}
AT_FIXED_ADDRESSES = ("setarch", "-R")  # random ones can be where ThreadSanitizer keeps its own data


def mpiexec():
    return Path(sys.executable).with_name("mpiexec")


pytestmark = [pytest.mark.slow, needs_recorder]


def totals(results):
    """Return how often all ranks made each call in a phase, on which axis, and the bytes that they gave."""
    count, paid = Counter(), Counter()
    for row in results.rows("calls"):
        if row["count"]:
            count[row["phase"], row["axis"], row["verb"]] += row["count"]
            paid[row["phase"], row["axis"], row["verb"]] += row["bytes"]
    return {name: (number, paid[name]) for name, number in count.items()}


def test_a_program_of_corner_cases_does_what_it_does_without_and_every_call_is_counted(watch, compiled):
    program = compiled("mpicc", "corners.c")
    results = watch(4, program)
    assert results.output.startswith("ok\n")
    apart, world = "not split", "world"
    assert totals(results) == {
        ("phase 2", world, "communicator"): (4, 0),
        ("phase 2", "split", "communicator"): (4, 0),
        ("phase 2", apart, "communicator"): (4, 0),
        ("phase 2", apart, "broadcast"): (4, 4),
        ("phase 2", apart, "scatter"): (8, 2 * 8),
        ("phase 2", apart, "gather"): (8, 2 * 2 * 4),
        ("phase 2", apart, "reduce"): (4, 2 * 4),
        ("phase 2", apart, "reduce_scatter"): (4, 4 * 8),
        ("phase 2", "split.intercomm", "communicator"): (4, 0),
        ("phase 3", world, "all_to_all"): (4, 16),
        ("phase 3", world, "gather"): (4, 16),
        ("phase 3", world, "scatter"): (4, 16),
        ("phase 3", "", "send"): (4, 0),  # to a rank that there is not
        ("phase 4", world, "send"): (3 * 4 * 4, 3 * 4 * 4 * 4),
        ("phase 4", world, "receive"): (3 * 4 * 4, 0),
        ("phase 5", world, "barrier"): (4, 0),
        ("phase 5", world, "send"): (10, 40),
        ("phase 5", world, "receive"): (12, 0),  # of which two came to nothing
        ("phase 6", world, "communicator"): (4 * 200, 0),
        ("phase 6", "idup", "all_reduce"): (4 * 100, 4 * 400),
        ("phase 6", "idup", "communicator"): (4 * 100, 0),
        ("phase 6", "split", "all_reduce"): (4 * 100, 4 * 400),
        ("phase 6", "split", "communicator"): (4 * 100, 0),
        ("phase 7", world, "barrier"): (4, 0),
        ("phase 7", world, "send"): (4 * 2, 4 * 8),
        ("phase 7", world, "receive"): (4 * 2, 0),
    }
    events = [row for row in results.rows("events") if row["phase"] == "phase 5"]
    sends = [
        row for row in events if row["rank"] == 0 and row["kind"] == "completed" and row["verb"] == "send"
    ]
    posted = [row for row in events if row["rank"] == 1 and row["kind"] == "posted"]
    came = [row["enter_s"] for row in posted if row["verb"] == "receive"][-len(sends) :]
    begun = [row["enter_s"] for row in events if row["rank"] == 0 and row["kind"] == "posted"]
    assert len(sends) == 10
    expected = np.maximum(np.array(came) - np.array(begun), 0)
    assert np.array([row["wait_s"] for row in sends]) == pytest.approx(expected, abs=1e-8)
    assert expected.sum() > 0


def test_a_program_that_receives_all_the_time_or_works_after_finalize_is_no_hang(watch, compiled):
    results = watch(2, compiled("mpicc", "serving.c"), "5", options=("--hang-after", "0.5"))
    assert "ok\n" in results.output


def test_a_loop_that_tests_for_ever_and_a_wait_for_some_are_a_hang_and_named(watch, compiled):
    results = watch(2, compiled("mpicc", "polling.c"), options=("--hang-after", "0.5"), code=1)
    said = " ".join(results.output.split())
    assert "rank 1 in MPI_Waitsome" in said
    assert "rank 0 in a loop of MPI_Test for MPI_Irecv from rank 1 over world" in said


@pytest.fixture
def alone(tmp_path):
    """Return a function that runs a program as a rank of its own, recorded in a folder; it has to succeed."""

    def run(*words, shared=None, folder=tmp_path / "notes", prepare=None, **environ):
        folder.mkdir(exist_ok=True)
        environ = {**os.environ, **environ}
        loading = (
            ("env", f"LD_PRELOAD={shared}")
            if shared
            else preload_words(sibling_library(Path(sys.executable)), environ)
        )
        return run_program([*loading, f"PSCALE_WATCH={folder}", *words], env=environ, preexec_fn=prepare)

    return run


def test_programs_that_a_rank_starts_record_nothing_and_get_no_other_environment(alone, tmp_path):
    libm = "libm.so.6"
    program = """
import os, subprocess, sys
import pscale.watch
before = dict(os.environ)
from mpi4py import MPI
child = [sys.executable, "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print('child')"]
for environ in (None, before):
    subprocess.run(child, env=environ, check=True)
subprocess.run(["sh", "-c", 'echo "LD_PRELOAD=$LD_PRELOAD PSCALE_WATCH=$PSCALE_WATCH."'], check=True)
if os.fork() == 0:
    pscale.watch.step()
    os._exit(0)
os.wait()
"""
    said = alone(sys.executable, "-c", program, LD_PRELOAD=libm).stdout
    assert said.split() == ["child", "child", f"LD_PRELOAD={libm}", "PSCALE_WATCH=."]
    (record,) = (tmp_path / "notes").glob("facts.*")
    assert not any(record_tables(read(record.parent)).tables["calls"]["count"])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a function that builds the recorder with other flags."""
    folder = tmp_path_factory.mktemp("recorders")
    large = ["-DLARGE_COUNTS"] if "large" in recorder(sibling_library(Path(sys.executable))).name else []

    def build(name, *flags):
        shared = folder / f"{name}.so"
        if not shared.exists():
            how = ["-g", "-O1", "-shared", "-fPIC", "-pthread"]
            subprocess.run(["cc", *how, *large, SOURCE, *flags, "-o", shared, "-ldl"], check=True)
        return shared

    return build


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))  # MPI libraries need some of their own


def runtime(sanitizer):
    """Return the library of a sanitizer, which has to be loaded before all others."""
    command = ["cc", f"-print-file-name={RUNTIMES[sanitizer]}"]
    path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(path).is_absolute():
        assert not os.environ.get("CI"), f"the C compiler must have {RUNTIMES[sanitizer]}"
        pytest.skip(f"the C compiler has no {RUNTIMES[sanitizer]}")
    return path


@pytest.mark.parametrize("sanitizer", RUNTIMES)
def test_sanitizers_find_nothing_in_the_recorder_of_small_programs(built, compiled, tmp_path, sanitizer):
    loaded = f"LD_PRELOAD={runtime(sanitizer)}:{built(sanitizer, f'-fsanitize={sanitizer}')}"
    fixed = subprocess.run([*AT_FIXED_ADDRESSES, "true"], check=False).returncode == 0
    start = *(AT_FIXED_ADDRESSES if fixed else ()), "env", loaded
    for ranks, program, *words in SMALL:
        notes = tmp_path / f"notes of {program}"
        notes.mkdir()
        watched_program = f"PSCALE_WATCH={notes}", compiled("mpicc", program)
        environ = {**os.environ, **UNDER_SANITIZERS, **FREE_OPEN_MPI}
        done = run_program([mpiexec(), "-n", ranks, *start, *watched_program, *words], env=environ)
        assert done.stderr == "", program
        assert len(read(notes).notes) == ranks
        assert not read(notes).warnings


@pytest.mark.parametrize(
    ("numbers", "prepare", "said"),
    [
        (("30000", "0"), None, "the record has as many as it can"),
        (("10", "200"), None, "it has made too many communicators"),
        (("600000", "0"), small_files, "File too large"),
    ],
)
def test_a_record_that_reaches_a_limit_ends_and_the_program_goes_on(  # noqa: PLR0917
    alone, built, compiled, tmp_path, numbers, prepare, said
):
    shared = None if prepare else built("small", "-DMOST_NOTES=16384", "-DMOST_COMMS=64")
    done = alone(compiled("mpicc", "plain.c"), *numbers, shared=shared, prepare=prepare)
    assert done.stdout == "ok 1\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("pscale watch: rank 0: its calls are recorded no further, the program goes on: ")
    assert said in line
    found = read(tmp_path / "notes")
    (warning,) = found.warnings
    assert "The record ends" in warning
    assert "rank 0 stopped recording" in warning
    assert len(found.notes[0]) > 100


def little_memory():
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))


def test_a_limit_on_memory_is_left_to_the_program(alone, compiled, tmp_path):
    done = alone(compiled("mpicc", "plain.c"), "60000", "0", prepare=little_memory)
    assert (done.stdout, done.stderr) == ("ok 1\n", "")
    found = read(tmp_path / "notes")
    assert not found.warnings
    assert len(found.notes[0]) > 60000


def test_a_full_disk_ends_the_record_and_not_the_program(alone, compiled, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        done = alone(compiled("mpicc", "plain.c"), "30000", "0", folder=disk / "notes")
        (warning,) = read(disk / "notes").warnings
    finally:
        subprocess.run(["umount", disk], check=True)
    assert done.stdout == "ok 1\n"
    for text in (done.stderr, warning):
        assert "No space left on device" in text


def test_whatever_fails_in_the_recorder_the_program_goes_on(alone, built, compiled, tmp_path):
    wraps = [*(f"-Wl,--wrap={name}" for name in FAILING), PROGRAMS / "failing.c"]
    words = compiled("mpicc", "plain.c"), "9000", "3"
    shared = f"{runtime('address')}:{built('failing', '-fsanitize=address', *wraps)}"
    reasons = set()
    for number in range(1, 1000):
        folder = tmp_path / f"notes{number}"
        done = alone(*words, shared=shared, folder=folder, FAILS=str(number), **UNDER_SANITIZERS)
        assert done.stdout == "ok 1\n", number
        lines = done.stderr.splitlines()
        if lines == ["none has failed"]:
            break
        assert len(lines) <= 1, (number, lines)
        reasons |= {line.rpartition(": ")[2] for line in lines}
        try:
            found = record_tables(read(folder))
        except ResultsError:
            assert lines, number
        else:
            assert len(found.warnings) == len(lines), number
            assert found.tables["calls"]["count"].sum() > 8000 or lines, number
    assert reasons == {os.strerror(each) for each in (EMFILE, ENOSPC, ENOMEM, EFAULT, EDQUOT)}


def test_several_jobs_under_one_record_are_refused_and_read_as_the_last_of_them(watch, compiled, monkeypatch):
    for name, value in FREE_OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    starts = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"
    words = mpiexec(), "-n", "2", compiled("mpicc", "plain.c"), "20", "0"
    results = watch(2, sys.executable, "-c", starts, *words, code=4)
    assert results.output.count("ok 2") == 4
    assert "they are 2 worlds of 2 ranks; write the program alone" in " ".join(results.output.split())
    (notes,) = results.folder.glob("cases/*/notes")
    (warning,) = read(notes).warnings
    assert "2 MPI jobs were recorded, of 2 ranks" in warning


WAITS_FOR_A_SIGNAL = """
import os, signal, sys, time
from pathlib import Path
from mpi4py import MPI
folder, rank, reached = Path(sys.argv[1]), MPI.COMM_WORLD.rank, []
signal.signal(signal.SIGUSR1, lambda *_: reached.append(True))
(folder / f"started{rank}").write_text(str(os.getpid()))
(folder / f"started{rank}").rename(folder / f"pid{rank}")
while not reached:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGUSR1, 0)]
)
def test_a_signal_ends_or_reaches_all_of_a_program(cli, tmp_path, number, code):
    program = sys.executable, "-c", WAITS_FOR_A_SIGNAL, tmp_path
    words = "watch", "--no-report", "--reports", cli.reports, "--", *program
    with (tmp_path / "said").open("wb") as log:
        process = subprocess.Popen(cli.command(*words), stdout=log, stderr=log)
        wait_for(lambda: len([*tmp_path.glob("pid?")]) == 2 or process.poll() is not None)
        ranks = [int(path.read_text()) for path in tmp_path.glob("pid?")]
        process.send_signal(number)
        assert process.wait(LIMIT_S) == code, (tmp_path / "said").read_text()
    assert len(ranks) == 2
    wait_for(lambda: not any(map(lives, ranks)))


def test_valgrind_around_a_program_ends(watch, compiled):
    if not shutil.which("valgrind"):
        assert not os.environ.get("CI"), "there must be valgrind"
        pytest.skip("there is no valgrind")
    results = watch(2, "valgrind", "-q", "--error-exitcode=0", compiled("mpicc", "corners.c"), "none")
    assert "ok\n" in results.output
