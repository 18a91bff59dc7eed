import signal

import pytest
from threadpoolctl import threadpool_limits

from pscale.nn.kernels import piece


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread():
    """Ranks that are threads have small matrices and each other to share the cores with."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session", autouse=True)
def interrupts_work():
    """Let Ctrl-C work here and in child processes also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def power_stays_on():
    """Do not wait for the disk: nobody pulls the plug of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture
def small_tiles(monkeypatch):
    """Let few tokens make many tiles of scores."""
    monkeypatch.setattr(piece, "ROWS", 4)
    monkeypatch.setattr(piece, "TILE", 8)
    piece.cut.cache_clear()
    yield
    piece.cut.cache_clear()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Return where the data of runs on threads are kept: made once for all of them."""
    return tmp_path_factory.mktemp("files")
