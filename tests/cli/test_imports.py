"""What the short commands do not import: it would be most of their time."""

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import Point, write_run

from pscale.cli.report import publish
from pscale.config import Workload

SUITE = Path(__file__).parents[2] / "suites" / "weak.yaml"
ANY_COMMAND = {"pandas", "pyarrow", "matplotlib", "seaborn", "scipy", "mpi4py", "jinja2", "psutil"}
HELP = {"numpy", "yaml"}


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--version"], {"typer", "rich", "numpy", "pydantic"}),
        (["--help"], ANY_COMMAND | HELP),
        (["run", "--help"], ANY_COMMAND | HELP),
        (["show", SUITE], ANY_COMMAND),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_short_command_imports_nothing_heavy(arguments, unwanted, tmp_path):
    write_run(tmp_path / "reports" / "weak" / "earlier", [Point(ranks=1)])
    printed, modules = imports(arguments, tmp_path)
    assert printed
    assert modules & unwanted == set()


@pytest.mark.parametrize(("asked", "file"), [(["--evidence"], "evidence.html"), ([], "report.html")])
def test_a_page_that_a_report_left_is_named_without_drawing_it_again_until_it_changes(asked, file, tmp_path):
    sizes = [Point(ranks=n, workload=Workload(command="./halo")) for n in (1, 2)]
    folder = write_run(tmp_path / "run", sizes)
    publish(folder)
    page, command = folder / file, ["report", folder, *asked, "-f", "html"]
    left = page.read_bytes()
    printed, modules = imports(command, tmp_path)
    assert printed == f"{page}\n"
    assert modules & {"pandas", "matplotlib"} == set()
    for words, end in (([], "figures/publication/evidence.pdf"), (["-f", "md"], "|"), (["-f", "latex"], "")):
        printed, modules = imports(["report", folder, "--evidence", *words], tmp_path)
        assert printed.splitlines()[-1].endswith(end)
        assert "We measured weak scaling" in printed
        assert modules & {"pandas", "matplotlib"} == set()
    imports(["report", folder, "--target", "0.9", "-f", "html"], tmp_path)
    page.write_bytes(page.read_bytes() + b"<!-- changed -->")
    assert "pandas" in imports(command, tmp_path)[1]
    assert page.read_bytes() == left


def imports(arguments, folder):
    """Run the command line; return what it prints and the packages that it imports."""
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from pscale.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return done.stdout, {name.partition(".")[0] for name in done.stderr.split()}
