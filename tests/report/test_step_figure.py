"""A step as a picture: waits and transfers of its ranks, and what is under way behind their work."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from report.test_trace import call, note

from pscale.analysis.timeline import Traced, flights, since_start, spans
from pscale.cli.trace import draw
from pscale.errors import UsageError
from pscale.report import drawing
from pscale.report.step_figure import draw_steps, shares

TRACED = Path(__file__).parents[1] / "results" / "schema_1"
CALLS = [
    call(0, "all_reduce", 1500, 1600),
    call(1, "all_reduce", 1200, 1600, wait=300),
    *(note(rank, "posted", 1300, 1310, axis="tp", verb="all_gather", request=1) for rank in (0, 1)),
    *(note(rank, "completed", 1900, 1900, axis="tp", verb="all_gather", request=1) for rank in (0, 1)),
    *(call(rank, "broadcast", at, at + 10) for rank in (0, 1) for at in (1910, 1930)),
]
PHASES = [
    each
    for rank in (0, 1)
    for each in (
        note(rank, "phase", 1000, 1500, phase="forward", label="forward 0"),
        note(rank, "phase", 1500, 2000, phase="backward", label="backward 0"),
        note(rank, "step", 1000, 2000),
    )
]


@pytest.fixture
def axes():
    table = pd.DataFrame(CALLS + PHASES).sort_values("rank", kind="stable", ignore_index=True)
    moved, length = since_start(table)
    launch, run = Traced(case="id", repeat=0, label="two ranks", ranks=2), SimpleNamespace(planned={"id": {}})
    step = [*spans(run, launch, moved, length, whole=True)]
    with drawing.styled():
        return draw_steps([step], [f"two ranks: {shares(step)}"], "", flights=[list(flights(moved))]).axes[0]


def test_a_title_says_what_share_of_the_step_is_lost_as_a_mean_over_ranks(axes):
    assert axes.get_title(loc="left") == "two ranks: 1 µs, transfer 12%, wait 15%"


def test_calls_of_the_first_rank_are_named_once_for_neighbours_and_where_there_is_room(axes):
    assert [words.get_text() for words in axes.texts] == ["all-gather tp", "2 × broadcast dp"]


def test_what_is_under_way_lies_below_the_work_that_hides_it(axes):
    def bars(row, low):
        paths = [path for bar in axes.collections for path in bar.get_paths()]
        boxes = [path.get_extents() for path in paths]
        inside = [box for box in boxes if low < box.y0 - row < low + 0.1 and box.width]
        return sorted((round(box.x0 * 1e9), round(box.x1 * 1e9)) for box in inside)

    assert bars(0, 0.1) == [(300, 900), (500, 600), (910, 920), (930, 940)]
    assert bars(1, -0.5) == [(0, 500), (200, 500), (500, 600), (500, 1000), (910, 920), (930, 940)]


def test_every_traced_case_is_drawn_into_a_file_and_no_other_format_is(tmp_path):
    draw(TRACED, None, 1, None, tmp_path / "step.svg")
    drawn = (tmp_path / "step.svg").read_text()
    assert "2 ranks · injected 5 ms in forward of rank 0: " in drawn
    assert "all-reduce dp" in drawn
    with pytest.raises(UsageError, match=r"svg, \.png, \.pdf"):
        draw(TRACED, None, 1, None, tmp_path / "step.json")
