import pytest
from whole_runs import Cli


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)
