import pytest
from whole_runs import TINY, Cli


@pytest.fixture
def cli(tmp_path):
    folder = tmp_path / "a folder with $(touch pwned) 'quotes'"
    folder.mkdir()
    return Cli(folder)


@pytest.fixture
def tiny(cli):
    return cli.suite(TINY)
