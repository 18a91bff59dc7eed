import gc
import signal
import sys
from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pytest
from patience import LIMIT_S, share

from pscale.blas import forwarding

# Ranks that are Python threads have one thread each: OpenMP takes that from the environment when it is
# loaded, and a BLAS with threads of its own starts them then. Tests have the BLAS of `launch.blas: auto`.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setenv("OPENBLAS_NUM_THREADS", "1")
    forwarding.use("auto")
    from threadpoolctl import threadpool_limits

    from pscale.nn.kernels import attention_block, fused  # noqa: F401


PAGES = Path(__file__).with_name("test_documents.py")
# Modules whose tests take minutes, one after the other.
LONGEST = {PAGES.name, "test_wheel.py", "test_plans.py"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep a share of the parameters of a slow test where that is wanted; all pages."""
    products = defaultdict(list)
    for item in items:
        if item.path != PAGES and item.get_closest_marker("slow") and item.nodeid[-1] == "]":
            products[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for same in products.values():
        same.sort(key=lambda item: crc32(item.nodeid.encode()))
        left_out.update({*same}.difference(share(same)))
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish():
    """Keep the collector of garbage from going through all modules and tests again and again."""
    gc.freeze()


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


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Remember nothing of other tests, nor in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def patience():
    """Wait for programs that answer at once as long as other work on the machine may take."""
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("launcher._ANSWER_LIMIT_S", "doctor._LIMIT_S", "provenance._GIT_LIMIT_S"):
            patch.setattr(f"pscale.launch.{limit}", LIMIT_S)
        yield


# Ranks outnumber cores: one that waits sleeps a moment, so that those it waits for can run, instead of asking
# again at once. Open MPI looks for fabrics between hosts for a second at every start; there is one host.
ON_FEW_CORES = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "OMPI_MCA_btl": "^ofi",
}


@pytest.fixture(scope="session", autouse=True)
def on_few_cores():
    """Let ranks share the cores well."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ON_FEW_CORES.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def pscale(monkeypatch, capsys, tmp_path):
    """Run the command line here in an empty folder; return its exit code, standard output and error."""

    def call(*arguments):
        from pscale.cli import main  # noqa: PLC0415 - not what tests of ranks begin with

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["pscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


@pytest.fixture
def small_tiles(monkeypatch):
    """Let few tokens make many tiles of scores."""
    monkeypatch.setattr(attention_block, "ROWS", 4)
    monkeypatch.setattr(attention_block, "TILE", 8)
    attention_block.cut.cache_clear()
    yield
    attention_block.cut.cache_clear()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Return where the data of runs on threads are kept: made once for all of them."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="session")
def compilers(tmp_path_factory):
    """The folder of the MPI library's compilers: that of MPICH works in a path without spaces only."""
    link = tmp_path_factory.mktemp("compilers") / "environment"
    link.symlink_to(Path(sys.prefix))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("I_MPI_ROOT", str(link))  # where those of Intel MPI look
        yield link / "bin"
