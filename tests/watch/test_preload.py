"""The MPI library of a program is read from its file: no program of a suite is started to show it."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pscale.cli.workload_tables import library_of_command, sibling_launcher
from pscale.config import Case, Launch
from pscale.errors import LaunchError
from pscale.launch.command import command as started_by
from pscale.launch.launcher import Launcher
from pscale.launch.machine import inspect
from pscale.watch import preload
from pscale.watch.preload import mpi_library

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are recorded on Linux only")
STARTED = '#include <stdio.h>\nint main(void) { return !fopen("%s", "w"); }\n'


@pytest.fixture
def built(tmp_path):
    """Return a function that compiles a text into a file of this name."""
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")

    def build(name, text, *options):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        command = ["cc", "-x", "c", "-", "-x", "none", "-o", path, *options]
        subprocess.run(command, input=text, text=True, check=True, cwd=tmp_path)
        return path

    return build


def test_the_library_is_found_beside_one_that_the_program_needs(built):
    shared = ("-shared", "-fPIC")
    library = built("lib/libmpi.so.12", "int mpi;", *shared, "-Wl,-soname,libmpi.so.12")
    solver = "extern int mpi; int *solve(void) { return &mpi; }"
    built("lib/libsolver.so", solver, *shared, library, "-Wl,-rpath,$ORIGIN")
    main = "int *solve(void); int main(void) { return *solve(); }"
    program = built(
        "main", main, "-Llib", "-lsolver", "-Wl,-rpath,${ORIGIN}/lib", "-Wl,--allow-shlib-undefined"
    )
    assert mpi_library(program) == library
    library.unlink()
    assert mpi_library(program) is None


def test_a_damaged_program_is_linked_with_nothing_that_breaks_the_reader(tmp_path):
    whole, program = bytearray(Path("/bin/sh").read_bytes()), tmp_path / "program"
    draw = random.Random(1)
    for number in range(300):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 20)):
            place = draw.randrange(1000 if number % 2 else len(whole))
            damaged[place] = draw.choice([0, 255, draw.randrange(256)])
        program.write_bytes(damaged[: draw.choice([len(whole), draw.randrange(2000)])])
        assert mpi_library(program) is None


def test_showing_a_suite_starts_neither_its_program_nor_its_launcher(built, cli, tmp_path):
    trace = tmp_path / "started"
    program = built("static", STARTED % trace, "-static")  # this the dynamic linker would start, when asked
    (program.parent / "mpiexec").write_text(f"#!/bin/sh\ntouch '{trace}'\necho 'mpiexec (Open MPI) 5.0'\n")
    (program.parent / "mpiexec").chmod(0o755)
    launcher = {"launcher": str(program.parent / "mpiexec"), "scheduler": "none"}
    for launch in ({"scheduler": "none"}, launcher):
        suite = {
            "name": "foreign",
            "scaling": "throughput",
            "workload": {"command": str(program), "watch": True},
            "ranks": 1,
            "launch": launch,
        }
        path = cli.suite(yaml.safe_dump(suite))
        for command in (("show", path), ("run", path, "--dry-run")):
            done = subprocess.run(cli.command(*command), capture_output=True, text=True, check=True)
            assert str(program) in done.stdout
            assert not trace.exists()


def test_showing_a_suite_does_not_load_the_blas_that_it_demands_and_running_it_does(cli, tmp_path):
    trace = tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    path = cli.suite(
        yaml.safe_dump(
            {
                "name": "demanding",
                "scaling": "strong",
                "sweep": {"ranks": [1]},
                "require": {"blas": "blis"},
                "launch": {"env": {"PYTHONPATH": str(tmp_path)}, "scheduler": "none"},
            }
        )
    )
    for command in (("show", path), ("run", path, "--dry-run")):
        subprocess.run(cli.command(*command), capture_output=True, check=True)
        assert not trace.exists()
    done = subprocess.run(cli.command("run", path), capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "the suite requires blas: blis" in " ".join(done.stderr.split())
    assert trace.exists()


def test_a_launcher_is_that_of_the_library_where_a_system_has_several(tmp_path):
    names = ("mpiexec", "mpiexec.mpich", "mpiexec.openmpi")
    for path in (tmp_path / "usr" / "bin" / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    libraries = tmp_path / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    found = tmp_path / "lib" / libraries.name
    for library, launcher in (("libmpich.so.12", names[1]), ("libmpi.so.40", names[2])):
        assert sibling_launcher("auto", found / library) == str(tmp_path / "usr" / "bin" / launcher)
    assert sibling_launcher("srun", found / "libmpi.so.40") == "srun"
    assert sibling_launcher("auto", None) == "auto"


def test_variables_of_mpi4py_and_a_chosen_launcher_come_before_the_library_beside_an_interpreter(tmp_path):
    def install(name, library):
        for path in (tmp_path / name / "lib" / library, tmp_path / name / "bin" / "mpiexec"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o755)
        return tmp_path / name / "lib" / library

    mpich, other = install("here", "libmpi.so.12"), install("there", "libmpi.so.40")
    python = tmp_path / "here" / "bin" / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)

    def library(*words, launcher="auto", **environ):
        return library_of_command((*words, str(python)), Launch(launcher=launcher, env=environ))

    assert library() == library(MPI4PY_LIBMPI="/none/libmpi.so:none.so") == mpich
    assert library(MPI4PY_MPIABI="mpich", launcher=str(other.parents[1] / "bin" / "mpiexec")) == mpich
    chosen = [
        library(MPI4PY_LIBMPI=str(other)),
        library(MPI4PY_LIBMPI=f"/none:{other.parent}"),
        library("env", f"MPI4PY_LIBMPI={other}"),
        library(launcher=str(other.parents[1] / "bin" / "mpiexec")),
        library(MPI4PY_MPIABI="OpenMPI", LD_LIBRARY_PATH="") if install("here", other.name) else None,
    ]
    assert chosen == [other] * 4 + [mpich.parent / other.name]


@pytest.mark.parametrize(
    ("folder", "name", "found"), [("/a b", "_watch.so", "/a b"), ("/a", "/a/_watch.so", "")]
)
def test_a_program_keeps_its_lists_of_libraries_wherever_the_recorder_is(monkeypatch, folder, name, found):
    monkeypatch.setattr(preload, "recorder", lambda _: Path(f"{folder}/_watch.so"))
    for given, loaded in (("/mine", "libm.so.6"), ("", "")):
        environ = {"LD_LIBRARY_PATH": given, "LD_PRELOAD": loaded}
        told = [*preload.preload_words(None, environ), "sh", "-c", "echo $LD_PRELOAD and $LD_LIBRARY_PATH"]
        said = subprocess.run(told, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
        lists = (":".join(filter(None, each)) for each in ((name, loaded), (found, given)))
        assert said.stdout.split() == " and ".join(lists).split()
    monkeypatch.setattr(preload, "recorder", lambda _: Path("/a:b/_watch.so"))
    with pytest.raises(LaunchError, match="splits its path"):
        preload.preload_words(None, {})


@pytest.mark.parametrize("shared", ["recorder.so", "a folder/recorder.so"])
@pytest.mark.parametrize("by_suite", [False, True])
@pytest.mark.parametrize(
    ("variable", "is_extended"),
    [
        ("LD_PRELOAD", True),
        ("LD_LIBRARY_PATH", True),
        ("LD_AUDIT", False),
        ("LIBRARY_PATH", False),
        ("PYTHONPATH", False),
        ("PATH", False),
        ("MANPATH", False),
    ],
)
def test_lists_in_variables_of_the_user_reach_a_watched_program_whole(
    monkeypatch, shared, by_suite, variable, is_extended
):
    given = "/opt/first:/opt/second:/usr/bin:/bin"
    monkeypatch.setattr(preload, "recorder", lambda _library: Path("/none", shared))
    of_suite, of_user = ({variable: given}, {}) if by_suite else ({}, {variable: given})
    case = Case(suite="s", label="l", launch=Launch(env=of_suite, bind="none"))
    hydra = Launcher(path="mpiexec", flavour="mpich", version="5")
    words = preload.preload_words(None, {**of_user, **of_suite})
    started = started_by(case, hydra, words, inspect(), environ=of_user, root=False)
    (extended,) = {word for word in started.argv if word.startswith(f"{variable}=")} or {""}
    assert started.env[variable] == given
    if is_extended and (variable == "LD_PRELOAD" or " " in shared):
        assert extended.endswith(f":{given}")
    else:
        assert extended == ""
