"""The manual: the page and the man page that are shipped are those of the commands."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pscale import errors
from pscale.analysis.columns import reference
from pscale.cli.manual import entries, man_page, page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("file", "write"), [("docs/cli.md", page), ("packaging/pscale.1", man_page)])
def test_the_shipped_manual_is_that_of_the_commands(file, write):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text == write(entries()), f"{file} is out of date; write it again: make manual"


def test_the_shipped_page_of_tables_is_that_of_the_declared_columns():
    assert (ROOT / "docs" / "tables.md").read_text(encoding="utf-8") == reference(), "write it: make manual"


def test_the_manual_has_every_exit_code():
    kinds = errors.PscaleError.__subclasses__()
    codes = {0, errors.FAILED, errors.UNDECIDED, errors.INTERRUPTED, *(kind.exit_code for kind in kinds)}
    table = page(entries()).partition("## Exit codes")[2]
    assert {int(row.split("|")[1]) for row in table.splitlines()[4:]} == codes


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_the_man_page_is_set_without_warnings_and_loses_no_words():
    command = ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbu"]
    done = subprocess.run(command, input=man_page(entries()).encode(), capture_output=True, check=True)
    assert done.stderr == b""
    shown = " ".join(done.stdout.decode().replace("‐", "-").split())
    for entry in entries():
        assert all(word.typed in shown for word in entry.words), entry.name
