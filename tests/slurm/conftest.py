import pytest
from login_node import LoginNode, virtual_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start a virtual cluster of four nodes, where this is the login node."""
    with virtual_cluster(tmp_path_factory) as folder:
        yield folder


@pytest.fixture
def login(cluster, tmp_path):  # noqa: ARG001
    folder = tmp_path / "a folder with $(touch pwned) 'quotes' 100%"
    folder.mkdir()
    return LoginNode(folder)
