"""The calls of a job added up by rank, step and phase, its cells; from one window after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.errors import ResultsError
from pscale.runs.events import Kind
from pscale.watch.matching import partners
from pscale.watch.notes import Recorded, calls
from pscale.watch.rows import NOTHING, Mask, Numbers, Rows
from pscale.watch.settle import SettledCalls
from pscale.watch.steps import Steps

NOT_SPLIT = "not split"  # the axis of calls of which wait and transfer are not known
_OF_CALLS = ("count", "bytes", "transfer", "wait", "hidden", "exposed", "ideal_wait")
MOST_CELLS = 20_000_000  # steps by phases by ranks
_SPARSE = 8  # times as many sums as rows: then rows are sorted instead


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """What the rows of calls belong to, by number, and the names of the numbers."""

    step: Numbers  # -1: none
    phase: Numbers
    phases: Sequence[str]
    axis: Numbers
    axes: Sequence[str]
    verb: Numbers
    verbs: Sequence[str]
    payload: Numbers
    partner: Numbers


class Sums:
    """Sums over calls, exact in ns."""

    def __init__(self, recorded: Recorded, steps: Steps):
        self.facts, self.steps = recorded.facts, steps
        self.width = steps.count * len(steps.phases)
        if self.width * len(self.facts) > MOST_CELLS:
            cells = f"{steps.count} steps of {len(steps.phases)} phases on {len(self.facts)} ranks"
            raise ResultsError(f"{cells} are more than {MOST_CELLS:,} rows: mark fewer")
        self.start = int(steps.starts[:, 0].min())
        self.segments: list[dict[str, Numbers]] = []  # of phases
        self.wall = np.zeros((len(self.facts), self.width))
        self._cells = [self._divide(rank) for rank in range(len(self.facts))]
        names = [group.name for group in recorded.groups[0]]
        self.axes = ["", NOT_SPLIT, *dict.fromkeys(names)]
        axis = {name: number for number, name in enumerate(self.axes)}
        self._axis_of_group = np.array([*(axis[name] for name in names), 0])
        self.verbs = sorted({call.verb or call.name.lower() for call in calls()})
        self._verb_of_call = np.array([self.verbs.index(call.verb or call.name.lower()) for call in calls()])
        self._by_cell: dict[str, Numbers] = {}
        self._by_call: list[tuple[Numbers, Mapping[str, Numbers]]] = []
        self.in_mpi, self.not_split = 0, np.zeros(len(self.verbs))
        self.threads = False
        self.made = np.zeros(len(self.facts), np.int64)  # notes of each rank

    def _divide(self, rank: int) -> tuple[Numbers, Numbers]:
        """Fill in the walls of a rank's cells; return from when on each lasts, and which it is; -1: none."""
        steps, phases = self.steps, len(self.steps.phases)
        times, changes = steps.changes[rank]
        starts, ends = steps.starts[rank], steps.ends[rank]
        edges = np.unique(np.concatenate([starts, ends, times]))
        step = np.searchsorted(starts, edges, side="right") - 1
        within = (step >= 0) & (edges < ends[np.maximum(step, 0)])
        change = np.searchsorted(times, edges, side="right")
        phase = np.append(0, changes)[change]
        cells = np.where(within, step * phases + phase, NOTHING)
        changed = (cells >= 0) | np.append(True, cells[:-1] >= 0)
        edges, cells = edges[changed], cells[changed]
        kept = cells[:-1] >= 0
        segment = cells[:-1][kept]
        self.wall[rank] = np.bincount(segment, np.diff(edges)[kept], self.width)
        self.segments.append(
            {
                "rank": np.full(len(segment), rank),
                "step": segment // phases,
                "phase": segment % phases,
                "kind": np.full(len(segment), int(Kind.PHASE)),
                "enter": edges[:-1][kept],
                "leave": edges[1:][kept],
            }
        )
        return edges, np.append(NOTHING, cells)

    def add(self, settled: SettledCalls) -> None:
        """Add up what this window settles."""
        rows, final = settled.rows, settled.final
        cell = self._cell(rows)
        inside, main = rows.inside(), rows.thread == 0
        first = final & main & (cell >= 0)
        self._add("in_calls", rows.rank, cell, inside, first)
        self._add("waited", rows.rank, cell, settled.wait, first)
        if settled.ideal_wait is not None:
            self._add("ideal_wait", rows.rank, cell, settled.ideal_wait, first)
        caused = np.flatnonzero(final & (settled.cause >= 0))
        by = settled.cause[caused]
        self._add("caused", by, self._cell_at(by, settled.cause_at[caused]), settled.wait[caused])
        over = np.flatnonzero(final & (settled.post >= 0))
        post = settled.post[over]
        way = np.maximum(rows.enter[rows.main[over]] - rows.leave[post], 0)
        others = np.where(main, 0, inside)
        others[post] = 0
        self._add("hidden", rows.rank[post], cell[post], way)
        self._add("hidden", rows.rank, cell, others, final)
        axis_of, verb_of = self._own(settled)
        axis, verb = self._axis_and_verb(settled, axis_of, verb_of)
        called = final & (cell >= 0) & ~rows.is_kind("MARK", "BEGIN", "END")
        start = rows.is_mode("STARTS") | rows.is_kind("COMPLETE")
        in_calls, wait = np.where(main, inside, 0), np.where(main, settled.wait, 0)
        spent = {"transfer": in_calls - wait, "wait": wait, "hidden": others}
        spent["exposed"] = np.where(start, in_calls, 0)
        if settled.ideal_wait is not None:
            spent["ideal_wait"] = np.where(main, settled.ideal_wait, 0)
        own = cell, rows.rank, axis_of, verb_of
        made = final & (cell >= 0) & is_made(rows)
        self._add_calls((cell, rows.rank, axis, verb), spent, np.flatnonzero(called))
        counts = {"count": np.ones(len(made), np.int64), "bytes": payload(rows)}
        self._add_calls(own, counts, np.flatnonzero(made))
        known = cell[post] >= 0
        whole = np.zeros(len(cell), np.int64)
        whole[post] = way
        self._add_calls(own, {"hidden": whole}, post[known])
        self.in_mpi += int(inside[first].sum())
        apart = first & (axis == self.axes.index(NOT_SPLIT))
        self.not_split += np.bincount(verb[apart], inside[apart], len(self.verbs))
        self.threads |= bool((rows.thread > 0).any())
        self.made += np.bincount(rows.rank[final], minlength=len(self.made))

    def _cell(self, rows: Rows) -> Numbers:
        """Return the cell in which each call began; -1: outside of all steps."""
        cell = np.empty(len(rows.rank), np.int64)
        for rank, (edges, cells) in enumerate(self._cells):
            own = slice(rows.places[rank], rows.places[rank + 1])
            cell[own] = cells[np.searchsorted(edges, rows.enter[own], side="right")]
        return cell

    def _cell_at(self, ranks: Numbers, times: Numbers) -> Numbers:
        cell = np.empty(len(ranks), np.int64)
        for rank in np.unique(ranks).tolist():
            own = ranks == rank
            edges, cells = self._cells[rank]
            cell[own] = cells[np.searchsorted(edges, times[own], side="right")]
        return cell

    def _add(
        self, name: str, ranks: Numbers, cells: Numbers, values: Numbers, chosen: Mask | None = None
    ) -> None:
        """Add values to the cells of ranks; those outside of all steps count nowhere."""
        total = self._by_cell.setdefault(name, np.zeros(self.wall.size, np.int64))
        inside = np.flatnonzero((cells >= 0) & (values != 0) & (True if chosen is None else chosen))
        np.add.at(total, ranks[inside] * self.width + cells[inside], values[inside])

    def total(self, name: str) -> NDArray[np.int64]:
        """Return sums by rank and cell."""
        return self._by_cell[name].reshape(self.wall.shape)

    def _own(self, settled: SettledCalls) -> tuple[Numbers, Numbers]:
        """Return by row the numbers of the communicator and of the verb of its own function."""
        rows = settled.rows
        axis = np.where(settled.ordinary, self._axis_of_group[rows.group], self.axes.index(NOT_SPLIT))
        receives = rows.is_kind("BOTH") & ~rows.is_own()
        return axis, np.where(receives, self.verbs.index("receive"), self._verb_of_call[rows.call])

    def _axis_and_verb(
        self, settled: SettledCalls, axis_of: Numbers, verb_of: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return by row the numbers of the axis and the verb that its time belongs to."""
        about = settled.about
        about = np.where(settled.start[about] >= 0, settled.start[about], about)
        axis = np.where(settled.ordinary, axis_of[about], self.axes.index(NOT_SPLIT))
        return axis, verb_of[about]

    def _add_calls(
        self,
        places: Sequence[Numbers],
        values: Mapping[str, Numbers],
        chosen: Numbers,
    ) -> None:
        """Add to the sums by cell, rank, axis and verb, the `places` of the rows."""
        if not len(chosen):
            return
        spans = self.width, len(self.facts), len(self.axes), len(self.verbs)  # in time first: near each other
        keys = np.ravel_multi_index([each[chosen] for each in places], spans)
        least = int(keys.min())
        span = int(keys.max()) - least + 1
        if span <= _SPARSE * len(keys) + 4096:
            here = np.bincount(keys - least, minlength=span)
            present = np.flatnonzero(here)
            sums = {
                name: np.bincount(keys - least, each[chosen], span)[present].astype(np.int64)
                for name, each in values.items()
            }
            self._by_call.append((present + least, sums))
            return
        self._by_call.append(_add_up(keys, {name: each[chosen] for name, each in values.items()}))

    def by_call(self) -> tuple[Sequence[Numbers], Mapping[str, Numbers]]:
        """Return rank, cell, axis and verb of all sums over calls, in this order, and the sums."""
        spans = self.width, len(self.facts), len(self.axes), len(self.verbs)
        keys = np.concatenate([np.zeros(0, np.int64), *(keys for keys, _ in self._by_call)])
        cells, ranks, axes, verbs = np.unravel_index(keys, spans)
        keys = np.ravel_multi_index([ranks, cells, axes, verbs], (spans[1], spans[0], *spans[2:]))
        made = {"count", "bytes"}.union(*(sums for _, sums in self._by_call))
        names = [name for name in _OF_CALLS if name in made]
        nothing = [np.zeros(len(distinct), np.int64) for distinct, _ in self._by_call]
        values = {
            name: np.concatenate(
                [np.zeros(0, np.int64)]
                + [sums.get(name, none) for (_, sums), none in zip(self._by_call, nothing, strict=True)]
            )
            for name in names
        }
        distinct, sums = _add_up(keys, values)
        return np.unravel_index(distinct, (spans[1], spans[0], *spans[2:])), sums

    def labels(self, settled: SettledCalls) -> Labels:
        """Return what the calls of a whole program belong to."""
        rows, phases = settled.rows, len(self.steps.phases)
        cell = self._cell(rows)
        partner = np.full(len(cell), NOTHING)
        ends = np.flatnonzero((rows.peer >= 0) & (rows.group >= 0))
        partner[ends] = partners(rows, settled.groups, ends)
        axis_of, verb_of = self._own(settled)
        return Labels(
            step=np.where(cell < 0, NOTHING, cell // phases),
            phase=np.where(cell < 0, NOTHING, cell % phases),
            phases=self.steps.phases,
            axis=self._axis_and_verb(settled, axis_of, verb_of)[0],
            axes=self.axes,
            verb=verb_of,
            verbs=self.verbs,
            payload=payload(rows),
            partner=partner,
        )


def _add_up(keys: Numbers, values: Mapping[str, NDArray[Any]]) -> tuple[Numbers, dict[str, Numbers]]:
    """Return the different keys in their order, and the sums of the values of each."""
    found, place = np.unique(keys, return_inverse=True)
    return found, {
        name: np.bincount(place, each, len(found)).astype(np.int64) for name, each in values.items()
    }


def is_made(rows: Rows) -> Mask:
    """Tell which rows are calls that exchange something, counted once: where they are made."""
    aside = rows.is_kind("COMPLETE", "MARK", "BEGIN", "END", "START", "MATCHED", "PROBE")
    nowhere = rows.is_kind("SEND", "RECEIVE", "BOTH") & (rows.peer < 0)  # MPI_PROC_NULL
    return ~aside & ~nowhere & ~rows.fruitless & ~rows.is_mode("PERSISTENT")


def payload(rows: Rows) -> Numbers:
    """Return the bytes that each call gives."""
    received = rows.is_kind("BOTH") & ~rows.is_own()
    return np.where(is_made(rows) & ~received, rows.bytes, 0)
