"""Rows of steps and calls summed while they are read, so that a run of millions of them fits in memory.

Everything here is numpy over numbered cells: launches are numbered as they come, ranks within launches, steps
within ranks. A table of sums has a row a cell that occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]

OFFLOAD = ("offload_s", "offload_io_s", "offload_read_bytes", "offload_write_bytes")  # 0 in runs before them
SPENT = (
    *("compute_s", "transfer_s", "wait_s", "together_s", "copy_s", "hidden_s", "ideal_wait_s", "wall_s"),
    "injected_s",
    *OFFLOAD,
)
STEP_COLUMNS = (
    *("case", "repeat", "rank", "step", "phase", "compute_s", "transfer_s", "wait_s", "copy_s", "hidden_s"),
    *("ideal_wait_s", "wall_s", "caused_s", "injected_s", "end_s"),
    *OFFLOAD,
)
CALL_SUMS = ("count", "bytes", "transfer_s", "wait_s", "hidden_s", "exposed_s", "ideal_wait_s")
CALL_COLUMNS = ("case", "repeat", "rank", "axis", "verb", *CALL_SUMS, "clock_bound_s")
_NUMBERS = ("compute_s", "transfer_s", "wait_s", "end_s")  # not one of them may be no number


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Columns of rows of whole launches; texts are numbers into `words`, what is missing is NaN."""

    columns: Mapping[str, NDArray[Any]]
    words: Mapping[str, Sequence[str]]
    broken: Mapping[str, NDArray[np.bool_]]  # of real columns: where a value is NaN or infinite, not missing

    def __len__(self) -> int:
        return len(self.columns["repeat"])


class Cells:
    """Launches, their ranks and the steps of these, as numbers from 0 on."""

    def __init__(self, batch: Batch):
        case, repeat, rank = (batch.columns[name] for name in ("case", "repeat", "rank"))
        new = np.ones(len(batch), np.bool_)
        new[1:] = (case[1:] != case[:-1]) | (repeat[1:] != repeat[:-1])
        self.starts = np.flatnonzero(new)
        self.launch = np.cumsum(new) - 1
        self.case, self.repeat = case[self.starts], repeat[self.starts]
        self.ranks = np.maximum.reduceat(rank, self.starts) + 1
        self._first_seat = _offsets(self.ranks)
        self.seat = self._first_seat[self.launch] + rank
        self.launch_of_seat = np.repeat(np.arange(len(self.starts)), self.ranks)
        self.rank_of_seat = np.arange(len(self.launch_of_seat)) - self._first_seat[self.launch_of_seat]

    def keys(self, launches: Numbers) -> dict[str, NDArray[Any]]:
        """Return the columns that name launches."""
        return {"case": self.case[launches], "repeat": self.repeat[launches]}

    def seats(self, seats: Numbers) -> dict[str, NDArray[Any]]:
        """Return the columns that name ranks of launches."""
        return {**self.keys(self.launch_of_seat[seats]), "rank": self.rank_of_seat[seats]}


def _offsets(counts: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(counts)[:-1]])


def summed(cell: Numbers, count: int, values: Reals) -> Reals:
    """Return the sum of the values of each cell; NaN where none of them is known."""
    if not values.any():  # of copies, say, or of what is offloaded
        return np.zeros(count)
    missing = np.isnan(values)
    if not missing.any():
        return np.bincount(cell, values, count).astype(np.float64, copy=False)
    known = np.bincount(cell[~missing], minlength=count)
    return np.where(known, np.bincount(cell[~missing], values[~missing], count), np.nan)


@dataclass(frozen=True, kw_only=True)
class StepSums:
    """What is kept of the rows of steps; cases are numbers into the words of their batch."""

    phases: pd.DataFrame  # case repeat rank phase, and `SPENT` summed over steps
    seats: pd.DataFrame  # case repeat rank, steps: how many
    ends: pd.DataFrame  # case repeat step, end_s of the last rank and burnt_s of the one that burnt most
    blame: pd.DataFrame  # case repeat rank step: blame_s, waits of others that are nobody else's doing
    waited: pd.DataFrame  # case repeat: wait_s where whom it was for is known
    broken: pd.DataFrame  # case repeat of launches with times that are no numbers


def steps(batch: Batch) -> StepSums:
    """Sum rows of steps, `together_s` among them."""
    cells, columns = Cells(batch), batch.columns
    step_counts = np.maximum.reduceat(columns["step"], cells.starts) + 1
    first = _offsets(cells.ranks * step_counts)
    place = first[cells.launch] + columns["rank"] * step_counts[cells.launch] + columns["step"]
    total = int((cells.ranks * step_counts).sum())
    ends_s = np.full(total, np.nan)
    ends_s[place] = columns["end_s"]  # that of a step is the same for its phases
    grid = _Grid(cells, step_counts, first, occurs=np.bincount(place, minlength=total) > 0)
    burnt_s, caused_s, wait_s = (
        summed(place, total, columns[name]) for name in ("injected_s", "caused_s", "wait_s")
    )
    known = ~np.isnan(caused_s)
    return StepSums(
        phases=_phases(batch, cells),
        seats=grid.seats(),
        ends=grid.steps({"end_s": ends_s, "burnt_s": burnt_s}),
        blame=grid.cells(known, {"blame_s": np.maximum(caused_s - wait_s, 0.0)}),
        waited=grid.launches(np.where(known, wait_s, np.nan)),
        broken=_broken(batch, cells, ~(np.fmax.reduceat(columns["end_s"], cells.starts) > 0)),
    )


def _phases(batch: Batch, cells: Cells) -> pd.DataFrame:
    phases = len(batch.words["phase"])
    cell = cells.seat * phases + batch.columns["phase"]
    count = len(cells.launch_of_seat) * phases
    occurs = np.flatnonzero(np.bincount(cell, minlength=count))
    sums = {name: summed(cell, count, batch.columns[name])[occurs] for name in SPENT}
    return pd.DataFrame({**cells.seats(occurs // phases), "phase": occurs % phases, **sums})


def _broken(batch: Batch, cells: Cells, also: NDArray[np.bool_] | None = None) -> pd.DataFrame:
    """Return the launches with times that are no numbers, and those that are `also` broken."""
    wrong = np.zeros(len(cells.starts), np.bool_) if also is None else also.copy()
    for name in _NUMBERS:
        if name in batch.broken:
            wrong[cells.launch[batch.broken[name]]] = True
    return pd.DataFrame(cells.keys(np.flatnonzero(wrong)))


class _Grid:
    """Every step of every rank of every launch, in this order, whether it occurs or not."""

    def __init__(self, cells: Cells, step_counts: Numbers, first: Numbers, occurs: NDArray[np.bool_]):
        self._cells, self._counts, self._first, self._occurs = cells, step_counts, first, occurs
        of_seat = step_counts[cells.launch_of_seat]
        self._first_of_seat = _offsets(of_seat)
        self._seat = np.repeat(np.arange(len(of_seat)), of_seat)

    def seats(self) -> pd.DataFrame:
        """Return, by rank, how many steps there are."""
        counts = np.add.reduceat(self._occurs.astype(np.int64), self._first_of_seat)
        (present,) = np.nonzero(counts)
        return pd.DataFrame({**self._cells.seats(present), "steps": counts[present]})

    def steps(self, values: Mapping[str, Reals]) -> pd.DataFrame:
        """Return, by step, the largest value among ranks."""
        launches = np.repeat(np.arange(len(self._counts)), self._counts)
        step = np.arange(len(launches)) - _offsets(self._counts)[launches]
        largest = {name: self._over_ranks(np.fmax, array) for name, array in values.items()}
        occurs = self._over_ranks(np.logical_or, self._occurs)
        columns = {**self._cells.keys(launches), "step": step, **largest}
        return pd.DataFrame({name: column[occurs] for name, column in columns.items()})

    def _over_ranks(self, reduce: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        shapes = zip(self._first, self._cells.ranks, self._counts, strict=True)
        return np.concatenate(
            [
                reduce.reduce(values[first : first + ranks * steps].reshape(ranks, steps), axis=0)
                for first, ranks, steps in shapes
            ]
        )

    def cells(self, chosen: NDArray[np.bool_], values: Mapping[str, Reals]) -> pd.DataFrame:
        """Return a row a chosen cell."""
        (places,) = np.nonzero(chosen)
        seats = self._seat[places]
        step = places - self._first_of_seat[seats]
        found = {name: array[places] for name, array in values.items()}
        return pd.DataFrame({**self._cells.seats(seats), "step": step, **found})

    def launches(self, wait_s: Reals) -> pd.DataFrame:
        """Return, by launch, the sum of what is known."""
        launch = self._cells.launch_of_seat[self._seat]
        sums = summed(launch, len(self._counts), wait_s)
        (known,) = np.nonzero(~np.isnan(sums))
        return pd.DataFrame({**self._cells.keys(known), "wait_s": sums[known]})


@dataclass(frozen=True, kw_only=True)
class CallSums:
    """What is kept of the rows of calls."""

    calls: pd.DataFrame  # case repeat axis verb, `CALL_SUMS` over ranks and steps, and bound_s: count x bound
    broken: pd.DataFrame  # case repeat of launches with times that are no numbers


def calls(batch: Batch) -> CallSums:
    """Sum rows of calls."""
    cells, columns = Cells(batch), batch.columns
    axes, verbs = (len(batch.words[name]) for name in ("axis", "verb"))
    cell = (cells.launch * axes + columns["axis"]) * verbs + columns["verb"]
    count = len(cells.starts) * axes * verbs
    occurs = np.flatnonzero(np.bincount(cell, minlength=count))
    sums = {name: summed(cell, count, columns[name])[occurs] for name in CALL_SUMS}
    bounds = np.nan_to_num(columns["clock_bound_s"]) * columns["count"]
    keys = {
        **cells.keys(occurs // (axes * verbs)),
        "axis": occurs // verbs % axes,
        "verb": occurs % verbs,
    }
    return CallSums(
        calls=pd.DataFrame({**keys, **sums, "bound_s": summed(cell, count, bounds)[occurs]}),
        broken=_broken(batch, cells),
    )
