"""The page in a real browser: with a mouse, a keyboard, on a phone, in dark mode, without scripts."""

import pytest

from pscale.report.figures import draw_figures, inline_figures
from pscale.report.page import render_page

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
CASES = "[aria-labelledby=cases-0-t]"
COLUMN = f"[...document.querySelectorAll('{CASES} tbody tr')].map(row => row.cells[{{}}].textContent)"


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


def at(selector):
    return f"""(() => {{ const e = document.querySelector({selector!r});
      e.scrollIntoView({{block: "center"}});
      const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; }})()"""


def point_at(page, selector, across=0.0, up=0.0):
    x, y = page.value(at(selector))
    page.tell("Input.dispatchMouseEvent", type="mouseMoved", x=x + across, y=y + up)
    return page.value("tip.hidden ? '' : tip.textContent")


def test_a_mark_under_the_pointer_says_its_value_and_what_is_of_the_same_case_stands_out(page, summary):
    (two,) = [point for point in summary.points if point.ranks == 2]
    dot = f"#scaling-figure .mark[data-case='{two.case}']"
    assert point_at(page, dot).startswith("dp 2 ranks: efficiency 90.")
    assert point_at(page, dot, across=9).startswith("dp 2 ranks")  # a dot is small: near it is enough
    on = "[...document.querySelectorAll('.on')].every((each) => each.dataset.case === {!r})"
    assert page.value(on.format(two.case))
    assert page.value(f"document.querySelector('{CASES} tr.on').cells[0].textContent") == "dp 2 ranks"
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
    assert page.value(f"{shown}.map((row) => row.cells[0].textContent)") == ["dp 4 ranks"]
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


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_page_is_wider_than_its_screen(browser, written, width):
    for name in ("page", "hostile"):
        browser.show(width=width)
        browser.open(written / f"{name}.html")
        browser.value("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        assert browser.value("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast_in_light_and_dark_mode(page, dark):
    page.show(dark=dark)
    page.value("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    brightness = page.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(brightness) < 64) == dark
    assert page.value(CONTRASTS) == []


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
