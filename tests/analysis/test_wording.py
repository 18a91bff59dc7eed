"""Times in sentences: a unit that suits, and no exponent."""

import pytest

from pscale.analysis.wording import duration

SAID = {
    0.0: "0",
    4.2e-8: "0.042 µs",
    3.14159e-4: "314 µs",
    1.5e-3: "1.5 ms",
    -0.25: "-250 ms",
    1.32: "1.32 s",
    1234.5: "1234 s",
}


@pytest.mark.parametrize("seconds", SAID)
def test_a_time_has_the_unit_that_suits_it_and_no_exponent(seconds):
    assert duration(seconds) == SAID[seconds]
