import os
import signal

import pytest
from synthetic import Point, summary_of

from pscale.cli.drawer import Drawer
from pscale.errors import ResultsError
from pscale.report.page import draw_all

pytestmark = pytest.mark.slow


@pytest.fixture
def summary(tmp_path):
    return summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=2)])


def test_another_process_draws_what_this_one_would(summary, tmp_path):
    with Drawer() as drawer:
        drawer.ask(summary, tmp_path / "there", ("svg", "png"))
        there, shown_there = drawer.answer()
    here, shown_here = draw_all(summary, tmp_path / "here", ("svg", "png"))
    assert [path.name for path in there] == [path.name for path in here] != []
    assert [path.read_bytes() for path in there] == [path.read_bytes() for path in here]
    assert shown_there == shown_here


def test_what_keeps_it_from_drawing_is_raised_where_it_is_waited_for(summary, tmp_path):
    (tmp_path / "file").touch()
    with Drawer() as drawer:
        drawer.ask(summary, tmp_path / "file", ("svg",))
        with pytest.raises(FileExistsError, match="file"):
            drawer.answer()


def test_its_death_is_reported(summary, tmp_path):
    with Drawer() as drawer:
        os.kill(drawer.process.pid, signal.SIGKILL)
        drawer.ask(summary, tmp_path / "figures", ("svg",))
        with pytest.raises(ResultsError, match="status -9; --no-figures"):
            drawer.answer()


def test_nothing_is_left_of_one_that_is_asked_for_nothing():
    with Drawer() as drawer:
        process = drawer.process
    assert process.returncode is not None
    assert process.stdin.closed
    assert process.stdout.closed
