"""The tables of a run, from the settled calls of a program: the columns that every report reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.runs.events import VERBS, Kind
from pscale.runs.host import as_ranges
from pscale.runs.schema import Table
from pscale.runs.step_time import step_time, step_times
from pscale.watch.hang import last_calls
from pscale.watch.notes import Facts, Recorded, shorten
from pscale.watch.rows import NOTHING, Numbers, Rows, all_rows, windows
from pscale.watch.sample import MOST_COUNTED, draw
from pscale.watch.settle import (
    MOST_AT_ONCE,
    MOST_OF_THREADS,
    MOST_SETTLED,
    WINDOW,
    SettledCalls,
    is_short,
    settle,
    settle_windows,
)
from pscale.watch.steps import find_steps
from pscale.watch.sums import Labels, Sums

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
        "nodes": len({own.node for own in facts}),
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
        self._unfinished = [own.rank for own in recorded.facts if own.end_ns is None]
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
        ideal = np.array([_ideal_at(settled, rank, own) for rank, own in enumerate(edges)])
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
        found = np.zeros(len(self._sums.axes), np.int64)
        bounds = [facts.clock().bound_ns for facts in self._sums.facts]
        axis = {name: number for number, name in enumerate(self._sums.axes)}
        for group in self._groups:
            members = {*group.members, *group.remote}
            if len({self._sums.facts[rank].node for rank in members}) > 1:
                place = axis[group.name]
                found[place] = max(found[place], 2 * max(bounds[rank] for rank in members))
        return found

    def rank_table(self, of_steps: Mapping[str, NDArray[Any]]) -> Columns:
        """Return the rows of `ranks`."""
        rows = [self._rank(facts) for facts in self._sums.facts]
        shape = self._sums.wall.shape
        found: Columns = {name: [row[name] for row in rows] for name in rows[0]}
        found["wall_s"] = of_steps["end_s"].reshape(shape)[:, -1]
        covered = found["wall_s"] / np.array([self._lasted_s(facts) for facts in self._sums.facts])
        for name in ("cpu_s", "involuntary_context_switches"):  # counted over all of the program
            found[name] = [v if of >= _COVERED else None for v, of in zip(found[name], covered, strict=True)]
        found["unaccounted_s"] = found["wall_s"] - of_steps["wall_s"].reshape(shape).sum(axis=1)
        if "ideal_end_s" in of_steps:
            found["t_ideal_s"] = of_steps["ideal_end_s"].reshape(shape)[:, -1]
        return found

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
        return event_table(settled, self._sums.labels(settled), frames, self._sums.start)

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
    times = [[(clock.at(int(notes[at : at + 1]["enter"][0])) - began) * 1e-9 for at in own] for own in edges]
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
    began = min(own.clock().at(own.begin[1]) for own in facts)
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
    if not all(own.totals for own in facts):
        return "How often the whole program made each call is not known: it did not reach MPI_Finalize."
    names = sorted({*itertools.chain(*(own.totals for own in facts))})
    counted = "; ".join(_total(facts, name) for name in names)
    return f"Calls of the whole program, on all ranks together, each counted: {counted}."


def _total(facts: Sequence[Facts], name: str) -> str:
    """Say how often all ranks called a function, and for how long."""
    counts, ns, given = zip(*(own.totals.get(name, (0, 0, 0)) for own in facts), strict=True)
    each = " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
    size = f", {sum(given):,} B" if any(given) else ""
    return f"MPI_{name} {sum(counts):,} ({each} a rank; {sum(ns) * 1e-9:.3g} s{size})"


def _ideal_at(settled: SettledCalls, rank: int, times: Numbers) -> Numbers:
    """Return when a rank would be where it was at these times."""
    rows, ideal_leave = settled.rows, settled.ideal_leave
    assert ideal_leave is not None
    own = np.arange(rows.places[rank], rows.places[rank + 1])
    own = own[(rows.thread[own] == 0) & (rows.main[own] == own)]
    own = own[np.argsort(rows.leave[own], kind="stable")]
    saved = np.append(0, rows.leave[own] - ideal_leave[own])
    return np.asarray(times - saved[np.searchsorted(rows.leave[own], times, side="right")])


def event_table(settled: SettledCalls, labels: Labels, frames: Sequence[Block], start_ns: int) -> Block:
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
    own, begins = rows.main == numbers, rows.is_mode("STARTS")
    messages = rows.is_kind("SEND", "RECEIVE", "BOTH")
    seen = (labels.step >= 0) & (rows.thread == 0) & ~rows.fruitless
    known = np.isin(np.array(labels.verbs)[labels.verb], VERBS) & ~(messages & (labels.partner < 0))
    aside = rows.is_kind("COMPLETE", "PROBE", "MATCHED") | rows.is_mode("PERSISTENT")
    made = seen & known & ~aside
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
        found = {name: values[chosen] for name, values in columns.items()}
        return {**found, "kind": np.full(int(chosen.sum()), int(kind))}

    over = rows.leave[rows.main]
    first = np.where(own, rows.enter, over)  # a part takes no time of its own
    times, paid = {"wait": settled.wait}, {"bytes": labels.payload}
    yield block(collective & ~at_root, Kind.CALL, over, **times, **paid)
    yield block(collective & at_root, Kind.ROOT, over, **times, **paid)
    left = np.where(begins & own, rows.leave, rows.enter)
    yield block(posted, Kind.POSTED, left, request=numbers, partner=labels.partner, **paid)
    yield block(posted & ~begins, Kind.COMPLETED, over, request=numbers, **times)
    yield block(
        relied, Kind.COMPLETED, np.where(own, rows.enter + rows.inside(), over), request=post, **times
    )
