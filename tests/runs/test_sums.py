import math

import pyarrow as pa
import pytest

from pscale.runs import store, sums


def rows_of_steps(**columns):
    """Return two ranks with two steps of one phase each, and what is missing as null."""
    known = {"repeat": [0] * 4, "rank": [0, 0, 1, 1], "step": [0, 1, 0, 1], "end_s": [1.0, 2.0, 1.5, 2.5]}
    known |= {"case": ["a"] * 4, "phase": ["forward"] * 4, **columns}
    schema = store.schema_of("steps", sums.STEP_COLUMNS, ["case", "phase"])
    return pa.table({name: known.get(name, [None] * 4) for name in schema.names}, schema)


def rows(tables, name):
    return [tuple(row.values()) for row in tables[name].to_pylist()]


def test_phases_are_summed_over_steps_and_what_is_missing_stays_so():
    found = sums.steps(rows_of_steps(compute_s=[1.0, 2.0, 4.0, None]))["phases"]
    assert found["compute_s"].to_pylist() == [3.0, 4.0]
    assert found["wall_s"].to_pylist() == [None, None]


def test_a_step_ends_with_its_last_rank_and_has_the_largest_delay():
    found = sums.steps(rows_of_steps(injected_delay_s=[0.0, 0.25, 0.5, 0.0]))
    assert rows(found, "ends") == [("a", 0, 0, 1.5, 0.5), ("a", 0, 1, 2.5, 0.25)]
    assert rows(found, "seats") == [("a", 0, 0, 2), ("a", 0, 1, 2)]


def test_a_rank_causes_the_waits_of_others_less_its_own():
    caused, waited = [0.5, None, 0.1, 0.0], [0.2, 0.7, 0.3, 0.0]
    found = sums.steps(rows_of_steps(caused_wait_s=caused, wait_s=waited))
    assert rows(found, "caused_waits") == [("a", 0, 0, 0, 0.3), ("a", 0, 1, 0, 0.0), ("a", 0, 1, 1, 0.0)]
    assert rows(found, "waited") == [("a", 0, 0.5)]


@pytest.mark.parametrize(
    "columns",
    [{"compute_s": [1.0, math.nan, 1.0, 1.0]}, {"wait_s": [math.inf, 0.0, 0.0, 0.0]}, {"end_s": [0.0] * 4}],
)
def test_launches_with_times_that_are_no_numbers_or_without_time_are_broken(columns):
    assert set(rows(sums.steps(rows_of_steps(**columns)), "broken")) == {("a", 0)}


def test_missing_times_break_nothing():
    assert not rows(sums.steps(rows_of_steps()), "broken")


def test_the_bound_of_clocks_counts_once_a_call():
    schema = store.schema_of("calls", sums.CALL_COLUMNS, ["case", "axis", "verb"])
    known = {"case": ["a"] * 2, "repeat": [0] * 2, "rank": [0, 1], "axis": ["dp"] * 2, "count": [3, 2]}
    known |= {"verb": ["all_reduce"] * 2, "clock_bound_s": [0.5, None], "wait_s": [1.0, 2.0]}
    table = pa.table({name: known.get(name, [None] * 2) for name in schema.names}, schema)
    (found,) = sums.calls(table)["calls"].to_pylist()
    assert (found["count"], found["wait_s"], found["bound_s"]) == (5, 3.0, 1.5)


def test_columns_take_the_place_of_those_with_their_names():
    table = sums.with_columns(pa.table({"rank": [0, 1], "wait_s": [1.0, 2.0]}), {"wait_s": [0.5, math.nan]})
    assert table.to_pydict() == {"rank": [0, 1], "wait_s": [0.5, None]}
