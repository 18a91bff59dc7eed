"""Under a real MPI: what does not fit is predicted and not started, and what runs is measured."""

from whole_runs import TINY

from pscale.parallel.memory import KINDS


def test_a_case_that_needs_more_than_the_limit_is_skipped_and_its_memory_predicted(cli):
    suite = cli.suite(TINY.replace("time_limit: 2m", "time_limit: 2m, memory_limit: 200MiB"))
    results = cli.run(suite, report=True)
    rows = results.cases
    assert {row["ranks"]: row["status"] for row in rows.values()} == {1: "ok", 2: "skipped", 4: "skipped"}
    for row in rows.values():
        assert row["parameters"] == rows["1 rank"]["parameters"] > 0
        assert sum(row[f"predicted_{kind}_bytes"] for kind in KINDS) > 2 << 20
    assert "memory_limit" in rows["2 ranks"]["reason"]
    (rank,) = results.rows("ranks")
    assert all(rank[f"{kind}_bytes"] == rows["1 rank"][f"predicted_{kind}_bytes"] for kind in KINDS)
    assert rank["peak_of_steps"]
    assert rank["peak_rss_bytes"] > rank["empty_rss_bytes"] > 20 << 20
    assert "predicted alone" in (results.folder / "report.md").read_text()
