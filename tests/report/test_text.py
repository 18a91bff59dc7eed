import pytest

from pscale.analysis.stats import Estimate
from pscale.report import text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.14807, "148.1 ms"),
        (2.5, "2.5 s"),
        (12.3e-6, "12.3 µs"),
        (1.5e-3, "1.5 ms"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(seconds, shown):
    assert text.duration(seconds) == shown


def test_the_bounds_of_a_time_share_the_unit_of_its_value():
    assert text.duration_interval(Estimate(value=1.01, low=0.95, high=1.07)) == "0.95–1.07"
    assert text.duration_interval(Estimate(value=0.9)) == "-"


def test_fractions_bytes_and_rates():
    assert text.percent_interval(Estimate(value=0.9, low=0.8765, high=0.912)) == "87.6–91.2%"
    assert [text.size_of(count) for count in (None, 12, 2048, 40_000_000, 3 << 30)] == [
        *("-", "12 B", "2 KiB", "38.1 MiB", "3 GiB")
    ]
    assert [text.rate(value, "B/s") for value in (4e9, 1.5e6, 12.0)] == ["4 GB/s", "1.5 MB/s", "12 B/s"]
    assert text.digits(123456.0) == "123456"


def test_control_characters_are_blanked():
    assert text.clean("a\x1b[31mb\nc\td\u202ee") == "a [31mb c d e"
