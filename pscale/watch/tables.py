"""The tables of a run, from the settled calls of a program: the columns that every report reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.errors import ResultsError
from pscale.ranges import as_ranges
from pscale.results.events import Kind
from pscale.results.schema import Table
from pscale.results.step_time import step_time, step_times
from pscale.watch.events import Labelled, event_table
from pscale.watch.hang import last_calls
from pscale.watch.notes import Facts, Recorded, calls
from pscale.watch.settle import Numbers, Settled, inside, partners, rows_of, settle
from pscale.watch.steps import Steps, steps

NOT_SPLIT = "not split"  # the axis of calls of which wait and transfer are not known
MOST_EVENTS = 2_000_000
MOST_CELLS = 20_000_000  # steps by phases by ranks
_NOTHING = -1
_KIB = 1024
_COVERED = 0.9  # of a program, by its steps: what is counted over all of it is then that of the steps
Columns = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What a job has recorded, as tables; `notes` and `warnings` are sentences about them."""

    tables: Mapping[Table, Columns]
    columns: Mapping[str, Any]  # of the row in `cases`
    library: str
    notes: Sequence[str]
    warnings: Sequence[str]


def watched(recorded: Recorded) -> Watched:
    """Settle what a job has recorded and put it in tables."""
    rows, groups = rows_of(recorded)
    settled = settle(rows, groups)
    found = steps(recorded, settled)
    job = _Job(recorded, settled, found)
    of_steps = job.step_table()
    ends_s = of_steps["end_s"].reshape(len(recorded.facts), -1)[:, :: len(found.phases)].max(axis=0)
    tables: dict[Table, Columns] = {
        "steps": of_steps,
        "calls": job.call_table(),
        "ranks": job.rank_table(of_steps),
    }
    if len(rows.rank) <= MOST_EVENTS:
        tables["events"] = job.event_table()
    columns = {
        "steps": found.count,
        "warmup": 0,
        "step_s": step_time(step_times(ends_s)),
        "nodes": len({facts.node for facts in recorded.facts}),
    }
    return Watched(
        tables=tables,
        columns=columns,
        library=recorded.facts[0].library,
        notes=tuple(job.notes()),
        warnings=tuple(job.warnings()),
    )


class _Job:
    """The calls of a job by rank, step and phase: its cells."""

    def __init__(self, recorded: Recorded, settled: Settled, found: Steps):
        self._facts, self._settled, self._steps, self._rows = recorded.facts, settled, found, settled.rows
        self._width = found.count * len(found.phases)
        if self._width * len(self._facts) > MOST_CELLS:
            cells = f"{found.count} steps of {len(found.phases)} phases on {len(self._facts)} ranks"
            raise ResultsError(f"{cells} are more than {MOST_CELLS:,} rows: mark fewer")
        rows = settled.rows
        self._inside = inside(rows)
        self._main = rows.thread == 0
        self._start = int(found.starts[:, 0].min())
        self._wall = np.zeros((len(self._facts), self._width))
        self._cell = np.full(len(rows.rank), _NOTHING)
        self._segments: list[dict[str, Numbers]] = []  # of phases
        for rank in range(len(self._facts)):
            self._divide(rank)
        self._verbs, self._own_verb = self._own_verbs()
        self._axes, self._own_axis = self._own_axes()
        self._verb, self._axis = self._names()

    def _divide(self, rank: int) -> None:
        """Fill in the walls of a rank's cells, and the cell of each of its calls."""
        found, phases = self._steps, len(self._steps.phases)
        times, changes = found.changes[rank]
        starts, ends = found.starts[rank], found.ends[rank]
        edges = np.unique(np.concatenate([starts, ends, times]))
        step = np.searchsorted(starts, edges, side="right") - 1
        within = (step >= 0) & (edges < ends[np.maximum(step, 0)])
        change = np.searchsorted(times, edges, side="right")
        phase = np.append(0, changes)[change]
        cells = np.where(within, step * phases + phase, _NOTHING)
        kept = cells[:-1] >= 0
        self._wall[rank] = np.bincount(cells[:-1][kept], np.diff(edges)[kept], self._width)
        segment = cells[:-1][kept]
        self._segments.append(
            {
                "rank": np.full(len(segment), rank),
                "step": segment // phases,
                "phase": segment % phases,
                "kind": np.full(len(segment), int(Kind.PHASE)),
                "enter": edges[:-1][kept],
                "leave": edges[1:][kept],
            }
        )
        rows = slice(self._rows.places[rank], self._rows.places[rank + 1])
        place = np.searchsorted(edges, self._rows.enter[rows], side="right") - 1
        self._cell[rows] = np.where(place >= 0, cells[np.maximum(place, 0)], _NOTHING)

    def _own_verbs(self) -> tuple[list[str], Numbers]:
        """Return all verbs, and by row the number of that of its function."""
        rows, functions = self._rows, calls()
        words = sorted({call.verb or call.name.lower() for call in functions})
        verbs = np.array([words.index(call.verb or call.name.lower()) for call in functions])
        receives = rows.is_kind("BOTH") & (rows.main != np.arange(len(rows.main)))
        return words, np.where(receives, words.index("receive"), verbs[rows.call])

    def _own_axes(self) -> tuple[list[str], Numbers]:
        """Return the names of all communicators, and by row the number of its call's."""
        groups = self._settled.groups
        axes = ["", NOT_SPLIT, *dict.fromkeys(group.name for group in groups)]
        of_group = np.array([*(axes.index(group.name) for group in groups), 0])
        return axes, np.where(self._settled.ordinary, of_group[self._rows.group], axes.index(NOT_SPLIT))

    def _names(self) -> tuple[Numbers, Numbers]:
        """Return by row the numbers of the verb and the axis that its time belongs to."""
        settled = self._settled
        about = settled.about
        about = np.where(settled.started[about] >= 0, settled.started[about], about)
        axis = np.where(settled.ordinary, self._own_axis[about], self._axes.index(NOT_SPLIT))
        return self._own_verb[about], axis

    def _total(self, values: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
        """Return sums by rank and cell."""
        inside = chosen & (self._cell >= 0)
        place = self._rows.rank[inside] * self._width + self._cell[inside]
        return np.bincount(place, values[inside], len(self._facts) * self._width).reshape(-1, self._width)

    def step_table(self) -> Columns:
        """Return the rows of `steps`, rank by rank."""
        found, settled = self._steps, self._settled
        ranks, phases = len(self._facts), len(found.phases)
        in_calls, waited = self._total(self._inside, self._main), self._total(settled.wait, self._main)
        caused = np.zeros(len(settled.wait), np.int64)
        known = settled.cause >= 0
        np.add.at(caused, settled.cause[known], settled.wait[known])
        ends = np.repeat(found.ends - self._start, phases, axis=1)
        walls = self._wall.reshape(ranks, -1, phases).sum(axis=2)
        unaccounted = np.diff(found.ends - self._start, prepend=0, axis=1) - walls
        times = {
            "wall_s": self._wall,
            "compute_s": np.maximum(self._wall - in_calls, 0),
            "transfer_s": in_calls - waited,
            "wait_s": waited,
            "copy_s": np.zeros_like(self._wall),
            "hidden_s": self._total(self._hidden(), np.ones(len(known), np.bool_)),
            "caused_wait_s": self._total(caused, np.ones(len(known), np.bool_)),
            "injected_delay_s": np.zeros_like(self._wall),
            "unaccounted_s": np.repeat(unaccounted, phases, axis=1),
            "end_s": ends,
        }
        if settled.ideal_wait is not None:
            times["ideal_wait_s"] = self._total(settled.ideal_wait, self._main)
            times["ideal_end_s"] = np.repeat(self._ideal_ends(), phases, axis=1)
        return {
            "rank": np.repeat(np.arange(ranks), self._width),
            "step": np.tile(np.repeat(np.arange(found.count), phases), ranks),
            "phase": np.tile(np.array(found.phases), ranks * found.count),
            **{name: values.reshape(-1) * 1e-9 for name, values in times.items()},
        }

    def _hidden(self) -> Numbers:
        """Return how long each started call was under way outside MPI, and what other threads did in MPI."""
        rows, post = self._rows, self._settled.post
        over = np.flatnonzero(post >= 0)
        hidden = np.where(self._main, 0, self._inside)
        hidden[post[over]] = np.maximum(rows.enter[rows.main[over]] - rows.leave[post[over]], 0)
        return hidden

    def _ideal_ends(self) -> Numbers:
        """Return when each step of each rank would end on an ideal network, since the first began."""
        found = self._steps
        edges = np.concatenate([found.starts[:, :1], found.ends], axis=1)
        ideal = np.array([self._ideal_at(rank, own) for rank, own in enumerate(edges)])
        return np.asarray(ideal[:, 1:] - ideal[:, 0].min())

    def _ideal_at(self, rank: int, times: Numbers) -> Numbers:
        rows, ideal_leave = self._rows, self._settled.ideal_leave
        assert ideal_leave is not None
        own = np.arange(rows.places[rank], rows.places[rank + 1])
        own = own[self._main[own] & (rows.main[own] == own)]
        own = own[np.argsort(rows.leave[own], kind="stable")]
        saved = np.append(0, rows.leave[own] - ideal_leave[own])
        return np.asarray(times - saved[np.searchsorted(rows.leave[own], times, side="right")])

    def _is_made(self) -> NDArray[np.bool_]:
        """Tell which rows are calls that exchange something, counted once: where they are made."""
        rows = self._rows
        aside = rows.is_kind("COMPLETE", "MARK", "BEGIN", "END", "START", "MATCHED", "PROBE")
        nowhere = rows.is_kind("SEND", "RECEIVE", "BOTH") & (rows.peer < 0)  # MPI_PROC_NULL
        return ~aside & ~nowhere & ~rows.fruitless & ~rows.is_mode("PERSISTENT")

    def _payload(self) -> Numbers:
        rows = self._rows
        received = rows.is_kind("BOTH") & (rows.main != np.arange(len(rows.main)))
        return np.where(self._is_made() & ~received, rows.bytes, 0)

    def call_table(self) -> Columns:
        """Return the rows of `calls`: calls count where they are made, their time where it is spent."""
        rows, settled, made = self._rows, self._settled, self._is_made()
        spent = np.flatnonzero((self._cell >= 0) & ~rows.is_kind("MARK", "BEGIN", "END"))
        counted = np.flatnonzero((self._cell >= 0) & made)
        spans = len(self._facts), self._width, len(self._axes), len(self._verbs)
        of_time = [each[spent] for each in (rows.rank, self._cell, self._axis, self._verb)]
        of_count = [each[counted] for each in (rows.rank, self._cell, self._own_axis, self._own_verb)]
        keys = np.concatenate([np.ravel_multi_index(of, spans) for of in (of_time, of_count)])
        found, cell = np.unique(keys, return_inverse=True)
        cells = np.unravel_index(found, spans)

        def total(values: NDArray[Any]) -> NDArray[Any]:
            return np.bincount(cell[: len(spent)], values[spent], len(found))

        def count(values: NDArray[Any]) -> NDArray[np.int64]:
            return np.bincount(cell[len(spent) :], values[counted], len(found)).astype(np.int64)

        phases = len(self._steps.phases)
        started = rows.is_mode("STARTS") | rows.is_kind("COMPLETE")
        in_calls, wait = (np.where(self._main, each, 0) for each in (self._inside, settled.wait))
        times = {
            "transfer_s": in_calls - wait,
            "wait_s": wait,
            "hidden_s": self._hidden(),
            "exposed_s": np.where(started, in_calls, 0),
        }
        if settled.ideal_wait is not None:
            times["ideal_wait_s"] = settled.ideal_wait
        return {
            "rank": cells[0],
            "step": cells[1] // phases,
            "phase": np.array(self._steps.phases)[cells[1] % phases],
            "axis": np.array(self._axes)[cells[2]],
            "verb": np.array(self._verbs)[cells[3]],
            "count": count(made),
            "bytes": count(self._payload()),
            **{name: total(values) * 1e-9 for name, values in times.items()},
            "clock_bound_s": self._bounds()[cells[2]] * 1e-9,
        }

    def _bounds(self) -> Numbers:
        """Return by axis how far a wait may be off: the bounds of two clocks, 0 within a node."""
        found = np.zeros(len(self._axes), np.int64)
        bounds = [facts.clock().bound_ns for facts in self._facts]
        for group in self._settled.groups:
            members = {*group.members, *group.remote}
            if len({self._facts[rank].node for rank in members}) > 1:
                place = self._axes.index(group.name)
                found[place] = max(found[place], 2 * max(bounds[rank] for rank in members))
        return found

    def rank_table(self, of_steps: Mapping[str, NDArray[Any]]) -> Columns:
        """Return the rows of `ranks`."""
        rows = [self._rank(facts) for facts in self._facts]
        shape = len(rows), self._width
        found: Columns = {name: [row[name] for row in rows] for name in rows[0]}
        found["wall_s"] = (self._steps.ends[:, -1] - self._start) * 1e-9
        covered = found["wall_s"] / np.array([self._lasted_s(facts) for facts in self._facts])
        for name in ("cpu_s", "involuntary_context_switches"):  # counted over all of the program
            found[name] = [v if of >= _COVERED else None for v, of in zip(found[name], covered, strict=True)]
        found["unaccounted_s"] = found["wall_s"] - of_steps["wall_s"].reshape(shape).sum(axis=1)
        if "ideal_end_s" in of_steps:
            found["t_ideal_s"] = of_steps["ideal_end_s"].reshape(shape)[:, -1]
        return found

    def _lasted_s(self, facts: Facts) -> float:
        """Return how long a rank was between MPI_Init and MPI_Finalize, or its last call."""
        own = slice(self._rows.places[facts.rank], self._rows.places[facts.rank + 1])
        clock = facts.clock()
        begun = clock.at(facts.begin[1])
        last = self._rows.leave[own].max(initial=begun) if facts.end_ns is None else clock.at(facts.end_ns)
        return max(1, last - begun) * 1e-9

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
            "events": int(np.diff(self._rows.places)[facts.rank]),
            "cpu_s": (facts.used[0] + facts.used[1]) * 1e-6 if facts.used else None,
            "peak_rss_bytes": facts.used[2] * _KIB if facts.used else None,
            "involuntary_context_switches": facts.used[3] if facts.used else None,
            "peak_rss_of_steps": False,
        }

    def event_table(self) -> Columns:
        """Return the rows of `events`: steps, phases, and calls as the worker records them."""
        rows, phases = self._rows, len(self._steps.phases)
        outside = self._cell < 0
        partner = np.full(len(outside), _NOTHING)
        ends = np.flatnonzero((rows.peer >= 0) & (rows.group >= 0))
        partner[ends] = partners(rows, self._settled.groups, ends)
        told = Labelled(
            step=np.where(outside, _NOTHING, self._cell // phases),
            phase=np.where(outside, _NOTHING, self._cell % phases),
            phases=self._steps.phases,
            axis=self._axis,
            axes=self._axes,
            verb=self._own_verb,
            verbs=self._verbs,
            payload=self._payload(),
            partner=partner,
        )
        return event_table(self._settled, told, [*self._segments, *self._step_frames()], self._start)

    def _step_frames(self) -> Iterator[dict[str, Numbers]]:
        for rank, (starts, ends) in enumerate(zip(self._steps.starts, self._steps.ends, strict=True)):
            numbers = np.arange(len(starts))
            kind = np.full(len(starts), int(Kind.STEP))
            yield {
                "rank": np.full_like(numbers, rank),
                "step": numbers,
                "kind": kind,
                "enter": starts,
                "leave": ends,
            }

    def notes(self) -> Iterator[str]:
        """Say what steps are, and what of the time in MPI is not split."""
        yield f"Steps: {self._steps.how}."
        in_mpi = np.where(self._main & (self._cell >= 0), self._inside, 0)
        apart = np.where(self._axis == self._axes.index(NOT_SPLIT), in_mpi, 0)
        if apart.sum():
            by_verb = np.bincount(self._verb, apart, len(self._verbs))
            named = ", ".join(self._verbs[place] for place in np.argsort(-by_verb)[:3] if by_verb[place])
            yield (
                f"MPI, not split: {apart.sum() / in_mpi.sum():.1%} of the time in MPI ({named}). Which ranks "
                "these calls wait for is not known: all of their time counts as transfer."
            )
        if (self._rows.thread > 0).any():
            yield "Threads: the calls of any but the thread that called MPI_Init count as hidden."

    def warnings(self) -> Iterator[str]:
        """Say where the record ends before the program does."""
        if unfinished := [facts.rank for facts in self._facts if facts.end_ns is None]:
            yield (
                f"{len(unfinished)} of {len(self._facts)} ranks did not reach MPI_Finalize. In their last "
                f"records: {last_calls(self._settled)}"
            )
