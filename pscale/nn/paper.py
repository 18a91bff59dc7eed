"""A pool of arrays without memory: the account of `Buffers` that a step on paper keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

WIDE_BYTES = 4  # numbers of fewer bytes are computed with in float32


@dataclass(eq=False)
class Sheet:
    """An array without memory."""

    size_bytes: int
    holders: int = 1
    under_way: bool = False


class Paper:
    """A pool without memory: the account of `Buffers`, for elements of `item` bytes."""

    def __init__(self, item: int):
        self.item, self.wide = item, max(item, WIDE_BYTES)
        self.total_bytes = self.exchange_bytes = 0  # as those of `Buffers`
        self._exchanged_bytes = 0
        self._free: Counter[int] = Counter()
        self._held: set[Sheet] = set()

    def take(self, elements: int, item: int = 0) -> Sheet:
        """Return a sheet for `elements` of the pool's size or of `item` bytes."""
        return self._take(max(elements, 1) * (item or self.item))

    def take_exchange(self, elements: int, item: int = 0) -> Sheet:
        """Return a sheet that is for an exchange alone."""
        return self.begin_exchange(self.take(elements, item))

    def share(self, sheet: Sheet) -> None:
        """Note one more holder."""
        sheet.holders += 1

    def give(self, *sheets: Sheet) -> None:
        """End one holding of each."""
        for sheet in sheets:
            sheet.holders -= 1
            if not sheet.holders:
                self.end_exchange(sheet)
                self._free[sheet.size_bytes] += 1
                self._held.remove(sheet)

    def holdings(self) -> dict[Sheet, int]:
        """Return how often what is held."""
        return {sheet: sheet.holders for sheet in self._held}

    def forget_since(self, mark: Mapping[Sheet, int], output: Sheet) -> None:
        """Give back all that was taken since `mark`, but one holding of `output`."""
        for sheet in list(self._held):
            for _ in range(sheet.holders - mark.get(sheet, 0) - (sheet is output)):
                self.give(sheet)

    def sheets_since(self, mark: Mapping[Sheet, int], x: Sheet, output: Sheet) -> list[Sheet]:
        """Return all that was taken since `mark` but `output`, and `x` if nobody else held it then."""
        return [
            sheet
            for sheet in self._held
            if sheet is not output and (sheet not in mark or (sheet is x and mark[sheet] == 1))
        ]

    def reuse(self, sheet: Sheet) -> Sheet:
        """Give a sheet for one of its size: itself where nobody else holds it."""
        if sheet.holders == 1:
            return sheet
        sheet.holders -= 1
        return self._take(sheet.size_bytes)

    def begin_exchange(self, sheet: Sheet) -> Sheet:
        """Count a sheet among those of exchanges."""
        sheet.under_way = True
        self._exchanged_bytes += sheet.size_bytes
        self.exchange_bytes = max(self.exchange_bytes, self._exchanged_bytes)
        return sheet

    def end_exchange(self, sheet: Sheet) -> None:
        """Count it no longer."""
        self._exchanged_bytes -= sheet.size_bytes * sheet.under_way
        sheet.under_way = False

    def widen(self, sheet: Sheet) -> Sheet:
        """Give a sheet up for one of numbers in which is computed."""
        return self._as(sheet, self.item, self.wide)

    def round(self, sheet: Sheet) -> Sheet:
        """Give a sheet of such numbers up for one of the pool's."""
        return self._as(sheet, self.wide, self.item)

    def _as(self, sheet: Sheet, before: int, after: int) -> Sheet:
        if before == after:
            return sheet
        other = self._take(sheet.size_bytes // before * after)
        self.give(sheet)
        return other

    def use(self, elements: int, item: int = 0) -> None:
        """Take and give at once."""
        self.give(self.take(elements, item))

    def take_back(self, sheet: Sheet, holders: int) -> None:
        """Hold a sheet again that was given back, as often as before; it may lie elsewhere."""
        self._find(sheet.size_bytes)
        sheet.holders = holders
        self._held.add(sheet)

    def _take(self, size_bytes: int) -> Sheet:
        self._find(size_bytes)
        sheet = Sheet(size_bytes)
        self._held.add(sheet)
        return sheet

    def _find(self, size_bytes: int) -> None:
        if self._free[size_bytes]:
            self._free[size_bytes] -= 1
        else:
            self.total_bytes += size_bytes
