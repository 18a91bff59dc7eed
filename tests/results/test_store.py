import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pscale.config import Case, Launch
from pscale.errors import ResultsError
from pscale.results import compact as compact_module
from pscale.results import store
from pscale.results.compact import LEAST, compact
from pscale.results.rows import launch_row, planned_columns
from pscale.results.schema import CASES, RANKS, VERSION
from pscale.results.store import part_path, read_case, read_part, read_table, write_columns, write_part


def test_parts_of_several_launches_read_as_one_table(tmp_path):
    write_part(tmp_path, "ranks", "a", 0, [{"rank": 0, "host": "h"}, {"rank": 1, "host": "h"}])
    write_columns(tmp_path, "ranks", "a", 1, {"rank": [0]})
    table = read_table(tmp_path, "ranks")
    assert table.schema == RANKS
    assert table.select(["case", "repeat", "rank", "host"]).to_pylist() == [
        {"case": "a", "repeat": 0, "rank": 0, "host": "h"},
        {"case": "a", "repeat": 0, "rank": 1, "host": "h"},
        {"case": "a", "repeat": 1, "rank": 0, "host": None},
    ]


def test_many_parts_are_joined_as_they_come_and_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_AT_A_TIME", 2)
    for repeat in range(5):
        write_part(tmp_path, "ranks", "a", repeat, [{"rank": rank, "host": f"h{repeat}"} for rank in (0, 1)])
    table = read_table(tmp_path, "ranks")
    assert table.schema.equals(RANKS, check_metadata=True)
    assert table["repeat"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert table["host"].to_pylist()[::2] == [f"h{repeat}" for repeat in range(5)]
    assert table["rank"].num_chunks <= 3


def test_a_part_that_is_written_again_replaces_the_first(tmp_path):
    for host in ("old", "new"):
        write_part(tmp_path, "ranks", "a", 0, [{"rank": 0, "host": host}])
    assert read_table(tmp_path, "ranks")["host"].to_pylist() == ["new"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_run_without_parts_has_empty_tables(tmp_path):
    assert read_table(tmp_path, "cases").schema == CASES
    assert len(read_table(tmp_path, "cases")) == 0


def test_columns_that_an_older_version_did_not_have_are_null(tmp_path):
    old = pa.table({"case": ["a"], "repeat": [0]}).replace_schema_metadata({"pscale_schema": "1"})
    pq.write_table(old, part_path(tmp_path, "cases", "a", 0))
    assert read_table(tmp_path, "cases")["label"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "not written by pscale"),
        ({"pscale_schema": "x"}, "not written by pscale"),
        ({"pscale_schema": str(VERSION + 1)}, "upgrade"),
    ],
)
def test_foreign_and_newer_parquet_is_refused_by_name(tmp_path, metadata, words):
    path = part_path(tmp_path, "cases", "a", 0)
    pq.write_table(pa.table({"case": ["a"]}).replace_schema_metadata(metadata), path)
    with pytest.raises(ResultsError, match=words) as caught:
        read_table(tmp_path, "cases")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing", b"{}"])
def test_a_part_cut_in_half_is_refused_by_name(tmp_path, content):
    path = part_path(tmp_path, "steps", "a", 0)
    path.write_bytes(content)
    with pytest.raises(ResultsError, match="not a readable Parquet file") as caught:
        read_table(tmp_path, "steps")
    assert str(path) in str(caught.value)


CASE = Case(suite="s", label="l", launch=Launch(oversubscribe=True))
ENDED = {"status": "ok", "reason": "", "wall_s": 3.0}


def test_a_launch_that_ended_well_has_the_figures_of_its_job(tmp_path):
    result = {"status": "invalid", "reason": "shares cores", "columns": {"step_s": 0.5}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    row = launch_row(CASE, tmp_path, ENDED)
    assert (row["status"], row["reason"], row["step_s"], row["wall_s"]) == (
        "invalid",
        "shares cores",
        0.5,
        3.0,
    )


def test_a_launch_that_failed_keeps_its_plan_and_reason_whatever_the_job_left(tmp_path):
    (tmp_path / "result.json").write_text(
        json.dumps({"status": "ok", "reason": "", "columns": {"step_s": 0.5}})
    )
    row = launch_row(CASE, tmp_path, {"status": "failed", "reason": "rank 1 died"})
    assert row == {**planned_columns(CASE), "status": "failed", "reason": "rank 1 died"}
    assert set(row) <= set(CASES.names)


@pytest.fixture
def many(tmp_path):
    """More launches than are left as files of their own, of two ranks each."""
    for number in range(LEAST):
        rows = [{"rank": rank, "host": f"h{number}"} for rank in range(2)]
        write_part(tmp_path, "ranks", f"c{number:03}", 0, rows)
    write_part(tmp_path, "steps", "c000", 0, [{"rank": 0}])
    return tmp_path


def test_many_parts_are_joined_and_few_are_not_and_no_row_changes(many):
    before = {table: read_table(many, table).to_pylist() for table in ("ranks", "steps")}
    compact(many)
    assert sorted(path.name for path in many.iterdir()) == ["ranks.parquet", "steps-c000-0.parquet"]
    assert {table: read_table(many, table).to_pylist() for table in before} == before
    assert read_case(many, "ranks", "c007")["host"].to_pylist() == ["h7", "h7"]
    assert read_part(many, "ranks", "c008", 0)["host"].to_pylist() == ["h8", "h8"]
    assert read_part(many, "ranks", "c008", 1).num_rows == 0


def test_parts_that_come_later_are_read_beside_the_joined_ones_and_joined_with_them(many):
    compact(many)
    for number in range(LEAST):
        write_part(many, "ranks", "later", number, [{"rank": 0}])
    assert len(read_table(many, "ranks")) == 3 * LEAST
    compact(many)
    assert len(read_table(many, "ranks")) == 3 * LEAST
    assert len(list(many.glob("ranks*"))) == 1


def test_a_part_that_a_crash_left_behind_counts_once(many):
    part = part_path(many, "ranks", "c003", 0)
    content = part.read_bytes()
    compact(many)
    part.write_bytes(content)
    assert len(read_table(many, "ranks")) == 2 * LEAST
    assert len(read_case(many, "ranks", "c003")) == 2


def test_a_part_that_cannot_be_read_is_not_joined_and_keeps_its_place(many):
    part = part_path(many, "ranks", "c003", 0)
    part.write_bytes(b"cut")
    compact(many)
    assert part.read_bytes() == b"cut"
    damaged = []
    assert len(read_table(many, "ranks", damaged=damaged)) == 2 * (LEAST - 1)
    assert [(one.case, one.repeat, one.path) for one in damaged] == [("c003", 0, part)]
    with pytest.raises(ResultsError, match="not a readable Parquet file"):
        read_table(many, "ranks")


def test_rows_come_in_batches_of_whole_launches_with_the_columns_that_are_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "BATCH_ROWS", 5)
    for number in range(4):
        write_columns(tmp_path, "steps", "a", number, {"rank": [0, 1, 2]})
    found = list(store.batches(tmp_path, "steps", ["repeat", "rank"]))
    assert [batch["repeat"].to_pylist() for batch in found] == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3]]
    assert all(batch.column_names == ["repeat", "rank"] for batch in found)


def test_a_launch_is_read_without_those_beside_it_in_the_joined_file(tmp_path, monkeypatch):
    monkeypatch.setattr(compact_module, "BATCH_ROWS", 1)  # a group of rows for every launch
    monkeypatch.setattr(store, "BATCH_ROWS", 1)
    for number in range(LEAST):
        write_columns(tmp_path, "steps", "a", number, {"rank": [number, number]})
    compact(tmp_path)
    groups, read = [], pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda *given: (groups.append(given), read(*given))[1]
    )
    assert read_case(tmp_path, "steps", "a", 11)["rank"].to_pylist() == [11, 11]
    assert len(groups) == 1
    assert sorted(read_case(tmp_path, "steps", "a")["rank"].to_pylist()) == sorted([*range(LEAST)] * 2)


def test_texts_that_are_coded_are_the_same_words_in_parts_and_joined(tmp_path):
    for number in range(LEAST):
        phases = ["forward", f"phase {number}", "forward"]
        write_columns(tmp_path, "steps", f"c{number:02}", 0, {"rank": [0, 0, 0], "phase": phases})

    def words():
        found = list(store.batches(tmp_path, "steps", ["case", "phase", "rank"], coded=["case", "phase"]))
        assert all(pa.types.is_dictionary(batch["phase"].type) for batch in found)
        return [row for batch in found for row in batch.to_pylist()]

    plain = read_table(tmp_path, "steps", ["case", "phase", "rank"]).to_pylist()
    assert words() == plain
    compact(tmp_path)
    assert words() == plain
