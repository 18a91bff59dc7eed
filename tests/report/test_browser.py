"""The page in a real browser: with a mouse, a keyboard, on a phone, in dark mode, without scripts."""

import json
import re
from dataclasses import replace
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.columns import row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load, overlay
from pscale.analysis.history import entries_of, suite_history
from pscale.analysis.stats import Estimate
from pscale.cli.options import Predict
from pscale.cli.predict import predict
from pscale.config import Workload
from pscale.report.comparison import render_history
from pscale.report.page import draw_figures, inline_figures, render_page
from pscale.runs.history import History

pytestmark = pytest.mark.slow

CONTRASTS = """
(() => {
  const luminance = ([r, g, b]) => [r, g, b].map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const colour = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const found = colour(getComputedStyle(each).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    throw new Error("the page has no paper");
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || element.closest("script, svg, .skip") || !element.checkVisibility()) continue;
    const [ink, paper] = [colour(getComputedStyle(element).color), behind(element)].map(luminance);
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) found.push([element.textContent.trim().slice(0, 40), ratio]);
  }
  return found;
})()
"""
CASES = "[aria-labelledby=scaling-0-t]"
COLUMN = f"[...document.querySelectorAll('{CASES} tbody tr')].map(row => row.cells[{{}}].textContent)"


GALLERY = Path(__file__).parents[2] / "reports" / "gallery"
KINDS = ("page", "hostile", "failed", "workload", "watched", "steps", "several", "history", "prediction")
SUITE = """
name: later
scaling: weak
model: {kind: gpt, layers: 8, width: 64, heads: 4, sequence: 128, vocabulary: 256}
data: {kind: synthetic}
train: {batch: "=8 * ranks", micro_batches: 4, steps: 5}
plan: {pp: 2, dp: rest}
sweep: {ranks: [2, 4]}
launch: {oversubscribe: true}
"""


def program(folder, *, watch):
    """Return a run of somebody's program, watched or with a figure of merit."""
    workload = Workload(command="./a.out", watch=watch)
    settings = {"noise": 0.1, "launch_noise": 0.5, "workload": workload}
    points = [Point(ranks=ranks, late_s={1: 0.03}, **settings) for ranks in (1, 2, 4)]
    summary = summary_of(folder / f"program-{watch}", points)
    rate = Estimate(value=9.5, low=9.0, high=10.0)
    of_case = {"figure": "rate", "unit": "GB/s", "better": "higher", "launches": 3, "value": rate}
    merits = tuple(row("merits", case=point.case, **of_case) for point in summary.rows("cases"))
    return summary if watch else summary.replaced(merits=merits)


def asked(run, folder):
    """Return what to predict from an example's parts."""
    costs = {"tokens": "1B", "price": 2.0, "draws": 20}
    return Predict(
        suite=folder / "later.yaml", reports=folder, profiled=GALLERY / run, any_machine=True, **costs
    )


def recorded(folder, number):
    """Return what a history keeps of a run; the later half is slower."""
    settings = {"launch_noise": 0.005, "plan_row": {"started_unix_s": 1.7e9 + 86400 * number}}
    points = [Point(ranks=ranks, compute_s=0.1 if number < 4 else 0.13, **settings) for ranks in (1, 2)]
    return entries_of(load(write_run(folder, points, steps=6, seed=number)))


def course_of(folder):
    """Return the history of eight runs."""
    kept = [entry for number in range(8) for entry in recorded(folder / f"run{number}", number)]
    return suite_history(History(suite="synthetic", entries=tuple(kept), acceptances=(), damaged=()))


def test_a_history_of_many_cases_says_how_many_it_draws(tmp_path):
    course = course_of(tmp_path)
    many = replace(course, cases=course.cases * 13)
    assert "24 of 26 cases are drawn; the tables have all." in render_history(many)
    assert "are drawn;" not in render_history(course)


@pytest.fixture(scope="module")
def written(summary, hostile, failed, tmp_path_factory):
    """Return a function that writes a page of some kind, once, and returns its path."""
    folder = tmp_path_factory.mktemp("pages")
    run_of = {
        "page": lambda: summary,
        "hostile": lambda: hostile,
        "failed": lambda: failed,
        "workload": lambda: program(folder, watch=False),
        "watched": lambda: program(folder, watch=True),
        "steps": lambda: Findings(load(GALLERY / "pipeline")),
        "several": lambda: Findings(overlay([load(GALLERY / name) for name in ("weak", "strong")], folder)),
    }

    @cache
    def write(name):
        path = folder / f"{name}.html"
        if name == "history":
            path.write_text(render_history(course_of(folder)))
        elif name == "prediction":
            (folder / "later.yaml").write_text(SUITE)
            predict(asked("pipeline", folder))
            (folder / "later.prediction.html").rename(path)
        else:
            run = run_of[name]()
            path.write_text(render_page(run, inline_figures(draw_figures(run))))
        return path

    return write


@pytest.fixture
def page(browser, written):
    browser.show()
    browser.open(written("page"))
    return browser


AUDIT = """axe.run(document, {resultTypes: ["violations"]}).then((found) =>
  found.violations.flatMap((each) => each.nodes.map((node) => [each.id, node.html.slice(0, 200)])))"""


@pytest.fixture
def shown(browser, written):
    """Return a function that shows a page of some kind with everything unfolded."""

    def show(name, **screen):
        browser.show(**screen)
        browser.open(written(name))
        if browser.value("document.getElementById('packed') !== null"):
            browser.until("document.documentElement.dataset.ready === ''")
        browser.value("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return browser

    return show


@pytest.mark.parametrize("name", KINDS)
def test_an_audit_of_accessibility_finds_nothing(shown, axe, name):
    for screen in ({}, {"width": 390, "dark": True}):
        page = shown(name, **screen)
        page.value(f"{axe}; 0")
        assert page.value(AUDIT) == []


@pytest.mark.parametrize("name", KINDS)
def test_the_filter_of_cases_leaves_nothing_of_the_others_in_any_table(shown, name):
    page = shown(name)
    cases = page.value("JSON.parse(document.querySelector('nav').dataset.cases ?? '{}')")
    assert len(cases) > 1
    first, *others = cases.values()
    page.press("/", 191, text="/")
    page.value(f"document.activeElement.value = {json.dumps(first)}")
    page.value("document.activeElement.dispatchEvent(new Event('input'))")
    left = page.value("""[...document.querySelectorAll("tr > *, figure h3")]
      .filter((each) => each.checkVisibility()).map((each) => each.textContent.trim())""")
    kept = [label for label in others if all(word in label.lower() for word in first.lower().split())]
    assert not {label for label in others if label not in kept} & {*left}


@pytest.mark.parametrize("name", ["page", "hostile"])
def test_a_page_asks_the_network_for_nothing_and_the_console_stays_empty(browser, written, name):
    browser.show()
    browser.open(written(name))
    assert browser.requests() == [written(name).as_uri()]
    assert browser.complaints() == []


def test_a_click_on_a_heading_sorts_and_another_turns_the_order_round(page):
    before = page.value(COLUMN.format(1))
    for order in ("ascending", "descending"):
        page.value(f"document.querySelectorAll('{CASES} th button')[1].click()")
        assert page.value(f"document.querySelectorAll('{CASES} th')[1].ariaSort") == order
        times = [float(text.split()[0]) for text in page.value(COLUMN.format(1)) if text.endswith("ms")]
        assert times == sorted(times, reverse=order == "descending")
        assert sorted(page.value(COLUMN.format(1))) == sorted(before)
        assert not page.value(COLUMN.format(1))[-1].endswith("ms")  # without a time


SORTED = """[...document.querySelectorAll("table[data-sort]")].flatMap((table) =>
  [...table.tHead.rows[0].cells].flatMap((heading, column) => {
    const order = () => {
      heading.querySelector("button").click();
      return [...table.tBodies[0].rows].map((row) => row.cells[column].textContent.trim()); };
    return heading.textContent ? [[heading.textContent, order(), order()]] : []; }))"""
NUMBER = re.compile(
    r"([+−-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)(?:[–%*]| (?:([µnmkKMGT])(?:iB|s|\b)|s|B|h|of|to|±|×|\[)|$)"
)
SCALES = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1 << 10, "M": 1e6, "G": 1e9, "T": 1e12}


def number_in(words):
    """Return the number that a cell begins with, in a unit without prefix; None: it is another text."""
    found = NUMBER.match(re.sub(r" ± [\d.]+ (?=\D)", " ", words))  # 214.4 ± 7.2 ms
    return found and float(found[1].replace(",", "").replace("−", "-")) * SCALES.get(found[2], 1)


@pytest.mark.parametrize("name", KINDS)
def test_every_column_is_sorted_by_the_numbers_that_it_shows_and_other_words_come_last(shown, name):
    of_numbers = 0
    for heading, *orders in shown(name).value(SORTED):
        for words, sign in zip(orders, (1, -1), strict=True):
            numbers = [number_in(each) for each in words]
            count = len(numbers) - numbers.count(None)
            assert None not in numbers[:count], (heading, words)
            assert [sign * each for each in numbers[:count]] == sorted(
                sign * each for each in numbers[:count]
            )
        of_numbers += len({*numbers}) > 1
    assert of_numbers


def test_the_keyboard_reaches_the_findings_and_the_headings_of_tables(page):
    page.press("Tab", 9)
    assert page.value("document.activeElement.textContent") == "Skip to the findings"
    page.value(f"document.querySelector('{CASES} th button').focus()")
    page.press("Enter", 13, text="\r")
    assert page.value(f"document.querySelector('{CASES} th').ariaSort") == "ascending"


def at(selector):
    return f"""(() => {{ const e = document.querySelector({selector!r});
      e.scrollIntoView({{block: "center"}});
      const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; }})()"""


def point_at(page, selector, across=0.0, up=0.0):
    x, y = page.value(at(selector))
    page.tell("Input.dispatchMouseEvent", type="mouseMoved", x=x + across, y=y + up)
    return page.value("tip.hidden ? '' : tip.textContent")


def test_a_mark_under_the_pointer_says_its_value_and_what_is_of_the_same_case_stands_out(page, summary):
    (two,) = [point for point in summary.rows("cases") if point.ranks == 2]
    dot = f"#scaling-figure .mark[data-case='{two.case}']"
    assert point_at(page, dot).startswith("dp 2 ranks: efficiency 90.")
    assert point_at(page, dot, across=9).startswith("dp 2 ranks")  # a dot is small: near it is enough
    on = "[...document.querySelectorAll('.on')].every((each) => each.dataset.case === {!r})"
    assert page.value(on.format(two.case))
    assert page.value(f"document.querySelector('{CASES} tr.on').cells[0].textContent") == "2"
    assert page.value("document.querySelectorAll('#breakdown-figure .mark.on').length") > 3
    assert point_at(page, "h1") == ""
    assert page.value("document.querySelectorAll('.on, .linked').length") == 0


def test_a_curve_says_its_value_below_the_pointer(page):
    box = "document.querySelector('#loss-figure .mark').getBoundingClientRect()"
    page.value("document.querySelector('#loss-figure').scrollIntoView({block: 'center'})")
    left, top = page.value(f"[{box}.left + 1, {box}.top + 1]")
    page.tell("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)
    assert page.value("tip.textContent").endswith("step 0: 5.5")


def test_arrows_of_the_keyboard_go_from_mark_to_mark(page):
    page.value("document.querySelector('#breakdown-figure svg').focus()")
    said = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.press(key, 0)
        said.append(page.value("tip.textContent"))
    assert said[0] == said[2] != said[1]
    assert "of the step" in said[0]
    page.press("Escape", 27)
    assert page.value("tip.hidden")


def test_the_filter_of_cases_acts_on_every_table_and_figure(page):
    page.until("document.documentElement.dataset.ready === ''")
    page.press("/", 191, text="/")
    page.value("document.activeElement.value = '4 ranks'")
    page.value("document.activeElement.dispatchEvent(new Event('input'))")
    assert page.value("document.querySelector('nav output').textContent") == "1 of 5"
    shown = f"[...document.querySelectorAll('{CASES} tbody tr')].filter((row) => row.checkVisibility())"
    assert page.value(f"{shown}.map((row) => row.cells[0].textContent)") == ["4"]
    marks = "[...document.querySelectorAll('#breakdown-figure .mark')]"
    assert set(page.value(f"{marks}.map((mark) => getComputedStyle(mark).opacity)")) == {"1", "0.12"}


def test_a_phone_shows_efficiency_first(page):
    page.show(width=390)
    top = "document.querySelector('#verdict {}').getBoundingClientRect().top"
    assert page.value(f"{top.format('.tiles')} < {top.format('.verdict')}")
    assert page.value("document.querySelector('.tiles dt').textContent").startswith("Efficiency")


@pytest.mark.parametrize(("width", "least"), [(1400, 1), (800, 4), (390, 6)])
def test_a_table_begins_without_the_spare_columns_that_it_has_no_room_for(page, width, least):
    page.show(width=width)
    cells = f"[...document.querySelectorAll('{CASES} thead th')]"
    hidden = f"{cells}.filter((each) => !each.checkVisibility()).map((each) => each.className)"
    page.until(f"{hidden}.length >= {least}")
    assert all("x" in classes.split() for classes in page.value(hidden))
    box = f"document.querySelector('{CASES} table').parentElement"
    if width > 390:
        assert page.value(f"{box}.scrollWidth <= {box}.clientWidth")
    page.value("document.querySelector('#scaling .wider').click()")
    assert page.value(hidden) == []


def test_the_waterfall_begins_each_loss_where_the_one_before_it_ends(page):
    bars = page.value("""[...document.querySelectorAll('.track i')].map((each) => {
        const bar = each.getBoundingClientRect(), track = each.parentElement.getBoundingClientRect();
        return [(bar.left - track.left) / track.width, (bar.right - track.left) / track.width]; })""")
    assert len(bars) > 1
    assert [start for start, _ in bars] == pytest.approx([0, *(stop for _, stop in bars[:-1])], abs=0.02)
    assert bars[-1][1] == pytest.approx(1, abs=0.02)
    times = page.value("[...document.querySelectorAll('.fall .time')].map((each) => each.textContent)")
    assert all(time.endswith(("ms", "µs")) for time in times)


def test_words_in_the_filter_leave_the_rows_that_have_them_all(page):
    page.value("""
        (() => { const box = document.querySelector("#phases input");
          box.closest("details").open = true;
          box.value = "4 ranks SYNC"; box.dispatchEvent(new Event("input")); })()""")
    shown = page.value("""
        [...document.querySelectorAll("#phases tbody tr")].filter((row) => row.checkVisibility())
        .map((row) => row.cells[0].textContent + " " + row.cells[1].textContent)""")
    assert shown == ["dp 4 ranks sync"]
    assert page.value('document.querySelector("#phases output").textContent').startswith("1 of ")


@pytest.mark.parametrize("name", KINDS)
def test_no_page_is_wider_than_its_screen(shown, name):
    page = shown(name, width=320)
    for width in (320, 390, 768, 1280):
        page.show(width=width)
        assert page.value("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast_in_light_and_dark_mode(page, dark):
    page.show(dark=dark)
    page.value("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    brightness = page.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(brightness) < 64) == dark
    assert page.value(CONTRASTS) == []


@pytest.mark.parametrize("name", KINDS)
def test_bars_and_swatches_keep_their_colours_and_a_border_where_colours_are_forced(shown, name):
    page = shown(name)
    look = """[...document.querySelectorAll("main i")]
      .filter((each) => !each.textContent.trim() && each.checkVisibility()).map((each) => {
        const { backgroundColor, backgroundImage, borderTopWidth } = getComputedStyle(each);
        return [backgroundColor, backgroundImage, borderTopWidth]; })"""
    before = page.value(look)
    page.tell("Emulation.setEmulatedMedia", features=[{"name": "forced-colors", "value": "active"}])
    assert page.value("matchMedia('(forced-colors: active)').matches")
    assert page.value(look) == [[colour, image, "1px"] for colour, image, _ in before]
    assert before or name in {"failed", "history"}


def test_figures_are_inverted_in_dark_mode_and_not_in_print(page):
    look = (
        "[...document.querySelectorAll('.chart svg, .stack i')].map((each) => getComputedStyle(each).filter)"
    )
    turned = {}
    for dark, media in ((True, "screen"), (False, "screen"), (True, "print")):
        page.show(dark=dark, media=media)
        turned[dark, media] = set(page.value(look))
    assert turned == {
        (True, "screen"): {"invert(0.93) hue-rotate(180deg)"},
        (False, "screen"): {"none"},
        (True, "print"): {"none"},
    }


def test_a_printer_gets_everything_open_and_no_controls(page):
    page.show(media="print", dark=True)
    assert page.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.value("getComputedStyle(document.querySelector('.filter')).display") == "none"
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.value("dispatchEvent(new Event('beforeprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") == 0
    page.value("dispatchEvent(new Event('afterprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") > 0


def test_without_scripts_only_sorting_and_filtering_are_missing(browser, written):
    browser.tell("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.show()
        browser.open(written("page"))
        answer = browser.tell("DOM.getDocument", depth=-1)
    finally:
        browser.tell("Emulation.setScriptExecutionDisabled", value=False)
    tags = list(_tags(answer["root"]))
    assert "BUTTON" not in tags
    assert "INPUT" not in tags
    assert tags.count("TABLE") > 5
    assert tags.count("svg") == 5


def _tags(node):
    yield node["nodeName"]
    for child in node.get("children", ()):
        yield from _tags(child)


class Strict(SimpleHTTPRequestHandler):
    """A server with the Content-Security-Policy that Jenkins' HTML publisher has by default."""

    def end_headers(self):
        policy = "sandbox; default-src 'none'; img-src 'self'; style-src 'self';"
        self.send_header("Content-Security-Policy", policy)
        super().end_headers()

    def log_message(self, *_):
        """Keep the terminal clean."""


@pytest.fixture
def strict(browser, written):
    """Return the address of a server that has the written pages; the browser runs scripts afterwards."""
    pages = partial(Strict, directory=written("page").parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
    browser.tell("Emulation.setScriptExecutionDisabled", value=False)


def test_a_policy_without_scripts_and_styles_leaves_the_words_and_the_drawings_their_colours(
    browser, written, strict
):
    look = """[...document.querySelectorAll(".chart svg *")].map((each) => {
      const { fill, stroke, strokeWidth, textAnchor, opacity } = getComputedStyle(each);
      return [each.tagName, fill, stroke, strokeWidth, textAnchor, opacity]; })"""
    words = "[...document.querySelectorAll('main td, .verdict')].map((each) => each.textContent)"
    browser.show()
    seen = []
    for page in (written("page"), f"{strict}/{written('page').name}"):
        browser.tell("Emulation.setScriptExecutionDisabled", value=page is written("page"))
        browser.open(page)
        seen.append((browser.value(look), browser.value(words)))
    assert seen[0] == seen[1]
    assert len({fill for _, fill, *_ in seen[1][0]}) > 5
    assert browser.value("getComputedStyle(document.querySelector('.stack i')).flexGrow") == "0"
