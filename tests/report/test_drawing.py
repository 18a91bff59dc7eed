import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.figure import Figure
from patience import LIMIT_S
from pictures import words
from test_trace_export import call, note

from pscale.analysis.timeline import Traced, flights, since_start, spans
from pscale.cli.options import Trace
from pscale.cli.trace import trace
from pscale.errors import UsageError
from pscale.report import drawing
from pscale.report.drawing import draw_steps, shares
from pscale.report.figure_style import mark, vector

LABEL = "<both/> <characters/> -- & name"  # of a suite, which may look like elements
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def placed():
    with drawing.styled():
        figure = drawing.canvas(6, 3, "The title")
        axes = figure.subplots()
        axes.plot([1, 2], [3, 4])
        axes.set_xlabel(f"{LABEL}\x01\ufffe")  # which XML cannot hold
        yield drawing.place(figure)


def tags(svg):
    return [part.tag.removeprefix(SVG) for part in ET.fromstring(svg).iter()]


def test_a_file_has_the_outlines_of_letters_and_a_page_the_letters(placed, tmp_path):
    (file,), page = placed.save(tmp_path, "figure", ["svg"]), placed.inline()
    assert "text" not in tags(file.read_text())
    assert "text" in tags(page)
    outlines = [part for part in ET.parse(file).iter(f"{SVG}path") if "scale(" in part.get("transform", "")]
    assert len(outlines) == len(words(file)), "one for each text"
    assert "&lt;both/&gt; &lt;characters/&gt; - - &amp; name" in words(file)
    assert f"{LABEL}  " in [part.text for part in ET.fromstring(page).iter(f"{SVG}text")]


def test_a_title_in_letters_that_the_font_lacks_is_drawn_without_a_word(tmp_path):
    with drawing.styled():
        figure = drawing.canvas(6, 3, "日本語")
        figure.subplots()
        placed = drawing.place(figure)
        placed.save(tmp_path, "figure", ["svg"])
        assert placed.inline()


def test_a_page_leaves_out_the_title_and_the_paper_and_what_the_title_takes(placed, tmp_path):
    (file,), shown = placed.save(tmp_path, "figure", ["svg"]), vector(placed.inline(), "c0")
    assert "The title" in words(file)
    assert "fill:#ffffff" in file.read_text().replace(" ", "")
    assert "The title" not in shown.inside
    assert "fill:#ffffff" not in shown.inside.replace(" ", "")
    assert 0 < shown.left < 10 < shown.top < 40
    assert shown.width == pytest.approx(72 * 6 - 2 * shown.left)
    assert shown.top + shown.height < 72 * placed.figure.get_figheight()


def test_a_figure_is_drawn_once_for_its_file_and_its_page(placed, tmp_path, monkeypatch):
    drawings, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda *given: (drawings.append(given), draw(*given)))
    placed.save(tmp_path, "figure", ["svg"])
    placed.inline()
    assert len(drawings) == 1


def test_what_a_mark_says_is_a_title_in_a_file_and_on_a_page_names_its_case(tmp_path):
    said, case = 'one "rank" & <two>', "c1"
    with drawing.styled():
        figure = drawing.canvas(3, 2, "marked")
        (dot,) = figure.subplots().plot([1], [1], "o")
        mark(dot, said, case, ["a|b"])
        placed = drawing.place(figure)
        (path,) = placed.save(tmp_path, "marked", ["svg"])
        inside = ET.fromstring(f"<svg>{vector(placed.inline(), 'c0').inside}</svg>")
    assert said in [title.text for title in ET.parse(path).getroot().iter(f"{SVG}title")]
    (group,) = [each for each in inside.iter("g") if each.get("class") == "mark"]
    assert (group[0].text, group.get("data-case"), group.get("data-values")) == (said, case, "a/b")


DRAW = """
from pathlib import Path
from pscale.report import drawing
with drawing.styled():
    figure = drawing.canvas(3, 2, "$title$")
    figure.subplots().plot([1, 2], [3, 4])
    drawing.save(figure, Path("figure.svg"))
"""
RED = "text.usetex: True\naxes.facecolor: red\npath.simplify: False\nsavefig.bbox: tight\n"


def test_no_configuration_of_matplotlib_changes_a_figure_and_that_of_the_folder_is_not_read(tmp_path):
    drawn = {}
    for name in ("plain", "configured"):
        folder = tmp_path / name
        folder.mkdir()
        environ = {key: value for key, value in os.environ.items() if key != "MATPLOTLIBRC"}
        if name == "configured":
            os.mkfifo(folder / "matplotlibrc")  # whoever reads it waits for ever
            (tmp_path / "own").write_text(RED)
            environ["MATPLOTLIBRC"] = str(tmp_path / "own")
        argv = [sys.executable, "-P", "-c", DRAW]
        subprocess.run(argv, cwd=folder, env=environ, check=True, timeout=LIMIT_S)
        drawn[name] = Path(folder, "figure.svg").read_bytes()
    assert drawn["configured"] == drawn["plain"]


# A step as a picture: waits and transfers of its ranks, and what is under way behind their work


TRACED = Path(__file__).parents[1] / "runs" / "schema_1"
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
    trace(Trace(path=TRACED, figure=tmp_path / "step.svg"))
    drawn = (tmp_path / "step.svg").read_text()
    assert "2 ranks · injected 5 ms in forward of rank 0: " in drawn
    assert "all-reduce dp" in drawn
    with pytest.raises(UsageError, match=r"svg, \.png, \.pdf"):
        trace(Trace(path=TRACED, figure=tmp_path / "step.json"))
