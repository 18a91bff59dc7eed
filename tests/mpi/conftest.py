import sys
from pathlib import Path

import pytest
from whole_runs import TINY, Cli

PLANS = """
name: plans
scaling: strong
model: {kind: gpt, layers: 4, width: 32, heads: 4, sequence: 32, vocabulary: 257}
data: {kind: synthetic}
train: {batch: 8, micro_batches: 2, steps: 4, warmup: 1}
ranks: 4
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0, trace: true}
launch: {oversubscribe: true, time_limit: 10m}
sweep:
  cases:
  - {reduction: gather-broadcast}
  - {dp: 2, tp: 2, sp: true, zero: 3}
  - {cp: 4}
  - {pp: 4, schedule: zero-bubble, micro_batches: 4}
  - {pp: 2, schedule: interleaved, virtual_stages: 2, dp: 2, zero: 1, offload: optimizer}
"""


@pytest.fixture
def cli(tmp_path):
    folder = tmp_path / "a folder with $(touch pwned) 'quotes'"
    folder.mkdir()
    return Cli(folder)


@pytest.fixture
def tiny(cli):
    return cli.suite(TINY)


@pytest.fixture(scope="session")
def compilers(tmp_path_factory):
    """The folder of the MPI library's compilers: that of MPICH works in a path without spaces only."""
    link = tmp_path_factory.mktemp("compilers") / "environment"
    link.symlink_to(Path(sys.prefix))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("I_MPI_ROOT", str(link))  # where those of Intel MPI look
        yield link / "bin"


@pytest.fixture(scope="session")
def plans(tmp_path_factory):
    """A traced run of plans that between them make every kind of call."""
    cli = Cli(tmp_path_factory.mktemp("plans"))
    return cli.run(cli.suite(PLANS), report=True)
