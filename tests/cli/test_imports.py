"""What the short commands do not import: it would be most of their time."""

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import Point, write_run

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
        cwd=tmp_path,
    )
    assert done.stdout
    assert {name.partition(".")[0] for name in done.stderr.split()} & unwanted == set()
