"""A comparison of two runs: on a terminal, as Markdown, LaTeX, JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pandas as pd
from rich.console import Console
from rich.text import Text

from pscale.analysis import messages
from pscale.analysis.columns import Row, frame
from pscale.analysis.compare import Comparison
from pscale.analysis.frames import records
from pscale.analysis.stats import Estimate
from pscale.atomic_files import to_json
from pscale.report import text
from pscale.report.exports import csv_text
from pscale.report.latex import latex
from pscale.report.markdown import escaped, table_lines
from pscale.report.printing import print_list, print_table
from pscale.report.table import Column, Table, Tone, Value, listed

FORMAT = 2
_TONES: dict[str, Tone] = {"slower": "bad", "faster": "good", "equal": "", "undecided": "pending"}


def render_terminal(comparison: Comparison, console: Console) -> None:
    """Print the answer for every case, then what may explain it."""
    for side, name in (("A", comparison.a), ("B", comparison.b)):
        console.print(Text(f"{side}  {text.clean(name)}", style="dim"))
    console.print()
    console.print(Text(headline(comparison), style="bold cyan"))
    for table in _tables(comparison):
        print_table(table, console)
    print_list("Notes", [*messages.comparison_notes(comparison)], console)


def render_markdown(comparison: Comparison) -> str:
    """Return the comparison for a pull request."""
    lines = [f"# {escaped(comparison.b)} against {escaped(comparison.a)}", "", f"**{headline(comparison)}**"]
    for table in _tables(comparison):
        lines += table_lines(table)
    if notes := [*messages.comparison_notes(comparison)]:
        lines += ["", "## Notes", "", *(f"* {escaped(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def render_latex(comparison: Comparison) -> str:
    """Return the tables for a paper."""
    return latex(f"{comparison.b} against {comparison.a}: {headline(comparison)}", _tables(comparison))


def render_json(comparison: Comparison) -> str:
    """Return everything in the comparison; numbers that are not finite are null."""
    found = {
        "cases": records(_cases(comparison)),
        "missing": records(frame("missing", comparison.missing, {})),
        "changes": list(map(asdict, comparison.changes)),
        "notes": [*messages.comparison_notes(comparison)],
    }
    sides = {"a": comparison.a, "b": comparison.b, "relevant": comparison.relevant}
    return to_json({"format": FORMAT, "kind": "pscale comparison", **sides, **found})


def render_csv(comparison: Comparison) -> str:
    """Return a row a compared case; the bounds of an interval are `_low` and `_high`."""
    return csv_text(_cases(comparison))


def _cases(comparison: Comparison) -> pd.DataFrame:
    """Return the compared cases with their sentences."""
    said = [messages.compared(row, comparison.relevant) for row in comparison.compared]
    return frame("compared", comparison.compared, {}).assign(text=said)


def headline(comparison: Comparison) -> str:
    """Return one sentence on all cases."""
    answers = [compared.answer for compared in comparison.compared]
    if not answers:
        other = any(missing.run == "both" for missing in comparison.missing)
        return "No case does the same work in both runs." if other else "No case was measured in both runs."
    words = {"slower": "slower", "faster": "faster", "equal": "not different", "undecided": "undecided"}
    counted = [f"{answers.count(answer)} {words[answer]}" for answer in words if answer in answers]
    return f"Step times of B against A, {text.plural(len(answers), 'case')}: {', '.join(counted)}."


def _interval(compared: Row) -> Value:
    return compared.ratio if compared.ratio.low is not None else None


def _bounds(ratio: Estimate) -> str:
    return f"{ratio.low:.3f}–{ratio.high:.3f}"


_CASES = (
    Column("case", fold=True, get="label"),
    Column("A", text.duration, get="a_s"),
    Column("B", text.duration, get="b_s"),
    Column("B / A", "{:.3f}".format, get="ratio"),
    Column("95% interval", _bounds, interval=True, get=_interval),
    Column("effect", "{:+.2f}".format, wide=True, get="effect"),
    Column("p", text.number_2, wide=True, get="p_corrected"),
    Column("launches", str, wide=True, get=lambda each: f"{each.a_launches}, {each.b_launches}"),
)
_CHANGES = (
    Column("what", fold=True, get="name"),
    Column("A", fold=True, get=lambda change: change.a or None),
    Column("B", fold=True, get=lambda change: change.b or None),
)


def _tables(comparison: Comparison) -> Iterator[Table]:
    caption = "effect: Cliff's delta, -1 if every launch of B is faster, 1 if slower; p: corrected (Holm)"
    cases, relevant = comparison.compared, comparison.relevant
    columns = (*_CASES, Column("answer", fold=True, get=lambda each: messages.compared(each, relevant)))
    yield from listed("Step times", cases, columns, caption=caption, tone=lambda each: _TONES[each.answer])
    names = {"case": "label", "not in": "run", "reason": "reason"}
    missing = [Column(name, fold=True, get=get) for name, get in names.items()]
    yield from listed("Not compared", comparison.missing, missing, tone=lambda _: "pending")
    yield from listed("What else differs", comparison.changes, _CHANGES)
