"""What a terminal gets of each kind of output: with `NO_COLOR` characters alone."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from synthetic import Point, write_run

from pscale.cli.console import changing, new_console

pytestmark = pytest.mark.slow

SUITE = Path(__file__).parents[2] / "suites" / "linear.yaml"
CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STATUS = re.compile(r". writing the page …")  # moves, and is taken away again


def on_terminal(*arguments, **environment):
    """Run the command line on a terminal of its own, and return all that it sends there."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "pscale", *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env = kept | {"TERM": "xterm-256color", "COLUMNS": "100"} | environment
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=env, close_fds=True):
        os.close(its)
        received = b""
        while piece := _next_of(ours):
            received += piece
    os.close(ours)
    return received.decode()


def _next_of(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # its last process has ended
        return b""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, points = tmp_path_factory.mktemp("measured"), [Point(ranks=1), Point(ranks=2)]
    write_run(folder / "other", points, steps=4)
    return write_run(folder / "run", points, steps=4)


@pytest.mark.parametrize(
    "command",
    [
        ("report", "RUN", "--no-figures", "--plot"),
        ("show", SUITE),
        ("compare", "RUN", "OTHER"),
        ("list", "--reports", "RUNS"),
        ("report", "--help"),
        ("report", "--nonsense"),
    ],
    ids=lambda command: f"{command[0]} {command[-1]}",
)
def test_no_color_leaves_characters_alone_on_a_terminal(run, command):
    places = {"RUN": run, "OTHER": run.with_name("other"), "RUNS": run.parents[1]}
    arguments = [places.get(word, word) for word in command]
    coloured, plain = (on_terminal(*arguments, **env) for env in ({}, {"NO_COLOR": "1"}))
    assert "\x1b" not in plain
    assert "\x1b" in coloured
    if "--help" not in command and "--nonsense" not in command:
        assert STATUS.sub("", CODE.sub("", coloured)).split() == plain.split()


def test_lines_end_with_no_spaces_where_there_is_no_terminal(capsys):
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("a", "one\ntwo lines")
    table.add_row("b", "a third one")
    new_console().print(table)
    assert capsys.readouterr().out == "a  one\n   two lines\nb  a third one\n"


def test_what_changes_is_shown_below_where_nothing_can_be_replaced(capsys):
    with changing(Console()) as show:
        show("one of two")
        show("two of two")
    assert capsys.readouterr().out == "one of two\ntwo of two\n"


def test_an_error_breaks_inside_no_word_on_a_terminal_and_nowhere_in_a_pipe():
    wrong = ("show", SUITE, "--set", "plan.zero=7", "--set", "model.widht=3")
    shown = on_terminal(*wrong, COLUMNS="60").split("\r\n")
    piped = subprocess.run(
        [sys.executable, "-m", "pscale", *map(str, wrong)], capture_output=True, text=True, check=False
    ).stderr
    assert " ".join(shown).split() == piped.split()
    assert max(map(len, piped.splitlines())) > 60
    assert all(len(line) <= 60 or " " not in line for line in shown)
