"""What a page draws by itself: timelines that zoom, on other networks; maps of ranks and steps."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic import Point, summary_of

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.network import launch_of, wall_ns
from pscale.analysis.steps import cells, wait_maps
from pscale.report import drawing
from pscale.report.figure_style import CLIPPED
from pscale.report.page import inline_figures, recorded_steps, render_page
from pscale.report.topics import steps
from pscale.simulator.network import IDEAL, Link, Network

pytestmark = pytest.mark.slow

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"
LINE, MAP = "#timeline-figure", "#wait-figure"


def page_of(summary, path):
    """Write the page of a run with its timeline and its map alone."""
    with drawing.styled():
        drawn = {topic.figure.name: topic.figure.draw(summary) for topic in (steps.PIPELINE, steps.WAITS)}
        placed = {name: drawing.place(figure) for name, figure in drawn.items() if figure}
    path.write_text(render_page(summary, inline_figures(placed)))
    return path


@pytest.fixture(scope="module")
def run():
    return load(GALLERY / "pipeline")


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    return page_of(Findings(run), tmp_path_factory.mktemp("live") / "page.html")


@pytest.fixture
def page(browser, written):
    browser.show()
    browser.open(written)
    browser.until("document.documentElement.dataset.ready === ''")
    return browser


def choose(page, figure, label, place):
    page.value(f"""(() => {{ const box = [...document.querySelectorAll("{figure} label")]
      .find((each) => each.textContent.startsWith("{label}")).querySelector("select");
      box.selectedIndex = {place}; box.dispatchEvent(new Event("change")); }})()""")


def hover(page, figure, x, y):
    """Move the mouse to a place of a canvas, in shares of its width and height; returns what is said."""
    left, top, width, height = page.value(
        f"""(() => {{ const canvas = document.querySelector("{figure} canvas");
        canvas.scrollIntoView({{block: "center"}}); const r = canvas.getBoundingClientRect();
        return [r.left, r.top, r.width, r.height]; }})()"""
    )
    at = {"x": left + x * width, "y": top + y * height}
    page.tell("Input.dispatchMouseEvent", type="mouseMoved", **at)
    return page.value("tip.hidden ? '' : tip.textContent"), at


def press(page, at, kind):
    page.tell("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **at)


def test_a_step_on_another_network_takes_as_long_in_the_page_as_in_the_analysis_to_the_digit(page, run):
    networks = [
        None,
        IDEAL,
        Link(latency_s=5e-6, bytes_per_s=1e10),
        Link(latency_s=1.23e-3, bytes_per_s=3.3e7),
    ]
    cases = page.value("pscale.cases")
    steps = {launch.case: launch_of(events) for launch, events, _ in recorded_steps(run, 10_000)}
    assert sorted(cases) == sorted(steps)
    for place, case in enumerate(cases):
        recorded, found = steps[case], []
        for link in networks:
            slow = link and {"latencyS": link.latency_s, "bytesPerS": min(link.bytes_per_s, 1e300)}
            links = json.dumps([slow] * len(recorded.axes))
            found.append(page.value(f"pscale.expected({place}, {links})"))
        assert found == [wall_ns(recorded, Network(links={"all": link} if link else {})) for link in networks]
        assert found[1] < found[0] < found[3]


def test_the_timeline_says_what_a_rank_does_and_zooms_where_it_is_dragged(page):
    said, start = hover(page, LINE, 0.2, 0.4)
    assert said.startswith("rank 0 · ")
    assert page.value("document.querySelectorAll('tr.on').length") > 0
    everything = page.value("tip.textContent.match(/from (.*)/)[1]")
    press(page, start, "mousePressed")
    _, stop = hover(page, LINE, 0.25, 0.4)
    press(page, stop, "mouseReleased")
    first, _ = hover(page, LINE, 0.07, 0.4)
    assert first.split("from ")[1] != "0 ns"
    page.value(f"document.querySelector('{LINE} canvas').dispatchEvent(new Event('dblclick'))")
    assert hover(page, LINE, 0.2, 0.4)[0].split("from ")[1] == everything


def test_the_chooser_shows_another_case_and_the_keyboard_goes_through_its_spans(page):
    names = page.value(
        f"[...document.querySelectorAll('{LINE} select option')].map((each) => each.textContent)"
    )
    zero = next(place for place, name in enumerate(names) if name.startswith("zero-bubble"))
    choose(page, LINE, "Case", zero)
    assert "weight gradients, deferred" in page.value(f"document.querySelector('{LINE} .key').textContent")
    page.value(f"document.querySelector('{LINE} canvas').focus()")
    said = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
        page.press(key, 0)
        said.append(page.value("tip.textContent"))
    assert [each[:6] for each in said] == ["rank 0", "rank 0", "rank 1", "rank 0"]
    assert len(set(said)) > 2
    page.press("Escape", 27)
    assert page.value("tip.hidden")


def test_sliders_of_the_network_redraw_the_step_and_say_how_long_it_takes(page):
    sliders = f"[...document.querySelectorAll('{LINE} input[type=range]')]"
    assert page.value(f"{sliders}.some((each) => each.checkVisibility())") is False
    before = page.value(f"document.querySelector('{LINE} canvas').clientHeight")
    page.value(f"document.querySelector('{LINE} input[type=checkbox]').click()")
    page.until(f"document.querySelector('{LINE} canvas').clientHeight > {before}")  # a second timeline
    sentence = f"document.querySelector('{LINE} .note').textContent"
    fast = page.value(sentence)
    assert "latency: 5us, bandwidth: 10GB/s" in fast
    page.value(
        f"(() => {{ const [latency] = {sliders}; latency.value = -2;"
        " latency.dispatchEvent(new Event('input')); })()"
    )
    slow = page.value(sentence)
    assert "latency: 10000us" in slow
    assert "(+" in slow
    assert page.value(f"{sliders}.map((each) => each.ariaValueText)") == ["10 ms", "10 GB/s"]


def test_the_map_has_every_launch_and_says_the_wait_of_a_cell(page, run):
    launches = page.value(f"document.querySelectorAll('{MAP} select')[1].length")
    assert launches == 3
    choose(page, MAP, "Launch", 2)
    case = page.value(
        "(() => { const box = document.querySelector('#wait-figure select');"
        " return box.options[box.selectedIndex].textContent; })()"
    )
    said, _ = hover(page, MAP, 0.08, 0.1)
    assert said.startswith("rank 0 · step 0: wait ")
    (found,) = [row for row in run.cases.itertuples() if row.label == case and row.repeat == 2]
    third = cells(list(wait_maps(run, [found.case]))[2])
    told_ms = float(said.split("wait ")[1].split()[0]) * {"ms": 1, "µs": 1e-3}[said.split()[-1]]
    assert told_ms == pytest.approx(third[0, 0] * 1e3, rel=0.01)
    assert np.percentile(third, CLIPPED) < third.max()
    choose(page, MAP, "Time", 1)
    assert hover(page, MAP, 0.08, 0.1)[0].startswith("rank 0 · step 0: compute ")


def test_live_figures_stand_in_for_the_drawn_ones_on_a_screen_alone(page):
    drawn = f"getComputedStyle(document.querySelector('{LINE} .scroll')).display"
    live = f"getComputedStyle(document.querySelector('{LINE} .live')).display"
    assert page.value(f"[{drawn}, {live}]") == ["none", "block"]
    page.show(media="print")
    assert page.value(f"[{drawn}, {live}]") == ["block", "none"]
    assert page.complaints() == []


def test_a_page_of_a_thousand_ranks_has_a_map_that_says_what_was_clipped_and_left_out(browser, tmp_path):
    points = [Point(ranks=ranks, noise=0.02, transfer_s=0.01) for ranks in (1, 1024)]
    points += [Point(ranks=2, series="s" * length) for length in range(1, 62)]
    summary = summary_of(tmp_path / "run", points, repeats=1, steps=2)
    path = page_of(summary, tmp_path / "page.html")
    assert path.stat().st_size < 2_000_000
    browser.show()
    browser.open(path)
    browser.until("document.documentElement.dataset.ready === ''")
    choose(browser, MAP, "Case", 0)
    rows = browser.value(f"document.querySelector('{MAP} canvas').clientHeight")
    assert rows > 1024
    assert "Of 62 cases on several ranks, the 60 that wait most" in browser.value(
        f"document.querySelector('{MAP} .live').textContent"
    )
    assert browser.complaints() == []
