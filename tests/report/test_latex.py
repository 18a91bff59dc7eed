import re

import pytest

from pscale.report.latex import escaped, render_latex

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
    assert escaped(words) == written
