import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Case, Launch
from pscale.errors import ResultsError
from pscale.runs import store
from pscale.runs.schema import KINDS_OF_1, NAMES_OF_1, TABLES, VERSION, Column
from pscale.runs.store import (
    LEAST,
    compact,
    launch_row,
    part_path,
    planned_columns,
    read_case,
    read_part,
    read_table,
    schema_of,
    write_columns,
    write_part,
)

SCHEMA_1 = Path(__file__).parent / "schema_1"  # a run of two ranks, one of them delayed, with its events


def test_parts_of_several_launches_read_as_one_table(tmp_path):
    write_part(tmp_path, "ranks", "a", 0, [{"rank": 0, "host": "h"}, {"rank": 1, "host": "h"}])
    write_columns(tmp_path, "ranks", "a", 1, {"rank": [0]})
    table = read_table(tmp_path, "ranks")
    assert table.schema == schema_of("ranks")
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
    assert table.schema.equals(schema_of("ranks"), check_metadata=True)
    assert table["repeat"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert table["host"].to_pylist()[::2] == [f"h{repeat}" for repeat in range(5)]
    assert table["rank"].num_chunks <= 3


def test_a_part_that_is_written_again_replaces_the_first(tmp_path):
    for host in ("old", "new"):
        write_part(tmp_path, "ranks", "a", 0, [{"rank": 0, "host": host}])
    assert read_table(tmp_path, "ranks")["host"].to_pylist() == ["new"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_run_without_parts_has_empty_tables(tmp_path):
    assert read_table(tmp_path, "cases").schema == schema_of("cases")
    assert len(read_table(tmp_path, "cases")) == 0


@pytest.mark.parametrize("table", sorted(set(TABLES) - {"kernels", "figures"}))
def test_a_run_of_schema_1_is_read_with_the_present_names(table):
    (path,) = (SCHEMA_1 / "data").glob(f"{table}-*.parquet")
    old, new = pq.read_table(path), read_table(SCHEMA_1 / "data", table)
    assert new.schema.equals(schema_of(table), check_metadata=True)
    renamed = {now: once for now, once in NAMES_OF_1.items() if once in old.column_names}
    kept = {renamed.get(name, name) for name in new.column_names}
    assert set(old.column_names) <= kept, "no column of schema 1 is lost"
    assert not set(renamed.values()) & set(new.column_names)
    kinds = {once: now for now, once in KINDS_OF_1.items()}
    for name in new.column_names:
        stored = renamed.get(name, name)
        expected = old[stored].to_pylist() if stored in old.column_names else [None] * len(old)
        if name == "kind":
            expected = [kinds.get(kind, kind) for kind in expected]
        assert repr(new[name].to_pylist()) == repr(expected), name  # not a number, too


def test_some_columns_of_schema_1_are_read_coded_joined_and_by_value(tmp_path):
    kinds = {"case": ["a"] * 6, "kind": ["step", "posted", *KINDS_OF_1.values()]}
    events = pa.table(kinds).replace_schema_metadata({"pscale_schema": "1"})
    pq.write_table(events, part_path(tmp_path, "events", "a", 0))
    (coded,) = store.batches(tmp_path, "events", ["kind", "rank"], coded=["kind"])
    assert coded["kind"].to_pylist() == ["step", "posted", *KINDS_OF_1]
    case, delays = read_table(SCHEMA_1 / "data", "steps", ["case", "injected_delay_s"]).columns
    assert sum(delays.to_pylist()) >= 4 * 0.005, "5 ms in each of 4 steps"
    chosen = read_part(SCHEMA_1 / "data", "steps", case[0].as_py(), 0, {"rank": [0]})
    assert sum(chosen["injected_delay_s"].to_pylist()) == sum(delays.to_pylist())
    old = pq.read_table(SCHEMA_1 / "data" / f"steps-{case[0]}-0.parquet")
    place = old.schema.get_field_index("repeat")
    for repeat in range(LEAST):
        rows = old.set_column(place, old.schema.field(place), pa.array([repeat] * len(old)))
        pq.write_table(rows, part_path(tmp_path, "steps", case[0].as_py(), repeat))
    compact(tmp_path)
    joined = read_table(tmp_path, "steps", ["injected_delay_s"])["injected_delay_s"].to_pylist()
    assert joined == delays.to_pylist() * LEAST


def test_a_column_has_the_unit_that_its_name_ends_with():
    names = {"wait_s": "s", "bucket_bytes": "bytes", "model_flops": "FLOP", "gflops": "GFLOP/s", "heads": ""}
    assert {name: Column(name, "float").unit for name in names} == names
    assert all(len({column.name for column in columns}) == len(columns) for columns in TABLES.values())


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
    assert set(row) <= set(schema_of("cases").names)


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
    write_part(many, "ranks", "c007-9", 0, [{"rank": 0, "host": "of a case whose name begins alike"}])
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
    monkeypatch.setattr(store, "BATCH_ROWS", 1)  # a group of rows for every launch
    for number in range(LEAST):
        write_columns(tmp_path, "steps", "a", number, {"rank": [number, number], "step": [0, 1]})
    compact(tmp_path)
    assert read_case(tmp_path, "steps", "a", 11)["rank"].to_pylist() == [11, 11]
    assert read_case(tmp_path, "steps", "a", 11, ["case", "repeat", "step"])["step"].to_pylist() == [0, 1]
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


def test_a_run_of_schema_1_is_reported_with_its_delays_and_the_events_of_its_ranks():
    run = load(SCHEMA_1)
    summary = Findings(run)
    (point,) = summary.rows("cases")
    assert point.injected == "5 ms in forward of rank 0"
    assert run.ranks["events"].min() > 0
    assert any("5 ms in forward of rank 0" in warning.text for warning in summary.rows("warnings"))
