import re

from pscale.report.markdown import escaped, render_markdown


def test_every_table_is_well_formed(summary, hostile):
    for page in (render_markdown(summary), render_markdown(hostile)):
        tables = re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE)
        assert len(tables) >= 6
        for table in tables:
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(widths) == 1


def test_the_verdict_figures_and_warnings_are_there(summary):
    page = render_markdown(summary, ["figures/scaling.png"])
    assert page.startswith("# Weak scaling of something made up\n")
    assert "**At 4 ranks, weak scaling is" in page
    assert "](<figures/scaling.png>)" in page
    assert "3.4% longer" in page
    assert "| **1** | **100 ms** |" in page
    assert "| 16 | pending |" in page


def test_texts_of_a_suite_are_no_markup(hostile):
    page = render_markdown(hostile)
    assert "<script>" not in page
    assert "@all" not in page
    assert r"\[red\]\*b\*\[/red\]" in page
    assert "\x1b" not in page


def test_escaping_keeps_the_words_and_what_is_meant_as_code():
    assert escaped("a|b_c*d`e`<f>") == r"a\|b\_c\*d\`e\`&lt;f&gt;"
    assert escaped("set `repeat: 3` & go", code=True) == "set `repeat: 3` &amp; go"
    assert escaped("`OMP_X` `[a](b)", code=True) == r"`OMP_X` \`\[a\](b)"


def test_labels_are_no_markup_in_warnings_and_notes_either(summary):
    label = "<b> `x` [click](http://example.org) *"
    warning = summary.rows("warnings")[0]._replace(case="other", label=label)
    page = render_markdown(summary.replaced(warnings=(warning,), notes=(f"Left out of {label}.",)))
    said = page[page.index("## Warnings") :]
    assert said.count("click") == 2
    assert "[click]" not in said
    assert "<b>" not in said


def test_a_run_without_results_has_its_reasons(failed):
    assert "| dp 2 ranks | failed | \\#1, \\#2, \\#3 | no MPI |" in render_markdown(failed)


def test_efficiencies_are_also_given_by_phase_of_the_largest_case_and_by_axis_where_there_are_several(
    summary,
):
    page = render_markdown(summary)
    start = page.index("## Efficiency by phase")
    by_phase = page[start : page.index("\n## ", start)]
    assert re.findall(r"^\| (.*?) \| (\w+) \|", by_phase, re.MULTILINE)[1:] == [
        ("dp 4 ranks", "data"),
        ("", "forward"),
        ("", "backward"),
        ("", "update"),
    ]
    assert "## Efficiency by axis" not in page, "it would be the tree again"
