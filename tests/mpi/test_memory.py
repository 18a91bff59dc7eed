"""Under a real MPI: what does not fit is predicted and not started, and what runs is measured."""

import pytest
from whole_runs import TINY

from pscale.config.metrics import MEMORY_KINDS as KINDS

pytestmark = pytest.mark.slow


def test_a_case_that_needs_more_than_the_limit_is_skipped_and_its_memory_predicted(cli):
    suite = cli.suite(TINY.replace("time_limit: 10m", "time_limit: 10m, memory_limit: 200MiB"))
    results = cli.run(suite, report=True)
    rows = results.cases
    assert {row["ranks"]: row["status"] for row in rows.values()} == {1: "ok", 2: "skipped", 4: "skipped"}
    for row in rows.values():
        assert row["parameters"] == rows["1 rank"]["parameters"] > 0
        assert sum(row[f"predicted_{kind}_bytes"] for kind in KINDS) > 2 << 20
    assert "memory_limit" in rows["2 ranks"]["reason"]
    (rank,) = results.rows("ranks")
    assert all(rank[f"{kind}_bytes"] == rows["1 rank"][f"predicted_{kind}_bytes"] for kind in KINDS)
    assert rank["peak_rss_of_steps"]
    assert rank["peak_rss_bytes"] > rank["baseline_rss_bytes"] > 20 << 20
    assert "predicted only" in (results.folder / "report.md").read_text()
    verdicts = {verdict["ranks"]: verdict for verdict in cli.verify(suite, code=1)}
    assert [verdicts[ranks]["passed"] for ranks in (1, 2, 4)] == [True, False, False]
    assert "memory_limit" in verdicts[2]["reason"]


LARGE = """
name: large
scaling: throughput
model: {kind: gpt, layers: 2, width: 256, heads: 4, sequence: 512, vocabulary: 256}
data: {kind: synthetic}
train: {batch: 24, steps: 1, warmup: 1}
timing: {gemm_peak: false, overhead_steps: 0}
repeat: 1
"""


def test_the_system_measures_what_was_predicted(cli):
    results = cli.run(cli.suite(LARGE))
    (row,), (rank,) = results.cases.values(), results.rows("ranks")
    predicted = sum(row[f"predicted_{kind}_bytes"] for kind in KINDS)
    assert predicted > 500 << 20, "or what libraries take, which differs between machines, would be seen"
    assert rank["peak_rss_bytes"] - rank["baseline_rss_bytes"] == pytest.approx(predicted, rel=0.05)
