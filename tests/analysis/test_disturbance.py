import pandas as pd
import pytest

from pscale.analysis.disturbance import disturbances

COLUMNS = ("steal_s", "busy_s", "quota_s", "throttled", "clock_mhz", "load_average", "cpu_s")


def told(*rows, cores=2, bound=False):
    """Return the disturbances that the given ranks tell of, each one a launch of two seconds on CPU 0."""
    usual = {"host": "node", "cpus": "0", "wall_s": 2.0, "involuntary_switches": 0, "governor": None}
    ranks = [
        usual | dict.fromkeys(COLUMNS, None) | {"repeat": repeat} | row for repeat, row in enumerate(rows)
    ]
    table = pd.DataFrame(ranks).astype(dict.fromkeys(COLUMNS, "float64"))
    return dict(disturbances(table, cores, bound=bound))


def test_a_system_that_tells_nothing_is_not_accused():
    assert told({}, {}) == {}


def test_cpus_shared_by_the_ranks_of_a_launch_are_counted_once():
    shared = {"repeat": 0, "cpus": "0-3", "busy_s": 4.0, "cpu_s": 2.0}
    assert told(shared, shared) == {}
    busy = shared | {"busy_s": 6.0}
    assert "used 1 cores' worth" in told(busy, busy)["others"]


def test_cpus_of_each_rank_are_added_up():
    rows = [{"repeat": 0, "cpus": str(cpu), "busy_s": 2.0, "cpu_s": 1.5} for cpu in range(4)]
    assert "used 1 cores' worth" in told(*rows)["others"]


def test_ranks_of_two_hosts_have_cpus_of_their_own():
    rows = [{"repeat": 0, "host": host, "busy_s": 2.0, "cpu_s": 1.9} for host in ("a", "b")]
    assert told(*rows) == {}


def test_ranks_that_are_bound_are_not_to_be_bound():
    for bound, said in ((False, "Stop it, bind ranks to cores, or leave"), (True, "Stop it, or leave")):
        assert said in told({"involuntary_switches": 100}, bound=bound)["switches"]


def test_a_clock_that_changes_between_launches_is_told_with_its_governor():
    rows = [{"clock_mhz": 2000, "governor": "powersave"}, {"clock_mhz": 3100, "governor": "powersave"}]
    assert "between 2.00 and 3.10 GHz (governor: powersave)" in told(*rows)["frequency"]
    assert told({"clock_mhz": 3000}, {"clock_mhz": 3100}) == {}


@pytest.mark.parametrize(("cpus", "share"), [("0", "10%"), ("0-3", "2%")])
def test_stolen_time_is_a_share_of_all_cpus_of_a_rank(cpus, share):
    found = told({"cpus": cpus, "steal_s": 0.2})
    assert share in found["steal"]
