"""Under a real MPI ghosts make the calls of the trainer, and their report says that they are ghosts."""

import pytest

pytestmark = pytest.mark.slow

GHOST = " · ghost computing at 2 GFLOP/s"

SUITE = """
name: ghosts
scaling: strong
ranks: 4
model: {kind: gpt, layers: 4, width: 32, heads: 4, sequence: 32}
data: {kind: synthetic}
train: {batch: 8, micro_batches: 4, steps: 4, warmup: 1}
timing: {gemm_peak: false, overhead_steps: 1}
launch: {oversubscribe: true, time_limit: 10m}
repeat: 1
sweep:
  ghost.gflops: [0, 2]
  cases:
  - {pp: 2, dp: 2, zero: 1}
  - {tp: 2, cp: 2, sp: true}
"""


def test_ghosts_make_the_same_calls_and_say_so(cli):
    results = cli.run(cli.suite(SUITE), report=True)
    made = {}
    for row in results.rows("calls"):
        if row["count"]:  # else a message only left there
            key = tuple(row[name] for name in ("rank", "step", "phase", "axis", "verb"))
            made.setdefault(row["case"], {})[key] = row["count"], row["bytes"]
    assert [row["status"] for row in results.cases.values()] == 4 * ["ok"]
    found = {label: made[row["case"]] for label, row in results.cases.items()}
    ghosts = [label for label in found if label.endswith(GHOST)]
    assert len(ghosts) == 2
    for label in ghosts:
        assert found[label] == found[label.removesuffix(GHOST)]
    page = (results.folder / "report.md").read_text()
    assert "Compute was replaced by sleeping, at 2 GFLOP/s per rank" in page
