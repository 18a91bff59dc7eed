import os
from dataclasses import replace

import pytest

from pscale.launch import machine
from pscale.runs import host


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_the_tightest_limit_of_all_enclosing_control_groups_counts(tmp_path):
    mount, own = tmp_path / "cgroup", tmp_path / "self"
    group(mount / "batch", cpu__max="400000 100000", memory__max="max")
    group(mount / "batch" / "job", cpu__max="max 100000", memory__max="4096")
    own.write_text("0::/batch/job\n")
    assert host.cpu_limit(mount, own) == 4
    assert host.memory_limit(mount, own) == 4096


def test_limits_of_the_first_version_of_control_groups_are_understood(tmp_path):
    mount, own = tmp_path / "cgroup", tmp_path / "self"
    group(mount / "cpu,cpuacct", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    group(mount / "memory" / "a", memory__limit_in_bytes="8192")
    own.write_text("4:memory:/a\n2:cpu,cpuacct:/seen/from/outside\n0::/\n")
    assert host.cpu_limit(mount, own) == 1.5
    assert host.memory_limit(mount, own) == 8192
    group(mount / "cpu,cpuacct", cpu__cfs_quota_us="-1")
    assert host.cpu_limit(mount, own) is None


@pytest.mark.parametrize(
    ("own", "folder", "told"),
    [("0::/job", "job", "throttled_usec 1500000"), ("3:cpu:/job", "cpu/job", "throttled_time 1500000000")],
)
def test_the_time_that_a_limit_held_the_job_back_is_found(tmp_path, own, folder, told):
    (tmp_path / "self").write_text(own)
    stat = tmp_path / "cgroup" / folder / "cpu.stat"
    stat.parent.mkdir(parents=True)
    stat.write_text(f"nr_periods 9\nnr_throttled 2\n{told}\n")
    assert host.throttled_s(tmp_path / "cgroup", tmp_path / "self") == pytest.approx(1.5)
    assert host.throttled_s(tmp_path / "none", tmp_path / "self") is None


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert host.cpu_limit(tmp_path / "none", tmp_path / "self") is None
    assert host.memory_limit(tmp_path / "none", tmp_path / "self") is None


def test_hardware_threads_are_grouped_by_core_and_those_outside_the_affinity_left_out(tmp_path):
    for cpu, siblings in enumerate(("0,4", "1,5", "2-3", "2-3", "0,4", "1,5")):
        group(tmp_path / f"cpu{cpu}" / "topology", thread_siblings_list=siblings)
    found = machine.core_cpus(frozenset({0, 1, 2, 3, 4}), tmp_path)
    assert found == ((0, 4), (1,), (2, 3))
    one = replace(machine.inspect(), core_cpus=found)
    assert (one.cores, one.cpus) == (3, 5)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_narrower_affinity_is_seen():
    everything = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(everything)})
        narrow = machine.inspect()
    finally:
        os.sched_setaffinity(0, everything)
    assert narrow.core_cpus == ((max(everything),),)
    assert narrow.restricted == (len(everything) > 1)
