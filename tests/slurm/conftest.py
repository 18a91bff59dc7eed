import subprocess
import threading

import pytest
from login_node import LoginNode, virtual_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start a virtual cluster of four nodes, where this is the login node."""
    with virtual_cluster(tmp_path_factory) as folder:
        yield folder


@pytest.fixture(scope="module")
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
