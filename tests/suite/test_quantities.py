import math

import pytest

from pscale.config.metrics import conversion, duration_s, size_bytes
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
        ("dq: ideal", "there is no axis 'dq'"),
        ("dp: fast", "latency and bandwidth, or is ideal"),
        ("dp: {speed: 3}", "latency and bandwidth, or is ideal"),
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


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (duration_s, "10us", 1e-5),
        (duration_s, "10\u00b5s", 1e-5),  # the micro sign
        (duration_s, "10\u03bcs", 1e-5),  # the Greek letter
        (duration_s, "5 min", 300),
        (duration_s, "1h 30m", 5400),
        (duration_s, "1h30m", 5400),
        (duration_s, "01:30:00", 5400),
        (size_bytes, "1GB", 10**9),
        (size_bytes, "1.5GiB", 3 << 29),
        (size_bytes, "512KiB", 1 << 19),
    ],
)
@pytest.mark.figure
def test_times_and_sizes_are_read_as_people_write_them(read, text, value):
    assert read(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (duration_s, "1:30"),
        (duration_s, "5 minutes"),
        (duration_s, "1:99:00"),
        (size_bytes, "1.5B"),
        (size_bytes, "1Gb"),
    ],
)
def test_a_time_or_size_that_can_be_read_in_two_ways_is_refused(read, text):
    with pytest.raises(ValueError, match=text):
        read(text)


@pytest.mark.parametrize(
    ("unit", "other", "factor"),
    [
        ("ms", "s", 1e-3),
        ("\u00b5s", "\u03bcs", 1.0),
        ("GB/s", "MB/s", 1e3),
        ("MiB", "GiB", 2**-10),
        ("GFLOP/s", "TFLOP/s", 1e-3),
        ("Mflops", "GFLOP/s", 1e-3),
        ("Gbit/s", "GB/s", 0.125),
        ("%", "1", 0.01),
        ("ns/day", "ns/day", 1.0),
        ("furlong", "furlong", 1.0),
        ("s", "B", None),
        ("GB", "GB/s", None),
        ("", "s", None),
    ],
)
@pytest.mark.figure
def test_units_of_the_same_thing_convert_and_others_do_not(unit, other, factor):
    assert conversion(unit, other) == (None if factor is None else pytest.approx(factor, rel=1e-12))
