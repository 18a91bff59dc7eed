"""Tables for a paper: LaTeX with booktabs, a table each, without the columns for wide screens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Table
from pscale.report.topics import TOPICS
from pscale.report.topics.topic import Topic

_LONG = 36  # characters; longer cells get lines of a fixed width
_LETTERS = 0x180  # Latin letters: what the fonts of pdfLaTeX have
_LACKING = frozenset("ĦħĸĿŀŉŦŧſ")  # but for these
_LIGATURES = re.compile(r"([-,'!?])(?=[-,'`])")  # two hyphens would become a dash, ?` another letter
_WRITTEN = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "×": r"$\times$",
    "÷": r"$\div$",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "µ": r"$\mu$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "−": "$-$",
    "→": r"$\rightarrow$",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\ldots{}",
    "✓": r"$\surd$",
    "✗": r"$\times$",
    "₂": "$_2$",
    "²": "$^2$",
    "³": "$^3$",
}


def render_latex(findings: Findings, topics: Sequence[Topic] = TOPICS) -> str:
    """Return all tables of a run, or of some topics; its title and name are a comment."""
    heading = f"{findings.title}, run {findings.run}"
    paragraphs = [words for topic in topics for words in topic.paragraphs(findings)]
    return latex(heading, (table for topic in topics for table in topic.tables(findings)), paragraphs)


def latex(heading: str, tables: Iterable[Table], paragraphs: Sequence[str] = ()) -> str:
    """Return text and tables that need nothing but the package booktabs, and T1 fonts for straight quotes."""
    comment = text.clean(heading).encode("ascii", "replace").decode()
    lines = [f"% {comment}", r"% \usepackage[T1]{fontenc} \usepackage{booktabs}"]
    for paragraph in paragraphs:
        lines += ["", escaped(paragraph)]
    for table in tables:
        lines += _table(table.narrow())
    return "\n".join(lines) + "\n"


def escaped(words: str) -> str:
    """Return text that LaTeX shows as it is; letters that its fonts do not have become question marks."""
    written = "".join(_letter(letter) for letter in text.clean(words))
    return _LIGATURES.sub(r"\1{}", written)


def _letter(letter: str) -> str:
    if letter in _WRITTEN:
        return _WRITTEN[letter]
    return letter if ord(letter) < _LETTERS and letter not in _LACKING else "?"


def _table(table: Table) -> Iterator[str]:
    rows = [*table.texts()]
    yield from ("", r"\begin{table}", r"\centering", rf"\caption{{{escaped(table.title)}}}")
    yield rf"\begin{{tabular}}{{{''.join(_alignments(table, [cells for _, cells in rows]))}}}"
    yield r"\toprule"
    yield _row([escaped(column.name) for column in table.columns])
    yield r"\midrule"
    for tone, cells in rows:
        written = [escaped(cell) for cell in cells]
        yield _row([rf"\textbf{{{cell}}}" if cell and tone == "base" else cell for cell in written])
    yield from (r"\bottomrule", r"\end{tabular}")
    if table.caption:
        yield rf"\par\smallskip\footnotesize {escaped(table.caption)}"
    yield r"\end{table}"


def _alignments(table: Table, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield how each column is set; long texts share two fifths of the line."""
    long = [
        column.fold and any(len(cells[place]) > _LONG for cells in rows)
        for place, column in enumerate(table.columns)
    ]
    for column, is_long in zip(table.columns, long, strict=True):
        if is_long:
            yield rf"p{{{0.4 / sum(long):.2f}\linewidth}}"
        else:
            yield "r" if column.right else "l"


def _row(cells: Sequence[str]) -> str:
    """Return a row; an empty group keeps a bracket that it may begin with from being taken for an option."""
    return f"{{}}{' & '.join(cells)} \\\\"
