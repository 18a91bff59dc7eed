import math

import pytest

from pscale.errors import UsageError
from pscale.simulator.network import IDEAL, Link
from pscale.suite.network import read_network


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("dp: {latency: 5us, bandwidth: 10GB/s}", {"dp": Link(latency_s=5e-6, bytes_per_s=1e10)}),
        ("{dp: {latency: 0.5 ms}, all: ideal}", {"dp": Link(latency_s=5e-4), "all": IDEAL}),
        ("dp+cp: {bandwidth: 100Gbit/s}", {"dp+cp": Link(bytes_per_s=12.5e9)}),
        ("pp: {latency: 250ns, bandwidth: 1GiB/s}", {"pp": Link(latency_s=2.5e-7, bytes_per_s=2.0**30)}),
    ],
)
def test_networks_are_read_as_people_write_them(text, links):
    found = read_network(text).links
    assert found.keys() == links.keys()
    for axis, link in links.items():
        assert math.isclose(found[axis].latency_s, link.latency_s)
        assert found[axis].bytes_per_s == link.bytes_per_s


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a network"),
        ("fast", "not a network"),
        ("dp: [", "not YAML"),
        ("dq: ideal", "'dq' is no axis"),
        ("dp: fast", "latency and bandwidth, or ideal"),
        ("dp: {speed: 3}", "latency and bandwidth, or ideal"),
        ("dp: {latency: 5}", "a latency such as 5us, got '5'"),
        ("dp: {bandwidth: 10GB}", "a bandwidth such as 10GB/s"),
        ("dp: {bandwidth: 0GB/s}", "above 0"),
    ],
)
def test_what_is_no_network_is_answered_with_what_was_expected(text, said):
    with pytest.raises(UsageError) as error:
        read_network(text)
    assert said in str(error.value)
    assert "such as 'dp: {latency: 5us, bandwidth: 10GB/s}'" in str(error.value)
