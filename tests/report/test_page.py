import re
from itertools import pairwise
from urllib.parse import unquote

import pytest
from page_reader import read
from synthetic import Point, replicated, summary_of

from pscale.analysis.text import clean, size_of
from pscale.report.exports import csv_tables
from pscale.report.figure_style import vector
from pscale.report.page import draw_figures, inline_figures, render_page


def page_of(summary):
    return render_page(summary, inline_figures(draw_figures(summary)))


@pytest.fixture(scope="module")
def page(summary):
    return read(page_of(summary))


@pytest.fixture(scope="module")
def hostile_text(hostile):
    return page_of(hostile)


def section(page, name):
    (found,) = [each for each in page.all("section") if each.attributes["id"] == name]
    return found


def table(part, name):
    (found,) = [each for each in part.all("table") if each.attributes["aria-labelledby"] == f"{name}-t"]
    return [[cell.words for cell in row.children] for row in found.all("tr")]


def test_the_page_has_every_section_that_there_are_findings_for_in_order(page):
    names = [each.attributes["id"] for each in page.all("section")]
    assert names == [
        *("verdict", "scaling", "efficiency", "costs", "phases", "waits"),
        *("communication", "loss", "problems", "provenance", "data"),
    ]
    assert [link.attributes["href"][1:] for link in page.all("nav")[0].all("a")] == names


def test_the_verdict_comes_first_with_its_figures(page, summary):
    first = section(page, "verdict")
    assert first.all("p")[0].words == summary.headlines[0].text
    efficiency = next(point.efficiency for point in summary.rows("cases") if point.ranks == 4)
    assert f"{efficiency.value:.1%}" in first.all("dd")[0].words
    shares = [
        float(part.attributes["style"].partition(":")[2])
        for part in first.all("i")
        if part.attributes.get("style", "").startswith("flex-grow")
    ]
    assert sum(shares) == pytest.approx(1, abs=0.02)


def test_efficiencies_have_their_intervals_below_and_are_coloured_by_band(page, summary):
    (tree,) = [each for each in summary.of_case("efficiency").values() if summary.case(each.case).ranks == 4]
    found = next(each for each in section(page, "efficiency").all("table") if "overall" in each.words)
    names = [cell.words for cell in found.all("thead")[0].all("th")]
    (row,) = [row.children for row in found.all("tbody")[0].all("tr") if row.children[0].words == "4"]
    cells = dict(zip(names, row, strict=True))
    assert cells["overall"].words.startswith(f"{tree.overall.value:.1%}")
    assert cells["overall"].all("small")[0].words.startswith(f"{tree.overall.low:.1%}"[:-1])
    assert cells["balance"].words.startswith(f"{tree.load_balance.value:.1%}")
    assert 0.6 <= tree.load_balance.value < 0.9
    assert cells["balance"].attributes["class"] == ("b-good" if tree.load_balance.value >= 0.8 else "b-fair")
    assert "b-" not in cells["unacc."].attributes.get("class", ""), "a loss is no efficiency"


def test_what_failed_and_what_is_still_pending_is_reported_with_reasons(page, failed):
    told = section(page, "problems")
    assert "rank 3 died: MemoryError" in told.words
    assert "synthetic" not in told.all("h2")[0].words
    assert [row[1] for row in table(told, "problems-1")[1:]] == ["pending"]
    nothing = read(page_of(failed))
    assert "no MPI" in section(nothing, "problems").words
    assert "Nothing was measured" in section(nothing, "verdict").words
    assert not nothing.all("svg")


def test_warnings_that_several_cases_share_are_said_and_counted_once(summary):
    (warning,) = summary.rows("warnings")
    case = next(each.case for each in summary.rows("cases")[::-1] if each.case != warning.case)
    other = warning._replace(case=case, text="Recording makes steps longer.")
    page = read(render_page(summary.replaced(warnings=(warning, other)), {}))
    said = f"2 cases, such as {warning.label}: {warning.text}"
    assert [line.words for line in section(page, "problems").all("p")[1:2]] == [said]
    assert re.search(r"\b1 warning\b", section(page, "verdict").words)


def test_every_file_that_csv_writes_is_inside_the_page_with_its_size_in_bytes(hostile, hostile_text):
    tables = csv_tables(hostile)
    links = [link for link in read(hostile_text).all("a") if "download" in link.attributes]
    found = {link.attributes["download"]: link for link in links}
    assert found.keys() == {f"{name}.csv" for name, content in tables.items() if content.count("\n") > 1}
    for name, link in found.items():
        head, _, data = link.attributes["href"].partition(",")
        content = tables[name.removesuffix(".csv")]
        assert (head, unquote(data)) == ("data:text/csv;charset=utf-8", content)
        assert link.words == f"{name} ({size_of(len(content.encode()))})"
    assert any(len(content) < len(content.encode()) for content in tables.values())


def test_every_figure_has_its_data(page):
    for figure in [each for each in page.all("figure") if each.attributes["class"] == "chart"]:
        assert len(figure.all("svg")) == 1
        assert figure.all("table"), figure.attributes["id"]


def test_no_text_of_a_suite_becomes_markup_or_leads_away(hostile, hostile_text):
    page = read(hostile_text)
    packed, script = page.all("script")
    assert packed.attributes["type"] == "application/octet-stream"  # data: nothing runs it
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", packed.words)
    assert "innerHTML" not in script.words
    assert page.all("h1")[0].words == " ".join(clean(hostile.title).split())
    assert not page.all("red")
    addresses = [link.attributes["href"] for tag in ("a", "link") for link in page.all(tag)]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "\x1b" not in hostile_text
    assert "https://" not in hostile_text.replace("http://www.w3.org", "")


def test_every_name_is_there_once_and_every_reference_has_its_target(hostile_text):
    ids = re.findall(r'\bid="([^"]*)"', hostile_text)
    assert len(ids) == len(set(ids))
    referred = re.findall(r'(?:href="|url\()#([\w-]+)', hostile_text)
    referred += " ".join(re.findall(r'aria-labelledby="([^"]*)"', hostile_text)).split()
    assert set(referred) <= set(ids)
    assert referred


def test_headings_are_in_order_and_figures_and_tables_have_names(page):
    levels = [int(tag[1]) for tag in re.findall(r"h[1-6]", " ".join(_tags(page)))]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for drawing in page.all("svg"):
        assert drawing.attributes["role"] == "img"
        assert [len(drawing.all(part)[0].words) > 10 for part in ("title", "desc")] == [True, True]
    assert all("aria-labelledby" in each.attributes for each in page.all("table"))
    assert {part for part in ("header", "nav", "main", "footer") if page.all(part)} == {
        *("header", "nav", "main", "footer")
    }


def _tags(element):
    for child in element.children:
        yield f"<{child.tag}>" if re.fullmatch(r"h[1-6]", child.tag) else ""
        yield from _tags(child)


@pytest.mark.slow
def test_a_page_of_a_thousand_cases_lists_them_all_and_stays_small(summary):
    text = page_of(replicated(summary, 200))
    assert len(text.encode()) < 5_000_000
    page = read(text)
    assert len(table(page, "scaling-0")) == 1 + 1000
    assert len(table(page, "phases-0")) < 500
    notes = " ".join(note.words for note in page.all("p"))
    assert re.search(r"\b400 of \d,\d{3} rows are listed here\.", notes)
    assert "pscale report --format csv" in notes


def test_plans_side_by_side_are_ranked_and_not_drawn_as_sizes(tmp_path):
    points = [
        Point(ranks=4, series=name, label=name, transfer_s=0.001 * place, plan_row={"pp": 2})
        for place, name in enumerate(("a", "bb", "ccc"))
    ]
    page = read(page_of(summary_of(tmp_path / "run", points)))
    assert section(page, "efficiency")
    assert len(table(page, "efficiency-0")) == 4


def test_without_figures_the_tables_say_all_of_it(summary):
    page = read(render_page(summary, {}))
    assert not page.all("svg")
    assert len(table(page, "scaling-0")) == 1 + len(summary.rows("cases"))
    assert table(page, "phases-0")


def test_cells_are_sorted_by_their_values_and_not_by_their_texts(page, summary):
    rows = [row.children for row in section(page, "scaling").all("tbody")[0].all("tr")]
    (cells,) = [row for row in rows if row[0].words == "4"]
    step = summary.rows("cases")[2].step_s
    shown = [float(cell.attributes["data-o"]) for cell in cells[1:3]]
    assert shown == [pytest.approx(step.value, rel=1e-5), pytest.approx(step.low, rel=1e-5)]
    assert "data-o" not in cells[0].attributes, "the text is the number"


def test_words_in_backticks_are_code_and_nothing_else_becomes_markup(tmp_path):
    points = [Point(ranks=1, status="failed", reason="set `OMP_NUM_THREADS` <b>now</b>")]
    page = page_of(summary_of(tmp_path / "run", points))
    assert "set <code>OMP_NUM_THREADS</code> &lt;b&gt;now&lt;/b&gt;" in page


def test_a_drawing_has_no_name_that_another_one_has(summary):
    drawn = inline_figures(draw_figures(summary.replaced(title="<b>&")))
    both = [vector(svg, name).inside for name, svg in drawn.items()]
    ids = [set(re.findall(r'id="([^"]*)"', inside)) for inside in both]
    assert not set.intersection(*ids[:2])
    assert not any("<b>" in inside or "font-family" in inside for inside in both)
