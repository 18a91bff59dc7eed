import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import Point, write_run

from pscale.cli.report import Pictures, report
from pscale.errors import ResultsError
from pscale.report.answer import Answer, Line
from pscale.report.drawn import FILE, Sources

TESTS = Path(__file__).parents[1]
PROGRAM = """
import sys
from pathlib import Path
from synthetic import Point, summary_of
from pscale.report.publish import write_all

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
    report([folder], tmp_path, "html", Pictures(formats=None))
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    assert {path.name for path in folder.iterdir()} == {"run.json", "data", "report.html"}
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    with pytest.raises(ResultsError, match="cannot write in"):
        report([folder], tmp_path, "html", Pictures(formats=None))


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
    assert sources.drawn() is not None
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
    answer = Answer(suite="weak", folder="", lines=(line,), sentences=("Holds.",), concerns="", page=page)
    Sources.of(folder, ["svg"]).remember(written, answer)
    assert Sources.of(folder, ["svg"]).drawn() == answer
    assert Sources.of(folder, ["png"]).drawn() is None
    assert Sources.of(folder, None).drawn() is None
    (folder / changed).write_text("made by another")
    assert Sources.of(folder, ["svg"]).drawn() is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"asked": 1, "files": 2, "written": 3}'])
def test_a_note_of_what_was_drawn_that_is_none_counts_for_nothing(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert Sources.of(tmp_path, []).drawn() is None
