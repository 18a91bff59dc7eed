import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import Point, write_run

from pscale.cli.report import Pictures, report
from pscale.errors import ResultsError

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
    (folder / ".report.html.tmp").mkdir()
    with pytest.raises(ResultsError, match="cannot write in"):
        report([folder], tmp_path, "html", Pictures(formats=None))
