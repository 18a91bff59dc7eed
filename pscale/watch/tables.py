"""The tables of a run, from the settled calls of a program: the columns that every report reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.errors import ResultsError
from pscale.runs.host import as_ranges
from pscale.runs.schema import VERBS, Kind, Table
from pscale.runs.step_time import step_time, step_times
from pscale.watch.hang import last_calls
from pscale.watch.notes import Facts, Recorded, calls, shorten
from pscale.watch.rows import NOTHING, Mask, Numbers, Rows, all_rows, windows
from pscale.watch.sample import MOST_COUNTED, draw
from pscale.watch.settle import (
    MOST_AT_ONCE,
    MOST_OF_THREADS,
    MOST_SETTLED,
    WINDOW,
    SettledCalls,
    is_short,
    partners,
    settle,
    settle_windows,
)
from pscale.watch.steps import Steps, find_steps

NOT_SPLIT = "not split"  # the axis of calls of which wait and transfer are not known
_OF_CALLS = ("count", "bytes", "transfer", "wait", "hidden", "exposed", "ideal_wait")
MOST_CELLS = 20_000_000  # steps by phases by ranks
_SPARSE = 8  # times as many sums as rows: then rows are sorted instead
MOST_PHASES = 200_000  # of steps on ranks, in a record that is settled in windows: a bound on memory
_KIB = 1024
_LAST = 10_000  # notes of a rank, in which it is looked for where it was when its record ends
_LOOKED = 0.15  # of the time of an analysis, for each time that steps are looked for in all calls
_COVERED = 0.9  # of a program, by its steps: what is counted over all of it is then that of the steps
Columns = dict[str, Any]
_LEVELS = {Kind.STEP: 2, Kind.PHASE: 1}  # of what ends together, the inner comes first
_NUMBERS = (
    "rank",
    "step",
    "phase",
    "kind",
    "enter",
    "leave",
    "wait",
    "bytes",
    "request",
    "partner",
    "axis",
    "verb",
    "group",
)
Block = dict[str, NDArray[Any]]


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
        of_call = cell, rows.rank, axis_of, verb_of
        made = final & (cell >= 0) & _is_made(rows)
        self._add_calls((cell, rows.rank, axis, verb), spent, np.flatnonzero(called))
        counts = {"count": np.ones(len(made), np.int64), "bytes": payload(rows)}
        self._add_calls(of_call, counts, np.flatnonzero(made))
        counted = cell[post] >= 0
        whole = np.zeros(len(cell), np.int64)
        whole[post] = way
        self._add_calls(of_call, {"hidden": whole}, post[counted])
        self.in_mpi += int(inside[first].sum())
        apart = first & (axis == self.axes.index(NOT_SPLIT))
        self.not_split += np.bincount(verb[apart], inside[apart], len(self.verbs))
        self.threads |= bool((rows.thread > 0).any())
        self.made += np.bincount(rows.rank[final], minlength=len(self.made))

    def _cell(self, rows: Rows) -> Numbers:
        """Return the cell in which each call began; -1: outside of all steps."""
        cell = np.empty(len(rows.rank), np.int64)
        for rank, (edges, cells) in enumerate(self._cells):
            of_rank = slice(rows.places[rank], rows.places[rank + 1])
            cell[of_rank] = cells[np.searchsorted(edges, rows.enter[of_rank], side="right")]
        return cell

    def _cell_at(self, ranks: Numbers, times: Numbers) -> Numbers:
        cell = np.empty(len(ranks), np.int64)
        for rank in np.unique(ranks).tolist():
            of_rank = ranks == rank
            edges, cells = self._cells[rank]
            cell[of_rank] = cells[np.searchsorted(edges, times[of_rank], side="right")]
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
    distinct, place = np.unique(keys, return_inverse=True)
    return distinct, {
        name: np.bincount(place, each, len(distinct)).astype(np.int64) for name, each in values.items()
    }


def _is_made(rows: Rows) -> Mask:
    """Tell which rows are calls that exchange something, counted once: where they are made."""
    aside = rows.is_kind("COMPLETE", "MARK", "BEGIN", "END", "START", "MATCHED", "PROBE")
    nowhere = rows.is_kind("SEND", "RECEIVE", "BOTH") & (rows.peer < 0)  # MPI_PROC_NULL
    return ~aside & ~nowhere & ~rows.fruitless & ~rows.is_mode("PERSISTENT")


def payload(rows: Rows) -> Numbers:
    """Return the bytes that each call gives."""
    received = rows.is_kind("BOTH") & ~rows.is_own()
    return np.where(_is_made(rows) & ~received, rows.bytes, 0)


@dataclass(frozen=True, kw_only=True)
class RecordTables:
    """What a job has recorded, as tables; `notes` and `warnings` are sentences about them."""

    tables: Mapping[Table, Columns]
    columns: Mapping[str, Any]  # of the row in `cases`
    library: str
    notes: Sequence[str]
    warnings: Sequence[str]


def record_tables(
    recorded: Recorded,
    *,
    at_once: int = MOST_AT_ONCE,
    window: int = WINDOW,
    most: int = MOST_SETTLED,
    progressed: Callable[[float], None] = lambda _: None,
) -> RecordTables:
    """Settle what a job has recorded and put it in tables: at once, or beyond so many notes in windows.

    Of more than `most` notes pieces are settled, or the first. `progressed` is called with the share done.
    """
    job = _Job(recorded, at_once, window, most, progressed)
    of_steps = job.step_table()
    steps, facts = job.steps, recorded.facts
    ends_s = of_steps["end_s"].reshape(len(facts), -1)[:, :: len(steps.phases)].max(axis=0)
    tables: dict[Table, Columns] = {
        "steps": of_steps,
        "calls": job.call_table(),
        "ranks": job.rank_table(of_steps),
    }
    if job.whole:
        tables["events"] = job.event_table(job.whole)
    columns = {
        "steps": steps.count,
        "warmup": 0,
        "step_s": step_time(step_times(ends_s)),
        "nodes": len({each.node for each in facts}),
    }
    return RecordTables(
        tables=tables,
        columns=columns,
        library=facts[0].library,
        notes=tuple(job.notes()),
        warnings=tuple(job.warnings()),
    )


class _Job:
    """The sums over the calls of a job as tables."""

    def __init__(
        self,
        recorded: Recorded,
        at_once: int,
        window: int,
        most: int,
        progressed: Callable[[float], None],
    ):
        self.whole: SettledCalls | None = None  # None: it was settled in windows
        self._unfinished = [facts.rank for facts in recorded.facts if facts.end_ns is None]
        self._warnings, end = [*recorded.warnings], None
        if sum(map(len, recorded.notes)) > most:
            end = settle(*all_rows(recorded, _LAST))
            recorded = replace(recorded, drawn=draw(recorded, most))
            self._warnings += (
                _drawn(recorded, end, most) if recorded.drawn else _shortened(recorded, end, most)
            )
        if is_short(recorded, at_once):
            rows, self._groups = all_rows(recorded)
            self.steps = find_steps(recorded, lambda: [(rows, True)], is_part=end is not None)
            self.whole = settle(rows, self._groups)
            parts: Iterable[SettledCalls] = [self.whole]
        else:
            self._groups, _ = recorded.groups
            self._progressed, self._looks, self._notes = progressed, 0, sum(map(len, recorded.pieces))
            self.steps = find_steps(
                recorded,
                lambda: self._looked(windows(recorded, window)),
                MOST_PHASES,
                is_part=end is not None,
            )
            parts = settle_windows(recorded, window)
        self._sums = Sums(recorded, self.steps)
        for part in parts:
            self._sums.add(part)
            self._last = part
            if not self.whole:
                done = self._sums.made.sum() / self._notes
                progressed(2 * _LOOKED + (1 - 2 * _LOOKED) * float(done))
        progressed(1.0)
        self._last = end or self._last

    def _looked(self, every: Iterable[tuple[Rows, bool]]) -> Iterator[tuple[Rows, bool]]:
        """Yield the windows in which steps are looked for, once or twice, and tell how far that is."""
        seen, self._looks = 0, self._looks + 1
        for rows, ends in every:
            yield rows, ends
            seen += len(rows.rank)
            self._progressed(_LOOKED * (self._looks - 1 + seen / self._notes))

    def step_table(self) -> Columns:
        """Return the rows of `steps`, rank by rank."""
        steps, sums = self.steps, self._sums
        ranks, phases = len(sums.facts), len(steps.phases)
        in_calls, waited, wall = sums.total("in_calls"), sums.total("waited"), sums.wall
        ends = steps.ends - steps.skipped - sums.start
        walls = wall.reshape(ranks, -1, phases).sum(axis=2)
        unaccounted = np.diff(ends, prepend=0, axis=1) - walls
        times = {
            "wall_s": wall,
            "compute_s": np.maximum(wall - in_calls, 0),
            "transfer_s": in_calls - waited,
            "wait_s": waited,
            "copy_s": np.zeros_like(wall),
            "hidden_s": sums.total("hidden"),
            "caused_wait_s": sums.total("caused"),
            "injected_delay_s": np.zeros_like(wall),
            "unaccounted_s": np.repeat(unaccounted, phases, axis=1),
            "end_s": np.repeat(ends, phases, axis=1),
        }
        if self.whole:
            times["ideal_wait_s"] = sums.total("ideal_wait")
            times["ideal_end_s"] = np.repeat(self._ideal_ends(self.whole), phases, axis=1)
        return {
            "rank": np.repeat(np.arange(ranks), sums.width),
            "step": np.tile(np.repeat(np.arange(steps.count), phases), ranks),
            "phase": np.tile(np.array(steps.phases), ranks * steps.count),
            **{name: values.reshape(-1) * 1e-9 for name, values in times.items()},
        }

    def _ideal_ends(self, settled: SettledCalls) -> Numbers:
        """Return when each step of each rank would end on an ideal network, since the first began."""
        edges = np.concatenate([self.steps.starts[:, :1], self.steps.ends], axis=1)
        ideal = np.array(
            [_ideal_at(settled, rank, edges_of_rank) for rank, edges_of_rank in enumerate(edges)]
        )
        return np.asarray(ideal[:, 1:] - ideal[:, 0].min())

    def call_table(self) -> Columns:
        """Return the rows of `calls`: calls count where they are made, their time where it is spent."""
        (rank, cell, axis, verb), sums = self._sums.by_call()
        phases = len(self.steps.phases)
        return {
            "rank": rank,
            "step": cell // phases,
            "phase": np.array(self.steps.phases)[cell % phases],
            "axis": np.array(self._sums.axes)[axis],
            "verb": np.array(self._sums.verbs)[verb],
            **{name: values for name, values in sums.items() if name in ("count", "bytes")},
            **{f"{name}_s": values * 1e-9 for name, values in sums.items() if name not in ("count", "bytes")},
            "clock_bound_s": self._bounds()[axis] * 1e-9,
        }

    def _bounds(self) -> Numbers:
        """Return by axis how far a wait may be off: the bounds of two clocks, 0 within a node."""
        bound_of_axis = np.zeros(len(self._sums.axes), np.int64)
        bounds = [facts.clock().bound_ns for facts in self._sums.facts]
        axis = {name: number for number, name in enumerate(self._sums.axes)}
        for group in self._groups:
            members = {*group.members, *group.remote}
            if len({self._sums.facts[rank].node for rank in members}) > 1:
                place = axis[group.name]
                bound_of_axis[place] = max(bound_of_axis[place], 2 * max(bounds[rank] for rank in members))
        return bound_of_axis

    def rank_table(self, of_steps: Mapping[str, NDArray[Any]]) -> Columns:
        """Return the rows of `ranks`."""
        rows = [self._rank(facts) for facts in self._sums.facts]
        shape = self._sums.wall.shape
        columns: Columns = {name: [row[name] for row in rows] for name in rows[0]}
        columns["wall_s"] = of_steps["end_s"].reshape(shape)[:, -1]
        covered = columns["wall_s"] / np.array([self._lasted_s(facts) for facts in self._sums.facts])
        for name in ("cpu_s", "involuntary_context_switches"):  # counted over all of the program
            columns[name] = [
                v if of >= _COVERED else None for v, of in zip(columns[name], covered, strict=True)
            ]
        columns["unaccounted_s"] = columns["wall_s"] - of_steps["wall_s"].reshape(shape).sum(axis=1)
        if "ideal_end_s" in of_steps:
            columns["t_ideal_s"] = of_steps["ideal_end_s"].reshape(shape)[:, -1]
        return columns

    def _lasted_s(self, facts: Facts) -> float:
        """Return how long a rank was between MPI_Init and MPI_Finalize, or its last call."""
        return max(1, int(self.steps.over[facts.rank]) - facts.clock().at(facts.begin[1])) * 1e-9

    def _rank(self, facts: Facts) -> dict[str, Any]:
        clock = facts.clock()
        return {
            "rank": facts.rank,
            "host": facts.host,
            "node": facts.node,
            "pid": facts.pid,
            "cpus": as_ranges(facts.cpus),
            "clock_bound_s": clock.bound_ns * 1e-9,
            "clock_drift": clock.drift,
            "clock_backwards_s": 0.0,
            "events": int(self._sums.made[facts.rank]),
            "cpu_s": (facts.used[0] + facts.used[1]) * 1e-6 if facts.used else None,
            "peak_rss_bytes": facts.used[2] * _KIB if facts.used else None,
            "involuntary_context_switches": facts.used[3] if facts.used else None,
            "peak_rss_of_steps": False,
        }

    def event_table(self, settled: SettledCalls) -> Columns:
        """Return the rows of `events`: steps, phases, and calls as the worker records them."""
        frames = [*self._sums.segments, *self._step_frames()]
        return _event_table(settled, self._sums.labels(settled), frames, self._sums.start)

    def _step_frames(self) -> Iterator[dict[str, Numbers]]:
        for rank, (starts, ends) in enumerate(zip(self.steps.starts, self.steps.ends, strict=True)):
            numbers = np.arange(len(starts))
            yield {
                "rank": np.full_like(numbers, rank),
                "step": numbers,
                "kind": np.full(len(starts), int(Kind.STEP)),
                "enter": starts,
                "leave": ends,
            }

    def notes(self) -> Iterator[str]:
        """Say what steps are, and what of the time in MPI is not split."""
        yield f"Steps: {self.steps.how}."
        apart, verbs = self._sums.not_split, self._sums.verbs
        if apart.sum():
            named = ", ".join(verbs[place] for place in np.argsort(-apart)[:3] if apart[place])
            yield (
                f"Not split: {apart.sum() / self._sums.in_mpi:.1%} of the time in MPI ({named}). Which ranks "
                "these calls wait for is unknown, so all of their time counts as transfer."
            )
        if self._sums.threads:
            yield "Threads: calls of threads other than the one that initialised MPI count as hidden."

    def warnings(self) -> Iterator[str]:
        """Say where the record ends before the program does."""
        yield from self._warnings
        if self._unfinished:
            yield (
                f"{len(self._unfinished)} of {len(self._sums.facts)} ranks did not reach MPI_Finalize. "
                f"Their last calls: {last_calls(self._last)}"
            )


def _drawn(recorded: Recorded, end: SettledCalls, most: int) -> Iterator[str]:
    """Say which pieces of a record are analysed, and what all of it is."""
    facts, pieces, count = recorded.facts, recorded.drawn, sum(map(len, recorded.notes))
    began, lasted_s = _lasted(facts, end)
    clock, notes, kept = facts[0].clock(), recorded.notes[0], sum(map(len, pieces))
    edges = [[piece.begins[0], piece.ends[0] - 1] for piece in pieces]
    times = [
        [(clock.at(int(notes[at : at + 1]["enter"][0])) - began) * 1e-9 for at in both] for both in edges
    ]
    over = f"the first {MOST_COUNTED:,} of them" if count > MOST_COUNTED else "the whole run"
    named = ", ".join(f"{first:.4g} to {last:.4g}" for first, last in times)
    yield (
        f"Analysed: {len(pieces)} windows drawn at random over {over}, together "
        f"{sum(last - first for first, last in times):.3g} of {lasted_s:.3g} s, with {kept:,} of {count:,} "
        f"records of calls ({kept / count:.1%}; the limit is {most:,}). Steps, times and counts describe "
        "only these windows. They lie between collectives of all ranks that no message crosses; in s after "
        f"MPI was initialised: {named}."
    )
    yield _totals(facts)


def _lasted(facts: Sequence[Facts], end: SettledCalls) -> tuple[int, float]:
    """Return when a program began, and how many seconds it lasted."""
    began = min(each.clock().at(each.begin[1]) for each in facts)
    return began, (int(end.rows.leave.max(initial=began)) - began) * 1e-9


def _shortened(recorded: Recorded, end: SettledCalls, most: int) -> Iterator[str]:
    """Shorten a record to `most` notes; say which part of it that is, and what all of it is."""
    facts, count = recorded.facts, sum(map(len, recorded.notes))
    began, lasted_s = _lasted(facts, end)
    shorten(recorded, most)
    if recorded.is_threaded() and sum(map(len, recorded.notes)) > MOST_OF_THREADS:
        shorten(recorded, MOST_OF_THREADS)
    kept, kept_s = sum(map(len, recorded.notes)), (int(facts[0].end_ns or 0) - began) * 1e-9
    yield (
        f"Analysed: the first {kept_s:.3g} of {lasted_s:.3g} s, with {kept:,} of {count:,} records of calls "
        f"({kept / count:.1%}; the limit is {most:,}). Steps, times and counts describe only this part. "
        "Windows of other parts need one thread per rank, no cancelled requests, and collectives of all "
        "ranks that no message crosses."
    )
    yield _totals(facts)


def _totals(facts: Sequence[Facts]) -> str:
    """Say how often each function was called in the whole program."""
    if not all(each.totals for each in facts):
        return "How often the whole program made each call is not known: it did not reach MPI_Finalize."
    names = sorted({*itertools.chain(*(each.totals for each in facts))})
    counted = "; ".join(_total(facts, name) for name in names)
    return f"Calls of the whole program, on all ranks together, each counted: {counted}."


def _total(facts: Sequence[Facts], name: str) -> str:
    """Say how often all ranks called a function, and for how long."""
    counts, ns, given = zip(*(each.totals.get(name, (0, 0, 0)) for each in facts), strict=True)
    each = " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
    size = f", {sum(given):,} B" if any(given) else ""
    return f"MPI_{name} {sum(counts):,} ({each} a rank; {sum(ns) * 1e-9:.3g} s{size})"


def _ideal_at(settled: SettledCalls, rank: int, times: Numbers) -> Numbers:
    """Return when a rank would be where it was at these times."""
    rows, ideal_leave = settled.rows, settled.ideal_leave
    assert ideal_leave is not None
    calls_of = np.arange(rows.places[rank], rows.places[rank + 1])
    calls_of = calls_of[(rows.thread[calls_of] == 0) & (rows.main[calls_of] == calls_of)]
    calls_of = calls_of[np.argsort(rows.leave[calls_of], kind="stable")]
    saved = np.append(0, rows.leave[calls_of] - ideal_leave[calls_of])
    return np.asarray(times - saved[np.searchsorted(rows.leave[calls_of], times, side="right")])


def _event_table(settled: SettledCalls, labels: Labels, frames: Sequence[Block], start_ns: int) -> Block:
    """Return the events of the steps, rank by rank in the order in which they ended.

    A blocking message is a started one that is completed at once, as the simulator knows it. `frames` are the
    steps and phases.
    """
    blocks = [*_calls(settled, labels), *frames]
    whole = {name: np.concatenate([_column(block, name) for block in blocks]) for name in _NUMBERS}
    level = np.array([_LEVELS.get(kind, 0) for kind in Kind])[whole["kind"]]
    order = np.lexsort((level, whole["leave"], whole["rank"]))
    rows = {name: values[order] for name, values in whole.items()}
    phase, verb = np.array([*labels.phases, ""])[rows["phase"]], np.array([*labels.verbs, ""])[rows["verb"]]
    return {
        **{name: rows[name] for name in ("rank", "step", "bytes", "request", "partner", "group")},
        "phase": phase,
        "kind": np.array([kind.name.lower() for kind in Kind])[rows["kind"]],
        "label": np.where(rows["kind"] == Kind.PHASE, phase, verb),
        "axis": np.array([*labels.axes, ""])[rows["axis"]],
        "verb": verb,
        "enter_s": (rows["enter"] - start_ns) * 1e-9,
        "leave_s": (rows["leave"] - start_ns) * 1e-9,
        "wait_s": rows["wait"] * 1e-9,
    }


def _column(block: Block, name: str) -> NDArray[Any]:
    """Return a column of a block; what it does not have is nothing, or no time and no bytes."""
    if name in block:
        return block[name]
    return np.full(len(block["rank"]), 0 if name in ("wait", "bytes") else NOTHING)


def _calls(settled: SettledCalls, labels: Labels) -> Iterator[Block]:
    """Yield the events of calls, a block for each way to make one."""
    rows, post = settled.rows, settled.post
    numbers = np.arange(len(post))
    is_own, begins = rows.main == numbers, rows.is_mode("STARTS")
    messages = rows.is_kind("SEND", "RECEIVE", "BOTH")
    seen = (labels.step >= 0) & (rows.thread == 0) & ~rows.fruitless
    settled_ = np.isin(np.array(labels.verbs)[labels.verb], VERBS) & ~(messages & (labels.partner < 0))
    aside = rows.is_kind("COMPLETE", "PROBE", "MATCHED") | rows.is_mode("PERSISTENT")
    made = seen & settled_ & ~aside
    collective, posted = made & ~messages & ~begins, made & (messages | begins)
    at_root = rows.is_kind("FROM_ROOT", "TO_ROOT") & (labels.partner == rows.rank)
    relied = seen & (post >= 0) & posted[post]
    of_groups = np.array([*(group.members[0] for group in settled.groups), NOTHING])

    def block(chosen: NDArray[np.bool_], kind: Kind, leave: Numbers, **more: Numbers) -> Block:
        about = more.get("request", numbers)
        columns: Block = {"rank": rows.rank, "step": labels.step, "phase": labels.phase}
        columns |= {
            "axis": labels.axis[about],
            "verb": labels.verb[about],
            "group": of_groups[rows.group[about]],
        }
        columns |= {"enter": np.minimum(first, leave), "leave": leave, **more}
        return {
            **{name: values[chosen] for name, values in columns.items()},
            "kind": np.full(int(chosen.sum()), int(kind)),
        }

    over = rows.leave[rows.main]
    first = np.where(is_own, rows.enter, over)  # a part takes no time of its own
    times, paid = {"wait": settled.wait}, {"bytes": labels.payload}
    yield block(collective & ~at_root, Kind.CALL, over, **times, **paid)
    yield block(collective & at_root, Kind.ROOT, over, **times, **paid)
    left = np.where(begins & is_own, rows.leave, rows.enter)
    yield block(posted, Kind.POSTED, left, request=numbers, partner=labels.partner, **paid)
    yield block(posted & ~begins, Kind.COMPLETED, over, request=numbers, **times)
    yield block(
        relied, Kind.COMPLETED, np.where(is_own, rows.enter + rows.inside(), over), request=post, **times
    )
