import sys

import pytest

from pscale.errors import LaunchError
from pscale.launch import launcher

ANSWERS = {
    "mpich": "HYDRA build details:\n    Version:                                 5.0.2\n    CC:  cc\n",
    "openmpi": "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619 (id: c2e19c2f3e)\n"
    "Copyright 2003-2023, Intel Corporation.\n",
}


def program(path, answer, exit_code=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {exit_code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("answer", "flavour", "version"),
    [
        (ANSWERS["mpich"], "mpich", "5.0.2"),
        (ANSWERS["openmpi"], "openmpi", "5.0.11"),
        ("mpirun (Open MPI) 4.1.4", "openmpi", "4.1.4"),
        ("prterun (PRRTE) 3.0.11", "openmpi", "3.0.11"),
        (ANSWERS["intel"], "intel", "2021.10"),
        ("slurm-wlm 22.05.8", "srun", "22.05.8"),
        ("slurm 24.11.1", "srun", "24.11.1"),
        ("commands:    \t\t0.60.0\nlibflux-core:\t\t0.60.0", "flux", "0.60.0"),
    ],
)
def test_a_launcher_is_known_by_what_it_says_of_itself(tmp_path, answer, flavour, version):
    found = launcher.find(str(program(tmp_path / "a b" / "mpiexec", answer)))
    assert (found.flavour, found.version) == (flavour, version)


def test_the_launcher_beside_this_python_is_preferred_if_its_library_is_there(tmp_path, monkeypatch):
    beside = program(tmp_path / "venv" / "bin" / "mpiexec", ANSWERS["mpich"])
    site = program(tmp_path / "site" / "mpiexec", ANSWERS["openmpi"])
    monkeypatch.setenv("PATH", f"{site.parent}:/bin:/usr/bin")
    monkeypatch.setattr(sys, "exec_prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "base_exec_prefix", str(tmp_path / "none"))
    assert launcher.find().path == str(site)
    (tmp_path / "venv" / "lib").mkdir()
    (tmp_path / "venv" / "lib" / "libmpi.so.12").touch()
    assert launcher.find().path == str(beside)
    monkeypatch.setenv("MPI4PY_LIBMPI", "/site/lib/libmpi.so")
    assert launcher.find().path == str(site)


def test_a_name_is_looked_up_on_the_path_and_a_relative_path_is_not(tmp_path, monkeypatch):
    named = program(tmp_path / "bin" / "launcher", ANSWERS["openmpi"])
    monkeypatch.setenv("PATH", f"{named.parent}:/bin:/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert launcher.find("launcher").path == str(named)
    with pytest.raises(LaunchError, match=r"launcher \./launcher: no such program"):
        launcher.find("./launcher")


def test_without_an_mpi_the_message_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launcher, "_prefixes", lambda: [tmp_path])
    with pytest.raises(LaunchError, match=r"no MPI found.*pip install 'pscale\[mpich\]'.*module load"):
        launcher.find()


def test_a_program_that_is_no_mpi_launcher_is_refused_with_its_own_words(tmp_path):
    with pytest.raises(LaunchError, match=r"'echo \(GNU coreutils\) 9\.1'"):
        launcher.find(str(program(tmp_path / "echo", "echo (GNU coreutils) 9.1")))
    with pytest.raises(LaunchError, match="nothing, exit code 3"):
        launcher.find(str(program(tmp_path / "silent", "", exit_code=3)))
    homeless = "[vm:1] Error: Unable to get the user home directory"
    with pytest.raises(LaunchError, match="set HOME to a folder that can be written"):
        launcher.find(str(program(tmp_path / "homeless", homeless, exit_code=1)))
