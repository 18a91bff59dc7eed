"""The wheel: the same bytes from tree and sdist; what an ordinary user does with it, without a compiler."""

import json
import os
import re
import shutil
import stat
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from patience import run_program

import pscale

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
EPOCH = "1700000000"
OBJECTS = {
    "pscale/blas/_forward.so",
    "pscale/nn/kernels/_fused.so",
    "pscale/watch/_watch.so",
    "pscale/watch/_watch_large.so",
}


def call(*command, **options):
    return run_program(command, **options).stdout


def built(kind, source, target, **environ):
    """Build an sdist or a wheel of a folder; return its only file."""
    build = (sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", target)
    call(*build, cwd=source, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH, **environ})
    (file,) = target.iterdir()
    return file


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Two copies of the tracked files, which differ in all that is not their content."""
    copies = [tmp_path_factory.mktemp(name) / "pscale" for name in ("first", "elsewhere and later")]
    for name in call("git", "ls-files", "-z", cwd=ROOT).split("\0")[:-1]:
        for copy in copies:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    for path in copies[1].rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    return copies


@pytest.fixture(scope="module")
def sdists(trees, tmp_path_factory):
    return [built("sdist", tree, tmp_path_factory.mktemp("sdist")) for tree in trees]


@pytest.fixture(scope="module")
def wheel(trees, tmp_path_factory):
    return built("wheel", trees[0], tmp_path_factory.mktemp("wheel"))


def test_the_tree_and_its_sdist_build_the_same_bytes_anywhere_and_at_any_time(sdists, wheel, tmp_path):
    first, second = sdists
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(second) as archive:
        archive.extractall(tmp_path)
    again = built("wheel", tmp_path / f"pscale-{pscale.__version__}", tmp_path / "wheels")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_one_wheel_serves_every_python_of_a_platform_and_brings_no_other_library(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert "pscale/watch/calls.h" in names  # is read when a record is settled
        needed = {
            int(minor) for name in OBJECTS for minor in re.findall(rb"\0GLIBC_2\.(\d+)", archive.read(name))
        }
        symbols = [name for name in OBJECTS if b"PyObject" in archive.read(name)]
    tag = re.fullmatch(rf"pscale-{pscale.__version__}-py3-none-manylinux_2_(\d+)_\w+\.whl", wheel.name)
    assert tag is not None, wheel.name
    assert int(tag[1]) >= max(needed)
    assert symbols == []
    assert {name for name in names if ".so" in name} == OBJECTS
    assert {Path(name).stem for name in names if re.fullmatch(r"pscale/suites/\w+\.yaml", name)} == {
        path.stem for path in (ROOT / "suites").glob("*.yaml")
    }


def test_without_a_compiler_the_wheel_is_one_for_any_system(trees, tmp_path):
    found = built("wheel", trees[0], tmp_path, CC="false")
    assert found.name == f"pscale-{pscale.__version__}-py3-none-any.whl"
    assert not any(".so" in name for name in zipfile.ZipFile(found).namelist())


@pytest.fixture(scope="module")
def place():
    """A folder that every user can reach; those for tests are their owner's."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        yield place
        for path in place.rglob("*"):
            if not path.is_symlink() and path.is_dir():
                path.chmod(0o755)


def without_privileges():
    """Return the command that runs another as an ordinary user.

    Where only root can reach Python, as root without its capabilities: permissions then hold for it too.
    """
    if os.geteuid():
        return []
    reachable = all(
        folder.stat().st_mode & stat.S_IXOTH for folder in Path(sys.base_prefix).resolve().parents
    )
    user = ("--reuid=65534", "--regid=65534", "--clear-groups")
    return [shutil.which("setpriv"), *(user if reachable else ("--bounding-set=-all", "--inh-caps=-all"))]


def test_an_ordinary_user_measures_and_reports_in_an_empty_folder_that_nobody_can_write(wheel, place):
    environment, empty, home = place / "clean environment", place / "empty", place / "home"
    shutil.copytree(sys.prefix, environment, symlinks=True)  # has all that the wheel needs, already compiled
    path = {"PATH": str(environment / "bin")}  # no compiler, no MPI of the system
    call(environment / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "pscale", cwd=place)
    install = ROOT / "packaging" / "github-action" / "install.sh"
    call(install, cwd=place, env={**path, "PSCALE_INSTALL": f"--no-index {wheel}[mpich]"})
    for folder in (empty, home):
        folder.mkdir()
    home.chmod(0o777)
    for path_ in (empty, environment, *environment.rglob("*")):
        if not path_.is_symlink():
            path_.chmod(path_.stat().st_mode & ~0o222)

    def user(*arguments):
        command = [
            *without_privileges(),
            environment / "bin" / "pscale",
            *arguments,
            "--reports",
            home / "runs",
        ]
        return call(*command, cwd=empty, env={**path, "HOME": str(home), "LANG": "C.UTF-8"})

    found = {finding["topic"]: finding for finding in json.loads(user("doctor", "--json"))}
    assert found["kernels"]["text"].startswith("fused in C")
    user("run", "quick")
    assert user("report").startswith("quick")
    assert list(home.glob("runs/quick/*/report.html"))
    assert list(empty.iterdir()) == []
