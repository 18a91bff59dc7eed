import os

import pytest

from pscale.worker import usage
from pscale.worker.usage import Usage, host_usage, used

STAT = """cpu  1000 0 500 9000 0 10 20 40 0 0
cpu0 {busy} 10 200 4000 0 5 15 {steal} 7 0
cpu1 300 0 300 5000 0 5 5 20 0 0
cpu10 9999 9999 9999 9999 9999 9999 9999 9999 0 0
intr 1 2 3
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make up what a host tells."""
    monkeypatch.setattr(usage, "throttled_s", lambda: None)

    def tell(*, busy=700, steal=20, clock=2_400_000, throttles=3):
        (tmp_path / "stat").write_text(STAT.format(busy=busy, steal=steal))
        (tmp_path / "loadavg").write_text("1.50 2.00 3.00 1/100 4242\n")
        for cpu in (0, 1):
            for name, value in {
                "cpufreq/scaling_governor": "powersave",
                "cpufreq/scaling_cur_freq": clock + 200_000 * cpu,
                "thermal_throttle/core_throttle_count": throttles,
            }.items():
                path = tmp_path / f"cpu{cpu}" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{value}\n")
        return tmp_path, tmp_path

    return tell


def test_the_accounts_of_the_cpus_asked_for_are_added_up(machine):
    counts, state = host_usage([0, 1], *machine())
    assert counts["busy_s"] == pytest.approx((700 + 10 + 200 + 5 + 15 + 300 + 300 + 5 + 5) / 100)
    assert counts["steal_s"] == pytest.approx(0.4)
    assert counts["thermal_throttles"] == 6
    assert state == {"governor": "powersave", "load_average": 1.5, "clock_mhz": pytest.approx(2500)}
    assert host_usage([1], *machine())[0]["busy_s"] == pytest.approx(6.1)


def test_what_happened_between_two_readings_is_their_difference(machine):
    before = reading({"7": 1.0, "8": 2.0}, *host_usage([0], *machine()))
    later = host_usage([0], *machine(busy=900, steal=70, clock=1_200_000, throttles=5))
    after = reading({"7": 1.5, "8": 2.0, "9": 3.0}, *later)
    assert used(before, after) == {
        "busy_s": pytest.approx(2.0),
        "steal_s": pytest.approx(0.5),
        "thermal_throttles": 2,
        "cgroup_throttled_s": None,
        "governor": "powersave",
        "clock_mhz": 1200,
        "load_average": 1.5,
        "thread_cpu_s": [0.5, 3.0, 0.0],  # the main thread first, then the busiest
        "thread_cpus": ["on 7", "on 9", "on 8"],
    }


def reading(threads, counts, state):
    cpus = {thread: f"on {thread}" for thread in threads}
    return Usage(counts=counts, thread_cpu_s=threads, thread_cpus=cpus, state=state)


def test_a_system_that_tells_nothing_gives_no_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "throttled_s", lambda: None)
    counts, state = host_usage([0], tmp_path, tmp_path)
    assert {*counts.values(), *state.values()} == {None}
    nothing = reading({"7": 0.0}, counts, state)
    assert [used(nothing, nothing)[name] for name in counts] == [None] * len(counts)


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="not Linux")  # noqa: PTH110
def test_this_machine_counts_the_work_that_is_done_on_it():
    cpus = sorted(os.sched_getaffinity(0))
    (before, _), spent = host_usage(cpus), os.times().user
    while os.times().user - spent < 0.2:
        pass
    after, _ = host_usage(cpus)  # what is stolen may be counted as the process's own
    assert sum(after[name] - before[name] for name in ("busy_s", "steal_s")) >= 0.15
