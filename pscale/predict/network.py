"""A network that is described and not measured, under the mesh of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pscale.predict.program import StepProgram
from pscale.simulator.network import Level, Link, Price, Tiers

ALL = "all"
CONGESTED = (
    "meets itself on links that ranks share: priced as if all took even turns, which leaves congestion out; "
    "--engine simgrid does not"
)
_MEETING = ("all_to_all", "gather", "scatter")  # verbs whose messages all go at once, or to one


@dataclass(frozen=True, kw_only=True)
class Network:
    """Tiers, or links by the axis of calls (or `all`), whose calls then take what is needed at least.

    Axes of which neither says anything cost what was measured.
    """

    tiers: Tiers | None = None
    links: Mapping[str, Link] = field(default_factory=dict)

    def under(self, program: StepProgram) -> Fabric:
        """Return the prices of calls on the mesh of a program."""
        return Fabric(self, program)


class Fabric:
    """What calls over the axes of a mesh cost on a network; raises PlanError where a tier is missing."""

    def __init__(self, network: Network, program: StepProgram):
        self._network, self._program = network, program
        self._levels: dict[str, tuple[Level, ...]] = {}
        self._meeting: dict[str, None] = {}

    def price(self, axis: str, verb: str, payload_bytes: int) -> Price | None:
        """Return what a call costs; None where it costs what was measured."""
        link = self._network.links.get(axis, self._network.links.get(ALL))
        if link is not None:
            size = self._program.size(axis)
            busy_s = link.sending_ns(verb, size, payload_bytes) * 1e-9
            return Price(seconds=link.latency_ns(verb, size) * 1e-9 + busy_s, busy_s=busy_s)
        if self._network.tiers is None:
            return None
        if axis not in self._levels:
            self._levels[axis] = self._network.tiers.levels(self._members(axis), self._program.ranks)
        levels = self._levels[axis]
        if verb in _MEETING and any(level.senders > 1 and level.tier.link for level in levels):
            self._meeting[f"{verb.replace('_', '-')} over {axis}"] = None
        return self._network.tiers.price(levels, verb, payload_bytes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which of the calls that were priced cannot be right."""
        return tuple(f"{which} {CONGESTED}" for which in self._meeting)

    def _members(self, axis: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Return the ranks of an axis that exchange with rank 0."""
        sizes = self._program.sizes
        span = self._program.spans[axis]
        ranks = np.arange(math.prod(sizes.values()), dtype=np.int64).reshape(tuple(sizes.values()))
        return ranks[tuple(slice(None) if each in span else 0 for each in sizes)].ravel()
