"""Parcels on paper: what leaves a pool for a file and comes back, without doing anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pscale.nn.offload.keeping import Parcel, Room
from pscale.nn.paper import Paper, Sheet


class OnPaper:
    """Moves parcels of sheets; `moved_bytes` is what leaves in all, and what comes back."""

    def __init__(self, paper: Paper):
        self.room, self.moved_bytes = Room(), 0
        self._paper = paper

    def leave(self, cache: Any, mark: Mapping[Sheet, int], x: Sheet, y: Sheet) -> Parcel[Sheet]:
        """Note what leaves."""
        held = self._paper.sheets_since(mark, x, y)
        sizes = [sheet.size_bytes for sheet in held]
        self.moved_bytes += sum(sizes)
        at = self.room.take(sum(sizes))
        return Parcel(cache, sizes, [sheet.holders for sheet in held], held, at)

    def vacate(self, parcel: Parcel[Sheet]) -> None:
        """Give it back."""
        for sheet, holders in zip(parcel.held, parcel.holders, strict=True):
            self._paper.give(*[sheet] * holders)

    def fetch(self, parcel: Parcel[Sheet]) -> None:
        """Hold the same sheets as often as before."""
        for sheet, holders in zip(parcel.held, parcel.holders, strict=True):
            self._paper.take_back(sheet, holders)

    def arrive(self, parcel: Parcel[Sheet]) -> Any:
        """Return what was kept."""
        self.room.give(parcel.total_bytes, parcel.at)
        return parcel.cache
