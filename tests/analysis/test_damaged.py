"""What a report says of runs that are damaged, half written, foreign or empty."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.errors import ResultsError
from pscale.report.exports import csv_tables, render_json
from pscale.report.markup import render_markdown
from pscale.runs.schema import VERSION
from pscale.runs.store import part_path, read_part

pytestmark = pytest.mark.slow

POINTS = [Point(ranks=1, noise=0.01, losses=[3.0, 2.0]), Point(ranks=2, noise=0.01, transfer_s=0.01)]
ONE, TWO = (point.case.id for point in POINTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("whole") / "run", POINTS, joined=False)


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def summary(run):
    """Return the findings, which have to be writable in every way."""
    found = Findings(load(run))
    assert render_markdown(found)
    assert render_json(found)
    assert csv_tables(found)
    return found


def step_s(found, case):
    return found.case(case).step_s.value


@pytest.mark.parametrize("table", ["steps", "calls", "ranks", "kernels", "figures"])
def test_a_launch_with_a_part_cut_in_half_is_invalid_and_the_others_count(run, whole, table):
    part = part_path(run / "data", table, TWO, 1)
    part.write_bytes(part.read_bytes()[:-100] if part.exists() else b"PAR1")
    found = summary(run)
    (failure,) = found.rows("failures")
    assert (failure.case, failure.status, failure.repeats) == (TWO, "invalid", (1,))
    assert str(part) in failure.reason
    assert "run it again" in failure.reason
    assert found.case(TWO).launches == 2
    assert step_s(found, ONE) == step_s(summary(whole), ONE)


def test_notes_that_cannot_be_read_leave_out_a_timeline_and_nothing_else(run, whole):
    part_path(run / "data", "events", TWO, 0).write_bytes(b"PAR1")
    found = summary(run)
    assert found.timeline.empty
    assert found.complete
    assert step_s(found, TWO) == step_s(summary(whole), TWO)


@pytest.mark.parametrize("content", [b"", b"not Parquet"])
def test_a_row_that_is_lost_is_a_launch_that_has_not_run(run, content):
    part = part_path(run / "data", "cases", TWO, 2)
    part.write_bytes(content)
    found = summary(run)
    assert (found.case(TWO).launches, found.case(TWO).pending) == (2, 1)
    assert any(str(part) in note for note in found.notes)


@pytest.mark.parametrize("table", ["steps", "calls", "ranks"])
def test_a_part_that_is_missing_is_reported_and_the_rest_counts(run, table):
    part_path(run / "data", table, TWO, 0).unlink()
    found = summary(run)
    assert found.case(TWO).launches == 3
    assert step_s(found, TWO) == pytest.approx(0.11, rel=0.02)
    assert any("dp 2 ranks #1" in note for note in found.notes) is (table == "steps")


def test_without_run_json_the_rows_tell_what_ran(run, whole):
    (run / "run.json").unlink()
    found, before = summary(run), summary(whole)
    assert any("run.json is missing" in note for note in found.notes)
    assert [point.efficiency.value for point in found.rows("cases")] == pytest.approx(
        [point.efficiency.value for point in before.rows("cases")]
    )


def test_a_newer_part_is_refused_and_an_older_one_is_read(run):
    part = part_path(run / "data", "steps", TWO, 0)
    rows = read_part(run / "data", "steps", TWO, 0)
    pq.write_table(rows.drop_columns(["ideal_wait_s", "caused_wait_s", "injected_delay_s"]), part)
    assert summary(run).case(TWO).launches == 3
    pq.write_table(rows.replace_schema_metadata({"pscale_schema": str(VERSION + 1)}), part)
    with pytest.raises(ResultsError, match=r"newer pscale.*upgrade pscale"):
        load(run)


@pytest.mark.parametrize(
    ("table", "column", "places", "value"),
    [
        ("steps", "end_s", 3, np.nan),
        ("steps", "end_s", slice(None), 0.0),
        ("steps", "compute_s", 3, np.inf),
        ("steps", "wait_s", 3, np.nan),
        ("calls", "wait_s", 3, np.nan),
    ],
)
def test_times_that_are_no_numbers_or_zero_make_their_launch_invalid(run, table, column, places, value):
    rows = read_part(run / "data", table, TWO, 1)
    values = rows[column].to_numpy().copy()
    values[places] = value
    changed = rows.set_column(rows.schema.get_field_index(column), column, pa.array(values))
    pq.write_table(
        changed.replace_schema_metadata(rows.schema.metadata), part_path(run / "data", table, TWO, 1)
    )
    found = summary(run)
    (failure,) = found.rows("failures")
    assert (failure.case, failure.repeats) == (TWO, (1,))
    assert "impossible times: not finite" in failure.reason
    assert step_s(found, TWO) == pytest.approx(0.11, rel=0.02)


def test_without_any_wait_no_straggler_is_named_and_nothing_divides(tmp_path):
    points = [Point(ranks=1), Point(ranks=2)]
    found = summary(write_run(tmp_path / "run", points, joined=False))
    assert found.rows("stragglers") == []
    assert all(loss.serialisation.value == pytest.approx(0) for loss in found.rows("lost_time"))


def test_two_launches_that_differ_much_have_no_interval_that_is_stated(tmp_path):
    points = [Point(ranks=1), Point(ranks=2, launch_noise=0.4)]
    two = summary_of(tmp_path / "two", points, repeats=2)
    estimate = two.rows("cases")[1].step_s
    assert estimate.high > 4 * estimate.low
    assert estimate.stated is None
    page = render_markdown(two)
    assert "| too wide |" in page
    assert "differ too much" in page
    assert f"{estimate.high / estimate.value:.0%}" not in page


def test_cases_of_another_suite_in_the_folder_are_shown_as_they_are(run, tmp_path):
    """Parts that were copied there by hand: run.json does not know them."""
    other = write_run(tmp_path / "other", [Point(ranks=3, series="other")], repeats=1, joined=False)
    for part in (other / "data").iterdir():
        shutil.copy(part, run / "data")
    found = summary(run)
    assert {point.series for point in found.rows("cases")} == {"dp", "other"}


def test_a_document_that_is_cut_says_how_to_go_on(run):
    text = json.dumps(json.loads((run / "run.json").read_text()))
    (run / "run.json").write_text(text[: len(text) // 2])
    with pytest.raises(ResultsError, match="remove it to see what the rows tell"):
        load(run)
