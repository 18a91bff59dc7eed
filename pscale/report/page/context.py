"""What every section of a page is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pscale.analysis.summary import Summary
from pscale.report.exports import csv_tables
from pscale.report.page.blocks import Attachment, Picture, Sheet
from pscale.report.page.sheets import attachments
from pscale.report.page.vector import Vector


@dataclass(frozen=True, kw_only=True)
class Context:
    """The findings of a run and its figures by name."""

    summary: Summary
    vectors: Mapping[str, Vector]

    @cached_property
    def _tables(self) -> Mapping[str, str]:
        return csv_tables(self.summary)

    def files(self, *names: str) -> tuple[Attachment, ...]:
        """Return CSV tables as files inside the page."""
        return attachments(self._tables, *names)

    def pictures(self, name: str, title: str, says: str, *data: Sheet) -> tuple[Picture, ...]:
        """Return the figure of that name with its data; nothing where it was not drawn."""
        if name not in self.vectors:
            return ()
        return (Picture(name=name, title=title, says=says, vector=self.vectors[name], data=data),)
