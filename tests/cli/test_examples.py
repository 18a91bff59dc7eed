"""What help shows: examples that are accepted, and words that are whole."""

import re
import shlex
import sys

import pytest
from typer.main import get_command

from pscale.cli.app import EXAMPLES, app, example_lines, main
from pscale.suite import shipped

COMMANDS = get_command(app).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_of_a_command_is_one_that_it_accepts(name):
    assert EXAMPLES[name]
    for typed in EXAMPLES[name]:
        program, command, *words = shlex.split(typed.partition(" > ")[0])
        assert (program, command) == ("pscale", name)
        assert COMMANDS[name].make_context(name, [*words]).params is not None
        if name in ("show", "run", "verify", "init", "predict", "advise"):
            assert words[0] in shipped.suites()


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_fit_on_a_line_of_80_characters(name):
    assert max(map(len, example_lines(EXAMPLES[name]))) <= 78


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_types_and_whole_words_at_80_columns(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pscale", name, "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    assert main() == 0
    shown = capsys.readouterr().out
    assert not re.search(r" <\w+[\[>]", shown)
    for parameter in COMMANDS[name].params:
        assert {*(parameter.metavar or "").split(), *parameter.help.split()} <= {*shown.split()}
