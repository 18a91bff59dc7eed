from pathlib import Path

import pytest
from synthetic import Point, write_run

from pscale.analysis.columns import FRAMES, frame, rows
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load, records
from pscale.errors import ResultsError
from pscale.report.exports import csv_text
from pscale.runs.store import read_table

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"


@pytest.fixture
def run(tmp_path):
    return write_run(
        tmp_path / "suite" / "run", [Point(ranks=1), Point(ranks=2)], repeats=2, steps=3, joined=False
    )


def test_a_run_is_read_with_small_keys_and_categories(run):
    found = load(run)
    assert len(found.cases) == 4
    for table in (found.phases, found.ends, found.seats, found.calls):
        assert str(table["case"].dtype) == "category"
        assert str(table["repeat"].dtype) == "int32"
    assert not found.pending


def test_sums_of_steps_and_calls_are_those_of_their_rows(run):
    """A straightforward sum of all rows that are stored, by the library that is made for it."""
    found, seat = load(run), ["case", "repeat", "rank"]
    rows = {table: read_table(run / "data", table).to_pandas() for table in ("steps", "calls")}
    times = ["compute_s", "transfer_s", "wait_s", "copy_s", "hidden_s", "wall_s"]
    assert_same(found.phases, rows["steps"].groupby([*seat, "phase"])[times].sum())
    assert_same(found.ends, rows["steps"].groupby(["case", "repeat", "step"])[["end_s"]].max())
    assert_same(found.seats, rows["steps"].groupby(seat)[["step"]].nunique().set_axis(["steps"], axis=1))
    sums = ["count", "bytes", "transfer_s", "wait_s"]
    assert_same(found.calls, rows["calls"].groupby(["case", "repeat", "axis", "verb"])[sums].sum())


def assert_same(found, expected):
    keys, columns = list(expected.index.names), list(expected.columns)
    texts = {name: str for name in keys if not name.startswith(("repeat", "rank", "step"))}
    table = found.astype(texts).set_index(keys)[columns].sort_index()
    assert list(table.index) == list(expected.index)
    assert table.to_numpy(float) == pytest.approx(expected.to_numpy(float), nan_ok=True)


def test_launches_without_a_row_are_pending_and_half_written_parts_do_not_count(run):
    case = load(run).cases["case"][0]
    part = run / "data" / f"cases-{case}-1.parquet"
    part.rename(part.with_suffix(".tmp"))
    assert load(run).pending == {case: 1}


def test_a_run_without_any_row_is_all_pending(tmp_path):
    run = write_run(tmp_path / "run", [Point(ranks=1, only_repeats=())], repeats=3)
    assert load(run).pending.total() == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not written by pscale"),
        ('{"format": 99, "cases": []}', "upgrade pscale"),
        ('{"format": 1, "cases": [{}]}', "expected a name"),
    ],
)
def test_a_folder_that_is_no_run_says_what_it_is_instead(run, content, said):
    file = run / "run.json"
    file.write_text(content)
    with pytest.raises(ResultsError, match=said):
        load(run)


def test_a_missing_folder_and_a_run_without_data_say_what_to_do(run, tmp_path):
    with pytest.raises(ResultsError, match="no such folder; name a run"):
        load(tmp_path / "nothing")
    (run / "data").rename(run / "elsewhere")
    with pytest.raises(ResultsError, match="run the suite again"):
        load(run)


KINDS = {"text": "O", "texts": "O", "series": "O", "flag": "b", "count": "iu", "size": "iu"}


@pytest.mark.parametrize("run", ["weak", "pipeline", "endings", "communication"])
def test_every_frame_has_the_declared_columns_in_their_units(run):
    findings = Findings(load(GALLERY / run))
    for name, declared in FRAMES.items():
        table = getattr(findings, name)
        ends = {True: ("", "_low", "_high"), False: ("",)}
        columns = [f"{each}{end}" for each, of in declared.columns.items() for end in ends[of.bounded]]
        assert [column for column in table if column in columns] == columns, name
        assert name == "cases" or len(table.columns) == len(columns), name
        for column, of in declared.columns.items():
            assert table[column].dtype.kind in KINDS.get(of.unit, "f"), f"{name}.{column}"
            assert of.unit != "share" or not (table[column] < 0).any(), f"{name}.{column}"


def test_an_unknown_flag_stays_unknown_in_frames_rows_and_files():
    given = [{"case": "a", "firm": True}, {"case": "b", "firm": False}, {"case": "c"}]
    table = frame("verdicts", given, {})
    assert [each.firm for each in rows("verdicts", table)] == [True, False, None]
    assert [each["firm"] for each in records(table)] == [True, False, None]
    assert csv_text(table[["case", "firm"]]).split() == ["case,firm", "a,True", "b,False", "c,"]
