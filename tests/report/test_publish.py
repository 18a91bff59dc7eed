import subprocess
import sys
from pathlib import Path

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
assert [path.name for path in write_all(summary, folder, ())] == ["report.md"]
assert not imported("matplotlib")
assert "scaling.svg" in {path.name for path in write_all(summary, folder, ("svg",))}
assert imported("seaborn") and "scipy.stats" not in sys.modules
"""


def test_a_report_imports_what_its_formats_need_and_of_scipy_nothing_for_figures(tmp_path):
    environment = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, env=environment)
