"""Numbers as people read them: a unit that suits, no exponent, no markup."""

import pytest

from pscale.analysis import text
from pscale.analysis.stats import Estimate

TIMES = {
    0.0: ("0", "0"),
    4.2e-8: ("0.042 µs", "0.042 µs"),
    3.14159e-4: ("314.2 µs", "314 µs"),
    0.14807: ("148.1 ms", "148 ms"),
    -0.25: ("-250 ms", "-250 ms"),
    1.3249: ("1.325 s", "1.32 s"),
    12345.6: ("12346 s", "12346 s"),
}


@pytest.mark.parametrize("seconds", TIMES)
def test_a_time_has_the_unit_that_suits_it_and_no_exponent(seconds):
    assert (text.duration(seconds), text.duration_3(seconds)) == TIMES[seconds]


def test_bounds_share_the_unit_of_their_value_and_are_not_written_where_they_say_nothing():
    assert text.duration_interval(Estimate(value=1.01, low=0.95, high=1.07)) == "0.95–1.07"
    assert text.percent_interval(Estimate(value=0.9, low=0.8765, high=0.912)) == "87.6–91.2%"
    assert text.ratio_interval(Estimate(value=0.9, low=0.1, high=3.0)) == "too wide"
    assert text.duration_interval(Estimate(value=0.9)) == text.change_interval(None) == "-"


def test_fractions_bytes_and_rates():
    assert [text.size_of(count) for count in (12, 2048, 40_000_000, 3 << 30)] == [
        *("12 B", "2 KiB", "38.1 MiB", "3 GiB")
    ]
    assert [text.rate(value, "B/s") for value in (4e9, 1.5e6, 12.0)] == ["4 GB/s", "1.5 MB/s", "12 B/s"]
    assert (text.number(123456.0), text.percent(-0.0001)) == ("123456", "0.0%")


def test_control_characters_are_blanked():
    assert text.clean("a\x1b[31mb\nc\td\u202ee") == "a [31mb c d e"
