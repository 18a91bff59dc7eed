"""The manual: the page and the man page that are shipped are those of the commands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from pscale import errors
from pscale.analysis.columns import reference
from pscale.cli.app import application, example_lines, main
from pscale.cli.manual import entries, man_page, page
from pscale.cli.options import COMMANDS as DECLARED
from pscale.suite import shipped

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
        assert all(typed in shown for typed, _ in entry.words), entry.name


COMMANDS = get_command(application()).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_of_a_command_is_one_that_it_accepts(name):
    assert DECLARED[name].examples
    for typed in DECLARED[name].examples:
        program, command, *words = shlex.split(typed.partition(" > ")[0])
        assert (program, command) == ("pscale", name)
        assert COMMANDS[name].make_context(name, [*words]).params is not None
        if name in ("show", "run", "verify", "init", "predict", "advise"):
            assert words[0] in shipped.suites()


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_fit_on_a_line_of_80_characters(name):
    assert max(map(len, example_lines(DECLARED[name].examples))) <= 78


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_types_and_whole_words_at_80_columns(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pscale", name, "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    assert main() == 0
    shown = capsys.readouterr().out
    assert not re.search(r" <\w+[\[>]", shown)
    for parameter in COMMANDS[name].params:
        assert {*(parameter.metavar or "").split(), *parameter.help.split()} <= {*shown.split()}
