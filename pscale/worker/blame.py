"""Whom the others waited for: every wait put down to the rank that came last, worked out after the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis
from pscale.results.events import PHASES, Kind
from pscale.worker.waits import Column, Rows, arrivals, from_partners, last_arrival, messages


def caused(rows: Rows, wait: Column, axes: Sequence[Axis]) -> Column:
    """Return how long others waited for this rank in the call that a row came to, in ns; collective.

    Waits of several are added up. The two sides of a message wait for each other; of the ranks of an axis,
    the last to come is the cause.
    """
    found, waited = np.zeros_like(wait), _where_it_came(rows, wait)
    for number, axis in enumerate(axes):
        posted = messages(rows, number)
        found[posted] = from_partners(rows, posted, axis, waited)[posted]
        arrives = arrivals(rows, number)
        last = last_arrival(rows, arrives, axis)
        together = waited[arrives]
        axis.all_reduce(together, "sum")
        found[arrives] = np.where(rows["enter"][arrives] == last, together, 0)
    return found


def _where_it_came(rows: Rows, wait: Column) -> Column:
    """Return the waits with those of started calls on the rows that started them."""
    over, posted = rows["kind"] == Kind.COMPLETED, rows["kind"] == Kind.POSTED
    of_request = np.zeros(rows["request"].max(initial=-1) + 1, np.int64)
    of_request[rows["request"][over]] = wait[over]
    moved = np.where(over, 0, wait)
    moved[posted] = of_request[rows["request"][posted]]
    return moved


def by_phase(rows: Rows, caused_ns: Column) -> NDArray[Any]:
    """Add up by step and phase, in the order of the table `steps`; seconds."""
    inside = rows["phase"] >= 0
    cell = rows["step"] * len(PHASES) + rows["phase"]
    size = (int(rows["step"].max()) + 1) * len(PHASES)
    return np.bincount(cell[inside], caused_ns[inside], size) * 1e-9
