"""What documents and journals of others have to look like."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import pytest

from pscale.config import Case
from pscale.runs.run_events import Enough
from pscale.runs.run_shape import mismatch


class Auto(TypedDict):
    most: int


class Document(TypedDict, total=False):
    auto: Auto | None
    cases: list[Case]


@pytest.mark.parametrize(
    ("hint", "value", "wrong"),
    [
        (int, 7, ""),
        (int, True, "it: expected a valid integer, got true"),
        (int, 1.0, "it: expected a valid integer, got 1.0"),
        (int, 2**53 + 1, "it: expected less than or equal to 9007199254740992, got 9007199254740993"),
        (float, 7, ""),
        (float, float("nan"), "it: expected a number, got NaN"),
        (float, 10**17, "it: expected a number, got 100000000000000000"),
        (float, False, "it: expected a number, got false"),
        (float | None, None, ""),
        (float | None, "7", 'it: expected a number, got "7"'),
        (int | str, None, "it: expected another kind of value, got null"),
        (Literal["weak"], "a word of another version", ""),
        (Literal["weak"], 1, "it: expected a valid string, got 1"),
        (tuple[str, int], ["a", 1], ""),
        (tuple[str, int], ["a"], "[1]: is missing"),
        (tuple[int, ...], [1, "2"], '[1]: expected a valid integer, got "2"'),
        (Sequence[float], [1.0, [2.0]], "[1]: expected a number, got [2.0]"),
        (Mapping[str, str], {"a": "b", "c": 1}, "c: expected a valid string, got 1"),
        (Any, {"a": object}, ""),
        (Document, {"auto": None, "unknown": 1}, ""),
        (Document, {"auto": {}}, "auto.most: is missing"),
        (
            Document,
            {"cases": [{}, {"launch": {"env": []}}]},
            "cases[1].launch.env: expected a valid dictionary, got []",
        ),
        (Document, [], "it: expected a valid dictionary, got []"),
    ],
)
def test_the_first_thing_is_named_that_is_not_what_its_type_says(hint, value, wrong):
    assert mismatch(hint, value) == wrong


def test_of_what_this_version_has_written_no_field_may_be_missing():
    assert mismatch(Enough, {}) == ""
    assert mismatch(Enough, {}, whole=True) == "case: is missing"
    assert mismatch(Enough, {"case": "a", "of a later version": 1}, whole=True) == ""
