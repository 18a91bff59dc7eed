"""Real runs that are added to the history of their suite when they have ended."""

import pytest

from pscale.runs import history

pytestmark = pytest.mark.slow

OPTIONS = ("--only", "ranks <= 2", "--set", "timing.pace=true", "--no-report", "--new", "--record")


def test_runs_with_record_are_in_the_history_with_times_counters_and_fingerprint(cli, tiny):
    for _ in range(2):
        cli.call("run", tiny, "--reports", cli.reports, *OPTIONS)
    known = history.read(cli.folder / "history", "tiny")
    assert known.damaged == ()
    first, second = ({entry.label: entry for entry in known.entries[start : start + 2]} for start in (0, 2))
    assert list(first) == list(second) == ["1 rank", "2 ranks"]
    for label, entry in first.items():
        assert entry.run != second[label].run
        assert len(entry.steps) == len(entry.levels) == len(entry.paces) == 1
        assert entry.counters == second[label].counters, "what is counted is exact"
        assert (entry.code, entry.fingerprint) == (second[label].code, second[label].fingerprint)
        assert {"MPI", "BLAS", "operating system", "host", "OMP_NUM_THREADS"} <= set(entry.fingerprint)
        assert entry.times_s["backward compute"] > 0
    assert first["2 ranks"].counters["calls of dp all_reduce"] > 0
    assert "calls of dp all_reduce" not in first["1 rank"].counters
