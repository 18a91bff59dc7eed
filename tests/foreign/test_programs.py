"""Programs of others do under `pscale watch` what they do without, and a profiler of ours counts the same.

They come from Debian (hpcc lammps netpipe-mpich2 netpipe-openmpi scalapack-mpi-test; tests of those that are
not installed are skipped, but in CI) and from the sources of mpi4py. Each runs with the MPI library of the
environment, which has the binary interface of the library for which the program was built: Debian has hpcc
and lmp for Open MPI only. NetPIPE also runs as at a site, with the library and the launcher of Debian.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import witness
from patience import LIMIT_S, run_program, share
from whole_runs import FREE_OPEN_MPI, Cli

from pscale.watch.notes import PART, calls, read
from pscale.watch.preload import find_library, recorder, sibling_library
from pscale.watch.tables import record_tables

LIBRARY = sibling_library(Path(sys.executable))
OPEN_MPI = LIBRARY is not None and LIBRARY.name == "libmpi.so.40"
SCALAPACK = Path("/usr/lib/x86_64-linux-gnu/scalapack") / ("openmpi-tests" if OPEN_MPI else "mpich-tests")
HPCC = Path("/usr/share/doc/hpcc/examples/_hpccinf.txt")
LIQUID = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
thermo 10
run 50
"""
POLL = re.compile("Test(all|any|some)?|Improbe|Iprobe")  # those that find nothing are not recorded
LEFT_OUT = {  # files of mpi4py's tests, of which there are 64
    "datatype": "makes datatypes by the ten thousand, and communicates nothing",
    "io": "writes and reads small files for a minute",
    "mpiabi": "fails with the MPICH of the wheel, also without the recorder",
    "pack": "packs buffers, and communicates nothing",
    "package": "imports all modules, of which one needs that of test_util_sync",
    "rma_nb": "makes the calls of test_rma again, nonblocking, for half a minute",
    "spawn": "starts ranks that are no ranks of the program, which the profiler counts in their place",
    "util_dtlib": "does as test_datatype",
    "util_sync": "needs the module `array`, whose buffers are left out: those of NumPy take half the time",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LIBRARY is None, reason="needs the wheel of an MPI library"),
]


def needs(program, *, open_mpi=None):
    """Skip a test where its program is missing, or was built for another library."""
    other = open_mpi is not None and open_mpi != OPEN_MPI
    missing = shutil.which(str(program)) is None and not os.environ.get("CI")
    reason = "is built for another MPI library" if other else "is not installed"
    return pytest.mark.skipif(other or missing, reason=f"{program} {reason}")


@pytest.fixture(scope="session")
def profiler(tmp_path_factory, compilers):
    names = [call.name for call in calls()]
    library = compilers.parent / "lib" / LIBRARY.name  # whose path has no spaces
    return witness.build(compilers / "mpicc", library, names, tmp_path_factory.mktemp("witness"))


@pytest.fixture
def environ(tmp_path):
    """The environment of programs that were built for the library under the name that Debian gives it."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "libmpich.so.12").symlink_to(LIBRARY)
    (libraries / "mpich").symlink_to(LIBRARY.parent / "mpich")  # which the library looks for beside itself
    own = {"LD_LIBRARY_PATH": f"{libraries}:{LIBRARY.parent}", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **FREE_OPEN_MPI, **own}


@pytest.fixture
def launch(tmp_path, environ):
    """Return a function that starts two ranks of a program, and returns its exit code and output."""

    def start(*words, folder=tmp_path):
        mpiexec = Path(sys.executable).with_name("mpiexec")
        done = run_program([mpiexec, "-n", 2, *words], code=None, cwd=folder, env=environ)
        return done.returncode, done.stdout + done.stderr

    return start


@pytest.fixture
def recorded(tmp_path, launch, profiler):
    """Return `launch` under the recorder, beside the profiler, whose counts have to be the same."""

    def start(*words, folder=tmp_path):
        notes, counts = tmp_path / "notes", tmp_path / "counts"
        notes.mkdir()
        counts.mkdir()
        shared = tmp_path / "recorder.so"  # ld.so splits LD_PRELOAD at spaces
        shared.symlink_to(recorder(LIBRARY))
        variables = f"LD_PRELOAD={profiler}:{shared}", f"PSCALE_WATCH={notes}", f"WITNESS={counts}"
        ended = launch("env", *variables, *words, folder=folder)
        for own, seen in zip(map(totals, read(notes).notes), witness.counts(counts), strict=True):
            own["Init"] = seen["Init"] = (1, 0)  # which of the two functions it was is not recorded
            seen.pop("Init_thread", None)
            own.pop("Pcontrol", None)  # whose arguments mpi.h leaves open, so that the profiler has none
            assert {name: count for name, (count, _) in own.items()} == {
                name: count for name, (count, _) in seen.items() if not POLL.fullmatch(name)
            }
            given = {name: total for name, (_, total) in own.items() if witness.bytes_of(name)}
            assert given == {name: total for name, (_, total) in seen.items() if witness.bytes_of(name)}
            assert sum(count for count, _ in seen.values()) > 2
        return ended

    return start


def totals(notes):
    """Return, for each function, how often a rank called it and the bytes that it gave."""
    whole = np.concatenate([np.asarray(notes[at : at + 100_000]) for at in range(0, len(notes), 100_000)])
    whole = whole[whole["flags"] & PART == 0]
    return {
        calls()[number].name: (
            int((whole["call"] == number).sum()),
            int(whole["bytes"][whole["call"] == number].sum()),
        )
        for number in np.unique(whole["call"])
        if not POLL.fullmatch(calls()[number].name)
    }


@needs("mpiexec.openmpi", open_mpi=False)
@pytest.mark.parametrize("options", [(), ("--launcher", "mpiexec.openmpi")])
def test_mpi4py_that_is_told_to_load_the_site_s_open_mpi_is_recorded_with_what_suits_that(
    tmp_path, monkeypatch, options
):
    """Open MPI has no functions with large counts, which mpi4py calls where the recorder has them."""
    monkeypatch.setenv("MPI4PY_LIBMPI", "libmpi.so.40" if options else str(find_library("libmpi.so.40")))
    program = "from mpi4py import MPI; MPI.COMM_WORLD.Bcast(bytearray(8)); print(MPI.Get_library_version())"
    cli = Cli(tmp_path)
    words = "watch", *options, "--no-report", "--reports", cli.reports, "--", sys.executable, "-c", program
    assert cli.call(*words).stdout.count("Open MPI") == 2
    rows = [row for row in cli.newest().rows("calls") if row["verb"] == "broadcast"]
    assert [(row["rank"], row["count"]) for row in rows] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("program", "launcher"),
    [
        pytest.param("NPopenmpi", "mpiexec.openmpi", marks=needs("NPopenmpi", open_mpi=True)),
        pytest.param("NPmpich2", "mpiexec.mpich", marks=needs("NPmpich2", open_mpi=False)),
    ],
)
def test_netpipe_sends_what_the_profiler_counts_also_with_the_site_s_mpi(
    recorded, tmp_path, program, launcher
):
    words = program, "-l", "1", "-u", "4096", "-n", "20"
    code, output = recorded(*words)
    assert code == 0
    assert "4096 bytes" in output
    cli = Cli(tmp_path)
    options = "-n", "2", "--launcher", launcher, "--no-report", "--reports", cli.reports
    assert "4096 bytes" in cli.call("watch", *options, "--", *words).stderr
    tables = record_tables(read(tmp_path / "notes")).tables["calls"]
    counted = zip(tables["rank"], tables["verb"], tables["count"], tables["bytes"], strict=True)
    rows = ((row["rank"], row["verb"], row["count"], row["bytes"]) for row in cli.newest().rows("calls"))
    assert sorted(row for row in rows if row[2]) == sorted(row for row in counted if row[2])


@needs(SCALAPACK / "xdqr")
@pytest.mark.parametrize("program", ["xdqr", "xzbrd"])
def test_scalapack_passes_the_same_tests_and_the_profiler_counts_the_same(launch, recorded, program):
    results = []
    for start in (launch, recorded):
        code, output = start(SCALAPACK / program, folder=SCALAPACK)
        assert code == 0
        results.append(re.findall(r"PASSED|FAILED|\d+ tests .*", output))
    assert results[0] == results[1]
    assert "PASSED" in results[0]


@needs("hpcc", open_mpi=True)
def test_the_hpc_challenge_gives_the_same_checks_and_the_profiler_counts_the_same(tmp_path, launch, recorded):
    text = HPCC.read_text() if HPCC.exists() else ""
    small = text.replace("1000         Ns", "100          Ns").replace("2            Ps", "1            Ps")
    checks = []
    for name, start in (("plain", launch), ("watched", recorded)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "hpccinf.txt").write_text(small)
        assert start("hpcc", folder=folder)[0] == 0
        report = (folder / "hpccoutf.txt").read_text()
        checks.append(
            re.findall(r"^(\w*(?:Failed|Success|_N|Errors\w*|Nb|nprow|npcol)\w*)=(\d+)$", report, re.M)
        )
    assert dict(checks[0]) == dict(checks[1])
    assert dict(checks[0])["Success"] == "1"


@needs("lmp", open_mpi=True)
def test_lammps_prints_the_same_energies_and_the_profiler_counts_the_same(tmp_path, launch, recorded):
    (tmp_path / "liquid").write_text(LIQUID)
    energies = []
    for start in (launch, recorded):
        code, output = start("lmp", "-in", "liquid")
        assert code == 0
        energies.append(
            re.findall(r"^ +\d+ +[-\d.]+ +[-\d.]+ +\S+ +[-\d.]+ +[-\d.]+ *$", output, re.MULTILINE)
        )
    assert energies[0] == energies[1]
    assert len(energies[0]) == 6


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """The folder of mpi4py's own tests, of the version that is installed."""
    import mpi4py  # noqa: PLC0415 - it is in the environment of jobs only

    folder = tmp_path_factory.mktemp("mpi4py")
    name = f"mpi4py=={mpi4py.__version__}"
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "mpi4py")
    subprocess.run([*pip, "-d", str(folder), name], check=True, timeout=LIMIT_S)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return next(folder.glob("mpi4py-*/test"))


def test_the_tests_of_mpi4py_pass_under_the_recorder_and_the_profiler_counts_the_same(
    sources, launch, recorded
):
    names = sorted(path.stem.removeprefix("test_") for path in sources.glob("test_*.py"))
    chosen = share([name for name in names if name not in LEFT_OUT])
    words = (sys.executable, "main.py", "--no-array", "-i", f"^test_({'|'.join(chosen)}).py")
    plain, record_tables = (start(*words, folder=sources) for start in (launch, recorded))
    assert plain[0] == record_tables[0] == 0, record_tables[1]
    endings = re.compile(r"^(Ran \d+ tests|OK.*$)", re.MULTILINE)
    ran = [set(endings.findall(output)) for _, output in (plain, record_tables)]  # of two ranks, in any order
    assert ran[0] == ran[1]
    (number,) = {int(number) for number in re.findall(r"Ran (\d+) tests", " ".join(ran[0]))}
    assert number > 10 * len(chosen)
