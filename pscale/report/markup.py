"""A run's findings as Markdown, for pull requests and beside the figures; its tables as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pscale.analysis import text
from pscale.analysis.findings import Findings
from pscale.report.blocks import Topic
from pscale.report.table import Table
from pscale.report.topics import TOPICS
from pscale.report.topics.problems import caution

_CODE = re.compile(r"(`[\w.:= -]+`)")  # of what pscale says; other backticks are somebody's text
_ANSWERS = 10  # that a pull request lists
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}  # the ampersand first


def render_markdown(findings: Findings, figures: Sequence[str] = ()) -> str:
    """Return the report; `figures` are paths of pictures, relative to where the text will lie."""
    return "\n".join(_lines(findings, figures)) + "\n"


def _lines(findings: Findings, figures: Sequence[str]) -> Iterator[str]:
    yield f"# {escaped(findings.title)}"
    yield ""
    facts = " · ".join(f"{name}: {escaped(value)}" for name, value in findings.machine)
    yield f"Run {escaped(findings.run)} · {text.plural(findings.launches, 'launch')}" + (
        f" · {facts}" if facts else ""
    )
    if findings.oversubscribed:
        yield from ("", f"> **{escaped(findings.oversubscribed)}**")
    for headline in findings.headlines:
        about = f"{escaped(headline.topic)}: " if headline.topic else ""
        yield from ("", f"**{about}{escaped(headline.text)}**")
    if before := caution(findings):
        yield from ("", before)
    captions = {topic.figure.name: topic.figure.description for topic in TOPICS if topic.figure}
    for figure in figures:
        name = figure.rpartition("/")[2].rpartition(".")[0]
        yield from ("", f"![{captions.get(name, name)}](<{figure}>)")
    for topic in TOPICS:
        yield from _topic_lines(findings, topic)


def render_sheet(findings: Findings, topic: Topic) -> str:
    """Return one topic alone."""
    return "\n".join([f"# {escaped(findings.title)}", *_topic_lines(findings, topic)]) + "\n"


def _topic_lines(findings: Findings, topic: Topic) -> Iterator[str]:
    for paragraph in topic.paragraphs(findings):
        yield from ("", escaped(paragraph))
    for table in topic.tables(findings):
        yield from table_lines(table)
    for title, lines in topic.lists(findings).items():
        if lines:
            yield from ("", f"## {title}", "", *(f"* {escaped(line, code=True)}" for line in lines))


def table_lines(table: Table) -> Iterator[str]:
    """Yield the lines of a table under its title."""
    yield from ("", f"## {escaped(table.title)}", *_grid(table))


def summary(
    verdict: str, answers: Sequence[str], tables: Iterable[Table], notes: Sequence[str] = (), about: str = ""
) -> str:
    """Return what a pull request shows: verdict, then answers that matter; tables and notes are folded."""
    lines = [f"**{escaped(verdict)}**"]
    lines += ["", escaped(about)] if about else []
    lines += ["", *(f"* {escaped(answer)}" for answer in answers[:_ANSWERS])] if answers else []
    if len(answers) > _ANSWERS:
        lines.append(f"* and {len(answers) - _ANSWERS} more, in the tables")
    for table in tables:
        lines += _folded(f"{table.title} ({text.plural(len(table.rows), 'row')})", _grid(table))
    lines += _folded("Notes", ["", *(f"* {escaped(note, code=True)}" for note in notes)]) if notes else []
    return "\n".join(lines) + "\n"


def _folded(title: str, lines: Iterable[str]) -> list[str]:
    return ["", f"<details><summary>{escaped(title)}</summary>", *lines, "", "</details>"]


def _grid(table: Table) -> Iterator[str]:
    """Yield the lines of a table and its caption."""
    yield ""
    yield _row([escaped(column.name) for column in table.columns])
    yield _row(["--:" if column.right else ":--" for column in table.columns])
    for tone, texts in table.texts():
        cells = [escaped(words) for words in texts]
        yield _row([f"**{cell}**" if cell else "" for cell in cells] if tone == "base" else cells)
    if table.note:
        yield from ("", escaped(table.note))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(words: str, *, code: bool = False) -> str:
    """Return text that Markdown shows as it is: no tags, mentions or columns; `code` keeps plain code."""
    if code:
        spans = _CODE.split(words)
        return "".join(span if place % 2 else escaped(span) for place, span in enumerate(spans))
    plain = text.clean(words)
    for letter, entity in _ENTITIES.items():
        plain = plain.replace(letter, entity)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", plain)


# LaTeX with booktabs: a table each, without the columns for wide screens

_FIGURE = r"""
% \usepackage{graphicx}; drawn by the same command without -f latex:
\begin{figure} \centering \includegraphics[width=\linewidth]{FILE}
\caption{CAPTION} \end{figure}
"""
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


def render_latex_sheet(findings: Findings, topic: Topic) -> str:
    """Return one topic alone, with its figure for publication, by its path from the folder of the run."""
    assert topic.figure
    file, caption = f"figures/publication/{topic.figure.name}.pdf", latex_escaped(topic.figure.title)
    return render_latex(findings, (topic,)) + _FIGURE.replace("FILE", file).replace("CAPTION", caption)


def latex(heading: str, tables: Iterable[Table], paragraphs: Sequence[str] = ()) -> str:
    """Return text and tables that need nothing but the package booktabs, and T1 fonts for straight quotes."""
    comment = text.clean(heading).encode("ascii", "replace").decode()
    lines = [f"% {comment}", r"% \usepackage[T1]{fontenc} \usepackage{booktabs}"]
    for paragraph in paragraphs:
        lines += ["", latex_escaped(paragraph)]
    for table in tables:
        lines += _latex_table(table.narrow())
    return "\n".join(lines) + "\n"


def latex_escaped(words: str) -> str:
    """Return text that LaTeX shows as it is; letters that its fonts do not have become question marks."""
    written = "".join(
        _WRITTEN.get(letter, letter if ord(letter) < _LETTERS and letter not in _LACKING else "?")
        for letter in text.clean(words)
    )
    return _LIGATURES.sub(r"\1{}", written)


def _latex_table(table: Table) -> Iterator[str]:
    rows = [*table.texts()]
    yield from ("", r"\begin{table}", r"\centering", rf"\caption{{{latex_escaped(table.title)}}}")
    yield rf"\begin{{tabular}}{{{''.join(_alignments(table, [cells for _, cells in rows]))}}}"
    yield r"\toprule"
    yield _latex_row([latex_escaped(column.name) for column in table.columns])
    yield r"\midrule"
    for tone, cells in rows:
        written = [latex_escaped(cell) for cell in cells]
        yield _latex_row([rf"\textbf{{{cell}}}" if cell and tone == "base" else cell for cell in written])
    yield from (r"\bottomrule", r"\end{tabular}")
    if table.note:
        yield rf"\par\smallskip\footnotesize {latex_escaped(table.note)}"
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


def _latex_row(cells: Sequence[str]) -> str:
    """Return a row; an empty group keeps a bracket that it may begin with from being taken for an option."""
    return f"{{}}{' & '.join(cells)} \\\\"
