"""Rows of steps and calls summed while they are read, so that a run of millions of them fits in memory.

Every function takes rows of whole launches and returns Arrow tables by name, with a row for each group that
occurs. A sum is null where none of its values is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

OFFLOAD = ("offload_s", "offload_io_s", "offload_read_bytes", "offload_write_bytes")  # null in older runs
_SPENT = (
    *("compute_s", "transfer_s", "wait_s", "wait_or_transfer_s", "copy_s", "hidden_s", "ideal_wait_s"),
    *("wall_s", "injected_delay_s", *OFFLOAD),
)
_LAUNCH = ("case", "repeat")
_SEAT = (*_LAUNCH, "rank")
STEP_COLUMNS = (
    *(*_SEAT, "step", "phase", "compute_s", "transfer_s", "wait_s", "copy_s", "hidden_s", "ideal_wait_s"),
    *("wall_s", "caused_wait_s", "injected_delay_s", "end_s", *OFFLOAD),
)
_CALL_SUMS = ("count", "bytes", "transfer_s", "wait_s", "hidden_s", "exposed_s", "ideal_wait_s")
CALL_COLUMNS = (*_SEAT, "axis", "verb", *_CALL_SUMS, "clock_bound_s")


def steps(rows: pa.Table) -> dict[str, pa.Table]:
    """Return sums of rows of steps, with `wait_or_transfer_s` if they have it.

    * `phases`: case repeat rank phase, and the kinds of time summed over steps;
    * `seats`: case repeat rank, steps: how many;
    * `ends`: case repeat step, end_s of the last rank and the largest injected_s of a rank;
    * `caused_waits`: case repeat rank step, caused_s: waits of others less its own;
    * `waited`: case repeat, wait_s where its cause is known;
    * `broken`: case repeat of launches with times that are no numbers, or no time at all.
    """
    spent = [name for name in _SPENT if name in rows.column_names]
    phases = _grouped(rows, (*_SEAT, "phase"), sums=(*spent, "end_s"))
    of_step = ("injected_delay_s", "caused_wait_s", "wait_s")
    cells = _grouped(rows, (*_SEAT, "step"), sums=of_step, largest=("end_s",))
    ends = _grouped(cells, (*_LAUNCH, "step"), largest=("end_s", "injected_delay_s"))
    last = _grouped(ends, _LAUNCH, largest=("end_s",))
    known = cells.filter(pc.is_valid(cells["caused_wait_s"]))
    caused_s = pc.max_element_wise(pc.subtract(known["caused_wait_s"], known["wait_s"]), 0.0)
    timeless = last.filter(pc.invert(pc.fill_null(pc.greater(last["end_s"], 0.0), fill_value=False)))
    return {
        "phases": phases.drop_columns("end_s"),
        "seats": cells.group_by(list(_SEAT), use_threads=False)
        .aggregate([([], "count_all")])
        .select([*_SEAT, "count_all"])
        .rename_columns([*_SEAT, "steps"]),
        "ends": ends.rename_columns([*_LAUNCH, "step", "end_s", "injected_s"]),
        "caused_waits": known.select([*_SEAT, "step"]).append_column("caused_s", caused_s),
        "waited": _grouped(known, _LAUNCH, sums=("wait_s",)),
        "broken": pa.concat_tables(
            [_broken(phases, "compute_s", "transfer_s", "wait_s", "end_s"), timeless.select(_LAUNCH)]
        ),
    }


def calls(rows: pa.Table) -> dict[str, pa.Table]:
    """Return sums of rows of calls.

    * `calls`: case repeat axis verb, sums over ranks and steps, and bound_s: count x bound of the clocks;
    * `broken`: case repeat of launches with times that are no numbers.
    """
    bound_s = pc.multiply(pc.fill_null(rows["clock_bound_s"], 0.0), pc.cast(rows["count"], pa.float64()))
    known = rows.append_column("bound_s", bound_s)
    sums = _grouped(known, (*_LAUNCH, "axis", "verb"), sums=(*_CALL_SUMS, "bound_s"))
    return {"calls": sums, "broken": _broken(sums, "transfer_s", "wait_s")}


def joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the sums of all batches as one table, whose coded texts have the same numbers everywhere."""
    return pa.concat_tables(parts).unify_dictionaries()


def with_columns(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return rows with these columns, in place of those of the same names; NaN is null."""
    kept = rows.drop_columns([name for name in columns if name in rows.column_names])
    for name, values in columns.items():
        kept = kept.append_column(name, pa.array(values, from_pandas=True))
    return kept


def _grouped(
    rows: pa.Table, by: Sequence[str], sums: Sequence[str] = (), largest: Sequence[str] = ()
) -> pa.Table:
    """Return the sum or the largest value of columns in each group, groups in the order of their rows."""
    asked = [*((name, "sum") for name in sums), *((name, "max") for name in largest)]
    found = rows.group_by(list(by), use_threads=False).aggregate(asked)
    named = found.select([*by, *(f"{name}_{function}" for name, function in asked)])
    return named.rename_columns([*by, *sums, *largest])


def _broken(sums: pa.Table, *names: str) -> pa.Table:
    """Return the launches with a value that is NaN or infinite, not missing, and so a sum that is."""
    wrong = [pc.fill_null(pc.invert(pc.is_finite(sums[name])), fill_value=False) for name in names]
    chosen = wrong[0]
    for other in wrong[1:]:
        chosen = pc.or_(chosen, other)
    return sums.filter(chosen).select(_LAUNCH)
