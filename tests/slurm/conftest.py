import os
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from login_node import LoginNode

SCRIPT = Path(__file__).parent / "cluster"
PORTS, EACH = range(18000, 28000, 10), 5  # below those that systems hand out


def missing():
    places = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # daemons are not on the path of every login
    if not all(shutil.which(name, path=places) for name in ("slurmctld", "slurmd", "munged", "sbatch")):
        return "Slurm is not installed: tests/slurm/cluster install"
    return "" if os.geteuid() == 0 else "a virtual Slurm cluster needs root"


def free_port():
    """Return the first of so many free ports as a cluster takes, as far from others' who ask as can be."""
    first = os.getpid() % len(PORTS)
    for port in (*PORTS[first:], *PORTS[:first]):
        with ExitStack() as taken:
            try:
                for number in range(EACH):
                    taken.enter_context(socket.create_server(("", port + number)))
            except OSError:
                continue
            return str(port)
    pytest.fail("no ports are free")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Start a virtual cluster of four nodes, where this is the login node."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    folder = tmp_path_factory.mktemp("slurm")
    try:
        started = subprocess.run(
            [SCRIPT, "start", folder, free_port()], capture_output=True, text=True, check=False
        )
        assert started.returncode == 0, started.stdout + started.stderr
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
            # MPICH publishes UCX addresses in 4 KiB of stack memory; with too few zeros in it lines exceed
            # the buffer of Slurm's pmi2 and launches fail at random
            patch.setenv("MPIR_CVAR_CH4_NETMOD", "ofi")
            patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
            yield folder
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=False)


@pytest.fixture(scope="session")
def too_long(cluster, tmp_path_factory):  # noqa: ARG001
    """Begin with a job that takes too long; Slurm has no limit below a minute, but can be told of an end."""
    login = LoginNode(tmp_path_factory.mktemp("too long"))
    options = ("--set", "train.steps=1000000", "--set", "launch.time_limit=10m", "--detach")
    login.run(login.weak, "--only", "ranks == 1", "--set", "launch.job_time_limit=1m", *options)

    def end_soon():
        command = ("scontrol", "update", f"jobid={login.job_at_work()}", "EndTime=now+1")
        subprocess.run(command, capture_output=True, check=True)

    threading.Thread(target=end_soon).start()
    return login


@pytest.fixture
def login(too_long, tmp_path):  # noqa: ARG001
    folder = tmp_path / "a folder with $(touch pwned) 'quotes' 100%"
    folder.mkdir()
    return LoginNode(folder)
