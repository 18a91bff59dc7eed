"""The options of `pscale watch`."""

import pytest

from pscale.cli.options import host_list, seconds
from pscale.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"), [("15", 15.0), ("0.5", 0.5), ("15s", 15.0), ("10m", 600.0), ("1h 30m", 5400.0)]
)
def test_times_are_read_as_in_a_suite_and_plain_numbers_are_seconds(text, expected):
    assert seconds("--time-limit", text) == expected


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "soon", "nan", "inf", "5 parsecs"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match=r"--time-limit: .*expected"):
        seconds("--time-limit", text)


def test_hosts_are_split_at_commas():
    assert host_list("lab1:16, lab2:8") == ("lab1:16", "lab2:8")
    assert host_list(None) == ()
