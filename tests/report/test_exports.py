import csv
import io
import json
import re
from dataclasses import replace

from synthetic import Point, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Matrix, Plan
from pscale.config.axes import DEGREES
from pscale.report.exports import csv_tables, render_json, write_csv


def rows(content):
    return list(csv.DictReader(io.StringIO(content)))


def test_json_holds_every_field_of_the_summary_and_its_version(summary):
    document = json.loads(render_json(summary))
    assert document["format"] == 3
    assert set(document) == {"format", "kind", *summary.names}
    four = document["cases"][2]
    assert four["efficiency_low"] < four["efficiency"] < four["efficiency_high"]
    first, last = (row["wait_s"] for row in document["wait"] if row["step"] == 0 and row["rank"] in {0, 3})
    assert last < first
    assert document["cases"][3]["step_s"] is None


def test_json_has_null_for_what_is_not_finite(summary):
    first = summary.rows("cases")[0]._replace(losses=(1.0, float("nan"), float("inf")))
    assert json.loads(render_json(summary.replaced(cases=[first])))["cases"][0]["losses"] == [1.0, None, None]


def test_csv_is_tidy_with_bounds_beside_values(summary):
    tables = csv_tables(summary)
    four = rows(tables["cases"])[2]
    assert float(four["efficiency_low"]) < float(four["efficiency"]) < float(four["efficiency_high"])
    assert rows(tables["cases"])[4]["status"] == "pending"
    assert rows(tables["cases"])[4]["step_s"] == ""
    assert len(rows(tables["wait"])) == 4 * 20
    assert [row["loss"] for row in rows(tables["loss"])[:4]] == ["5.5", "4.0", "3.0", "2.5"]
    assert rows(tables["failures"])[0]["repeats"] == "0 1 2"
    assert {row["phase"] for row in rows(tables["phases"])} == {
        "data",
        "forward",
        "backward",
        "sync",
        "update",
    }


def test_no_cell_of_csv_starts_a_formula(hostile):
    cells = [
        cell for content in csv_tables(hostile).values() for row in rows(content) for cell in row.values()
    ]
    assert any(cell.startswith("'=cmd") for cell in cells)
    numbers = re.compile(r"-?[0-9][0-9.e+-]*")
    suspicious = [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert [cell for cell in suspicious if not numbers.fullmatch(cell)] == []


def test_files_are_written_whole_and_nothing_else_is_left(summary, tmp_path):
    written = write_csv(summary, tmp_path / "csv")
    assert sorted(written) == sorted((tmp_path / "csv").iterdir())
    assert (tmp_path / "csv" / "cases.csv").read_text().startswith("case,label,run,series")


def test_a_table_without_rows_has_no_file_not_even_that_of_an_earlier_report(failed, tmp_path):
    (tmp_path / "phases.csv").write_text("case\nold\n")
    names = {file.stem for file in write_csv(failed, tmp_path)}
    assert {"cases", "failures"} <= names
    assert names.isdisjoint({"efficiency", "phases", "calls", "wait"})
    assert names == {file.stem for file in tmp_path.iterdir()}


def test_cases_have_a_column_for_every_degree_and_every_setting_that_varies_even_to_none(tmp_path):
    points = [
        Point(ranks=2, series="a", plan=Plan(tp=2), train={"clip": 1.0, "steps": 20}),
        Point(ranks=2, series="ab", plan=Plan(matrix=Matrix(tx=2)), train={"clip": None, "steps": 20}),
        Point(ranks=2, series="abc", status="failed", reason="died", train={"clip": 1.0, "steps": 30}),
    ]
    run = load(write_run(tmp_path / "run", points))
    swept = replace(run, document={**run.document, "suite": {"resolved": {"sweep": {"model.layers": [2]}}}})
    found = rows(csv_tables(Findings(swept))["cases"])
    assert [[row[axis] for axis in DEGREES] for row in found] == [
        ["1", "2", "1", "1", "1", "1", "1", "1"],
        ["1", "1", "1", "1", "1", "2", "1", "1"],
        ["2", "1", "1", "1", "1", "1", "1", "1"],
    ]
    assert [row["clip"] for row in found] == ["1.0", "", "1.0"]
    assert [row["width"] for row in found] == ["64", "128", "192"]
    assert [row["train.steps"] for row in found] == ["20", "20", "30"], "`steps` are those measured"
    assert [row["layers"] for row in found] == ["2"] * 3, "swept, though all have the same"
