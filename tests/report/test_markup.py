import re

import pytest

from pscale.report.markup import escaped, latex_escaped, render_latex, render_markdown


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


ESCAPES = re.compile(r"\\[&%$#_{}]|\\\\|\\[A-Za-z]+|\$[^$]*\$")


def tabulars(page):
    """Return column letters and rows of every table."""
    found = re.findall(
        r"\\begin\{tabular\}\{([^\n]*)\}\n\\toprule\n(.*?)\\bottomrule\n\\end\{tabular\}", page, re.DOTALL
    )
    return [
        (re.findall(r"[rl]|p\{[^}]*\}", columns), rows.replace("\\midrule\n", "").splitlines())
        for columns, rows in found
    ]


def bare(page):
    """Return what is left without comments, commands and escapes: nothing special may be."""
    lines = [line for line in page.splitlines() if not line.startswith("% ")]
    return ESCAPES.sub("", "\n".join(lines))


@pytest.mark.parametrize("kind", ["summary", "hostile", "failed"])
def test_everything_special_is_escaped_and_every_row_has_its_cells(kind, request):
    page = render_latex(request.getfixturevalue(kind))
    assert not re.search(r"[%$#_~^\\<>|\"`]", bare(page).replace(r"&", ""))
    assert all(ord(letter) < 0x180 for letter in page)
    depth = 0
    for brace in re.findall(r"[{}]", bare(page)):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    found = tabulars(page)
    assert len(found) == page.count(r"\begin{table}") == page.count(r"\end{table}") > 0
    for columns, rows in found:
        assert len(rows) > 1
        for row in rows:
            assert row.endswith(r" \\")
            assert len(re.findall(r"(?<!\\)&", row)) + 1 == len(columns)


def test_a_paper_gets_the_numbers_of_the_report(summary):
    page = render_latex(summary)
    assert r"\caption{Scaling}" in page
    scaling = tabulars(page)[0][1]
    assert scaling[0].startswith("{}ranks & step & 95\\% interval & speed-up & efficiency")
    assert scaling[1].startswith(r"{}\textbf{1} & \textbf{10")
    assert "tokens/s" not in page, "columns for wide screens are for wide screens"


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("a_b & 5% {x}", r"a\_b \& 5\% \{x\}"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("ring -- 2×4 · 3 µs – 4", r"ring -{}- 2$\times$4 $\cdot$ 3 $\mu$s \textendash{} 4"),
        ("né 日本\x1b", "né ?? "),
        ("Łódź, Ħal", "Łódź, ?al"),
        ("✓ ✗ log₂ p²", r"$\surd$ $\times$ log$_2$ p$^2$"),
    ],
)
def test_text_is_shown_as_it_is(words, written):
    assert latex_escaped(words) == written
