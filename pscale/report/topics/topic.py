"""A topic of the report: everything that any format of it says about one question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pscale.analysis.findings import Findings
from pscale.report.blocks import Block, Context, Listing, Picture, Section, chosen
from pscale.report.table import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Wording = str | Callable[[Findings], str]
Tables = Callable[[Findings], Iterable[Table]]


@dataclass(frozen=True, kw_only=True)
class TopicFigure:
    """A figure: `draw` returns None where a run has nothing to show; it imports what it draws with."""

    name: str
    title: str
    description: str  # for those who do not see it
    draw: Callable[[Findings], Figure | None]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic, from which all formats follow; the order of topics is that of the list in this package.

    * `paragraphs` stand before its tables;
    * `tables` are for people: on the terminal, in Markdown and LaTeX, and on the page;
    * `details` are on the page alone, as what its figure shows;
    * `files` are CSV files by name, which the page has inside as well;
    * `figure` is its figure;
    * `blocks` is its section of the page, where that has more than figure and tables.
    """

    name: str  # of its section
    title: Wording
    lead: Wording = ""
    paragraphs: Callable[[Findings], Iterable[str]] = lambda _: ()
    tables: Tables = lambda _: ()
    details: Tables = lambda _: ()
    files: tuple[str, ...] = ()
    figure: TopicFigure | None = None
    blocks: Callable[[Context], Sequence[Block]] | None = None
    rows_per_case: str = ""  # a frame of whose cases the page of a large run lists some alone

    def section(self, context: Context) -> Section | None:
        """Return the section of the page; None where there is nothing to say."""
        blocks = self.blocks(context) if self.blocks else self._blocks(context)
        if not blocks:
            return None
        title, lead = (said(context.findings) if callable(said) else said for said in (self.title, self.lead))
        return Section(name=self.name, title=title, lead=lead, blocks=blocks)

    def _blocks(self, context: Context) -> Sequence[Block]:
        findings, left_out = context.findings, ""
        if self.rows_per_case:
            of_case = findings.by_case(self.rows_per_case)
            rows = sum(map(len, of_case.values())) / max(1, len(of_case))
            findings, left_out = chosen(findings, rows)
        tables = [*self.tables(findings), *self.details(findings)]
        listings = context.listings(tables, self.name, *self.files, left_out=left_out)
        return [*picture(context, self.figure, listings)] or listings


def case_column(findings: Findings) -> Column:
    """Return the column that names the case of a finding."""
    return Column("case", fold=True, get=lambda each: findings.labels[each.case])


def picture(context: Context, figure: TopicFigure | None, data: Sequence[Listing]) -> tuple[Picture, ...]:
    """Return a figure with its data; nothing where it was not drawn."""
    if figure is None or figure.name not in context.vectors:
        return ()
    vector = context.vectors[figure.name]
    said = {"name": figure.name, "title": figure.title, "description": figure.description}
    folded = (replace(each, folded=each.folded or each.long) for each in data)
    return (Picture(**said, vector=vector, data=tuple(folded)),)
