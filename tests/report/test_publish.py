import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import Point, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.cli.options import Report
from pscale.cli.report import report
from pscale.config import Matrix, Plan
from pscale.config.axes import DEGREES
from pscale.errors import ResultsError
from pscale.report.brief import FILE, Answer, Line, Sources, card
from pscale.report.exports import csv_tables, render_json, write_csv

TESTS = Path(__file__).parents[1]
PROGRAM = """
import sys
from pathlib import Path
from synthetic import Point, summary_of
from pscale.report.page import write_all

def imported(library):
    return any(name.partition(".")[0] == library for name in sys.modules)

folder = Path(sys.argv[1])
summary = summary_of(folder, [Point(ranks=1), Point(ranks=2)])
assert [path.name for path in write_all(summary, folder, ())] == ["report.html", "report.md"]
assert not imported("matplotlib")
assert "scaling.svg" in {path.name for path in write_all(summary, folder, ("svg",))}
assert imported("seaborn") and "scipy.stats" not in sys.modules
"""


def test_a_report_imports_what_its_formats_need_and_of_scipy_nothing_for_figures(tmp_path):
    environment = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, env=environment)


def test_the_command_writes_the_page_alone_and_says_where_or_why_not(tmp_path, capsys):
    folder = write_run(tmp_path / "run", [Point(ranks=1), Point(ranks=2)])
    report([folder], Report(as_format="html", figures=False))
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    assert {path.name for path in folder.iterdir()} == {"run.json", "data", "report.html"}
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    with pytest.raises(ResultsError, match="cannot write in"):
        report([folder], Report(as_format="html", figures=False))


def times_of(folder):
    return {
        path.name: path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.suffix in (".html", ".md", ".svg")
    }


def test_a_report_leaves_files_alone_that_would_be_the_same(tmp_path, pscale):
    folder = write_run(tmp_path / "run", [Point(ranks=1), Point(ranks=2)])
    sources = Sources.of(folder, [])
    status, said, _ = pscale("report", str(folder))
    assert status == 0
    first = times_of(folder)
    assert {"report.html", "report.md", "scaling.svg"} <= first.keys()
    assert card(folder).cases == 2
    assert sources.drawn() is not None, "what a list of runs has read is kept beside it"
    assert pscale("report", str(folder))[1] == said
    (folder / FILE).unlink()  # as in a clone
    assert sources.drawn() is None
    pscale("report", str(folder))
    assert times_of(folder) == first


@pytest.mark.parametrize("changed", ["report.html", "figures/scaling.svg", "data/cases.parquet", "run.json"])
def test_a_report_is_written_again_when_its_run_or_a_file_of_it_has_changed(tmp_path, changed):
    folder = write_run(tmp_path / "run", [Point(ranks=1)])
    (folder / "figures").mkdir()
    written = [folder / "report.html", folder / "figures" / "scaling.svg"]
    for file in (*written, folder / "data" / "cases.parquet"):
        file.write_text("made")
    page = str(folder / "report.html")
    line = Line(name="weak", size="2 ranks", figure="97 %", answer="holds", judged="holds", causes="")
    answer = Answer(suite="weak", lines=(line,), sentences=(("Holds.",),), concerns="", page=page)
    Sources.of(folder, ["svg"]).remember(written, answer)
    assert Sources.of(folder, ["svg"]).drawn() == answer
    assert Sources.of(folder, ["png"]).drawn() is None
    assert Sources.of(folder, None).drawn() is None
    (folder / changed).write_text("made by another")
    assert Sources.of(folder, ["svg"]).drawn() is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 8, "asked": 1, "files": 2, "written": 3}'])
def test_a_note_of_what_was_drawn_that_is_none_counts_for_nothing(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert Sources.of(tmp_path, []).drawn() is None


@pytest.mark.parametrize("tables", [5, [5], [{}], [{"title": "", "caption": "", "columns": 1, "rows": []}]])
def test_tables_of_evidence_that_are_none_count_for_nothing(tmp_path, tables):
    answer = Answer(suite="weak", lines=(), sentences=(), concerns="")
    Sources.of(tmp_path).remember([], answer)
    assert Sources.of(tmp_path).drawn() == answer
    kept = json.loads((tmp_path / FILE).read_text())
    kept["answer"]["tables"] = tables
    (tmp_path / FILE).write_text(json.dumps(kept))
    assert Sources.of(tmp_path).drawn() is None


def rows(content):
    return list(csv.DictReader(io.StringIO(content)))


def test_json_holds_every_field_of_the_summary_and_its_version(summary):
    document = json.loads(render_json(summary))
    assert document["format"] == 4
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
