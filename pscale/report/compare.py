"""A comparison of two runs: on a terminal, as Markdown, LaTeX, JSON or CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from rich.console import Console
from rich.text import Text

from pscale.analysis.compare import Compared, Comparison
from pscale.analysis.stats import Estimate
from pscale.report import text
from pscale.report.exports import csv_text, finite
from pscale.report.grid import Column, Grid, Tone
from pscale.report.latex import latex
from pscale.report.markdown import escaped, table
from pscale.report.shown import show_grid, show_list

FORMAT = 1
_TONES: dict[str, Tone] = {"slower": "bad", "faster": "good", "same": "", "unclear": "pending"}


def render_terminal(comparison: Comparison, console: Console) -> None:
    """Print the answer for every case, then what may explain it."""
    for side, name in (("A", comparison.a), ("B", comparison.b)):
        console.print(Text(f"{side}  {text.clean(name)}", style="dim"))
    console.print()
    console.print(Text(headline(comparison), style="bold cyan"))
    for grid in _grids(comparison):
        show_grid(grid, console)
    show_list("Notes", comparison.notes, console)


def render_markdown(comparison: Comparison) -> str:
    """Return the comparison for a pull request."""
    lines = [f"# {escaped(comparison.b)} against {escaped(comparison.a)}", "", f"**{headline(comparison)}**"]
    for grid in _grids(comparison):
        lines += table(grid)
    if comparison.notes:
        lines += ["", "## Notes", "", *(f"* {escaped(note)}" for note in comparison.notes)]
    return "\n".join(lines) + "\n"


def render_latex(comparison: Comparison) -> str:
    """Return the tables for a paper."""
    return latex(f"{comparison.b} against {comparison.a}: {headline(comparison)}", _grids(comparison))


def render_json(comparison: Comparison) -> str:
    """Return everything in the comparison; numbers that are not finite are null."""
    document = {"format": FORMAT, "kind": "pscale comparison", **asdict(comparison)}
    return json.dumps(finite(document), indent=1, ensure_ascii=False, allow_nan=False)


def render_csv(comparison: Comparison) -> str:
    """Return a row a compared case; the bounds of an interval are `_low` and `_high`."""
    rows = [_row(compared) for compared in comparison.cases]
    columns: list[str] = []
    for field in fields(Compared):
        columns.append(field.name)
        if "Estimate" in str(field.type):
            columns += [f"{field.name}_low", f"{field.name}_high"]
    return csv_text(columns, rows)


def headline(comparison: Comparison) -> str:
    """Return one sentence on all cases."""
    answers = [compared.answer for compared in comparison.cases]
    if not answers:
        return "No case was measured in both runs."
    words = {"slower": "slower", "faster": "faster", "same": "not different", "unclear": "too noisy to tell"}
    counted = [f"{answers.count(answer)} {words[answer]}" for answer in words if answer in answers]
    return f"Step times of B against A, {text.plural(len(answers), 'case')}: {', '.join(counted)}."


def _grids(comparison: Comparison) -> Iterator[Grid]:
    columns = (
        *(Column("case", right=False, fold=True), Column("A"), Column("B"), Column("B / A")),
        *(Column("95% interval"), Column("effect", wide=True), Column("p", wide=True)),
        *(Column("launches", wide=True), Column("answer", right=False, fold=True)),
    )
    if comparison.cases:
        yield Grid(
            title="Step times",
            columns=columns,
            rows=tuple((_TONES[compared.answer], _cells(compared)) for compared in comparison.cases),
            caption="effect: from -1 (every launch of B is faster) to 1 (Cliff's delta); p: corrected (Holm)",
        )
    if comparison.missing:
        yield Grid(
            title="Not compared",
            columns=tuple(Column(name, right=False, fold=True) for name in ("case", "not in", "reason")),
            rows=tuple(
                ("pending", (text.clean(one.label), one.run, text.clean(one.reason)))
                for one in comparison.missing
            ),
        )
    if comparison.changes:
        yield Grid(
            title="What else differs",
            columns=tuple(Column(name, right=False, fold=True) for name in ("what", "A", "B")),
            rows=tuple(
                (
                    "",
                    (
                        text.clean(change.name),
                        text.clean(change.a) or text.MISSING,
                        text.clean(change.b) or text.MISSING,
                    ),
                )
                for change in comparison.changes
            ),
        )


def _cells(compared: Compared) -> tuple[str, ...]:
    low, high = compared.ratio.low, compared.ratio.high
    return (
        text.clean(compared.label),
        text.duration(compared.a_s.value),
        text.duration(compared.b_s.value),
        f"{compared.ratio.value:.3f}",
        text.MISSING if low is None or high is None else f"{low:.3f}–{high:.3f}",
        text.MISSING if compared.effect is None else f"{compared.effect:+.2f}",
        text.number(compared.p_corrected, 2),
        f"{compared.a_launches}, {compared.b_launches}",
        compared.text,
    )


def _row(compared: Compared) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in fields(compared):
        value = getattr(compared, field.name)
        if isinstance(value, Estimate):
            row |= {field.name: value.value, f"{field.name}_low": value.low, f"{field.name}_high": value.high}
        else:
            row[field.name] = value
    return row
