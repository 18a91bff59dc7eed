"""The page in a real browser: with a mouse, a keyboard, on a phone, at night, without scripts."""

import os

import pytest
from browser import Browser, found

from pscale.report.figures import draw_figures, inline_figures
from pscale.report.page import render_page

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
CASES = "[aria-labelledby=cases-t]"
COLUMN = f"[...document.querySelectorAll('{CASES} tbody tr')].map(row => row.cells[{{}}].textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not found():
        say = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        say("there is no Chromium: apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def written(summary, hostile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, run in (("page", summary), ("hostile", hostile)):
        (folder / f"{name}.html").write_text(render_page(run, inline_figures(draw_figures(run))))
    return folder


@pytest.fixture
def page(browser, written):
    browser.show()
    browser.open(written / "page.html")
    return browser


@pytest.mark.parametrize("name", ["page", "hostile"])
def test_a_page_asks_the_network_for_nothing_and_the_console_stays_empty(browser, written, name):
    browser.show()
    browser.open(written / f"{name}.html")
    assert browser.requests() == [(written / f"{name}.html").as_uri()]
    assert browser.complaints() == []


def test_a_click_on_a_heading_sorts_and_another_turns_the_order_round(page):
    before = page.value(COLUMN.format(2))
    for order in ("ascending", "descending"):
        page.value(f"document.querySelectorAll('{CASES} th button')[2].click()")
        assert page.value(f"document.querySelectorAll('{CASES} th')[2].ariaSort") == order
        times = [float(text.split()[0]) for text in page.value(COLUMN.format(2)) if text.endswith("ms")]
        assert times == sorted(times, reverse=order == "descending")
        assert sorted(page.value(COLUMN.format(2))) == sorted(before)
        assert not page.value(COLUMN.format(2))[-1].endswith("ms")  # without a time


def test_the_keyboard_reaches_the_findings_and_the_headings_of_tables(page):
    page.press("Tab", 9)
    assert page.value("document.activeElement.textContent") == "Skip to the findings"
    page.value(f"document.querySelector('{CASES} th button').focus()")
    page.press("Enter", 13, text="\r")
    assert page.value(f"document.querySelector('{CASES} th').ariaSort") == "ascending"


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


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_page_is_wider_than_its_screen(browser, written, width):
    for name in ("page", "hostile"):
        browser.show(width=width)
        browser.open(written / f"{name}.html")
        browser.value("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        assert browser.value("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_stands_out_from_its_paper_by_day_and_by_night(page, dark):
    page.show(dark=dark)
    page.value("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    brightness = page.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(brightness) < 64) == dark
    assert page.value(CONTRASTS) == []


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
        browser.open(written / "page.html")
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
