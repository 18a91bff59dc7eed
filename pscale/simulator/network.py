"""What a call costs on a network that was not there: by links along axes, or by its tiers and algorithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pscale.errors import PlanError
from pscale.runs.schema import BETWEEN_TWO

Algorithm = Literal["ring", "recursive-doubling", "tree", "pairwise", "hierarchical", "best"]
ALL = "all"
_OF_ALL: tuple[Algorithm, ...] = ("ring", "recursive-doubling", "tree", "hierarchical", "best")
_TREES: tuple[Algorithm, ...] = ("tree", "best")
_MEETING = ("all_to_all", "gather", "scatter")  # verbs whose messages all go at once, or to one
OFFERED: Mapping[str, tuple[Algorithm, ...]] = {  # of each verb, the usual one first
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), _OF_ALL),
    **dict.fromkeys(("broadcast", "reduce", "gather", "scatter", "barrier"), _TREES),
    "all_to_all": ("pairwise", "best"),
}


@dataclass(frozen=True, kw_only=True)
class Price:
    """The time of a call: until its messages have followed one another, and for how long `link` is taken.

    `meets`: its messages share links with each other, and what congestion costs is left out.
    """

    latency_s: float
    busy_s: float
    link: str  # that calls of other axes use too
    meets: bool = False

    @property
    def seconds(self) -> float:
        """The whole time."""
        return self.latency_s + self.busy_s


Prices = Callable[[str, int], Price]  # of the calls of a group of ranks, by verb and payload in bytes


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a rank is connected by to the others of an axis. Without numbers: at no cost."""

    latency_s: float = 0.0  # of one message
    bytes_per_s: float = math.inf  # out of a rank

    def prices(self, size: int, axis: str = ALL) -> Prices:
        """Return what calls of `size` ranks cost at least; each axis has a link of its own."""
        return partial(self._price, size, axis)

    def _price(self, size: int, axis: str, verb: str, payload_bytes: int) -> Price:
        return Price(
            link=axis,
            latency_s=rounds(verb, size) * self.latency_s,
            busy_s=moved_bytes(verb, size, payload_bytes) / self.bytes_per_s,
        )


IDEAL = Link()


def rounds(verb: str, size: int, algorithm: Algorithm = "best") -> int:
    """Return how many messages a call needs one after another; by the best algorithm at least.

    What one rank knows can reach 2^k ranks in k messages, so log2 of the ranks, rounded up (Chan et al.,
    Collective communication: theory, practice, and experience, 2007, section 4, also of the algorithms).
    """
    if verb in BETWEEN_TWO:
        return 1
    halvings = math.ceil(math.log2(size))
    if algorithm in ("ring", "pairwise"):
        return (size - 1) * (2 if verb == "all_reduce" else 1)
    twice = algorithm == "tree" and verb in ("all_reduce", "all_gather", "reduce_scatter")
    return halvings * (2 if twice else 1)


def moved_bytes(verb: str, size: int, payload_bytes: float, algorithm: Algorithm = "best") -> float:
    """Return how many bytes the busiest rank sends or receives; by the best algorithm at least.

    `payload_bytes` is what this rank handed to the call: the whole array, or its part of what is gathered.
    """
    halvings, others = math.ceil(math.log2(size)), size - 1
    doubling, tree = algorithm == "recursive-doubling", algorithm == "tree"
    match verb:
        case "barrier" | "receive":
            times = 0.0
        case "all_reduce":
            times = halvings if doubling else 2 * halvings if tree else 2 * others / size
        case "reduce_scatter":
            times = others / size + (halvings if tree else 0)
        case "all_gather":
            times = others + (size * halvings if tree else 0)
        case "all_to_all" | "scatter":
            times = others / size
        case "gather":
            times = others
        case "broadcast" | "reduce":
            times = halvings if tree else 1
        case _:
            times = 1
    return float(payload_bytes * times)


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A part of a network: units of so many consecutive ranks, such as nodes.

    `link` connects to it each unit of the tier below, such as the socket of a node, or each rank in the
    lowest; `oversubscription` is by how much all of them together can send more than the tier can carry. A
    tier without a link costs what was measured.
    """

    name: str
    ranks: int
    link: Link | None = None
    oversubscription: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """A network as a file describes it, from the lowest tier up; `algorithms` by verb, if not the usual."""

    tiers: tuple[Tier, ...]
    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)
    origin: str = ""  # the file

    def levels(self, members: NDArray[np.int64], ranks: int) -> tuple[Level, ...]:
        """Return the tiers that a group of ranks crosses, of `ranks` ranks in groups like it.

        Raises PlanError where no tier holds them.
        """
        found, below, unit = [], len(members), 1
        for tier in self.tiers:
            units = len(np.unique(members // tier.ranks))
            if units < below:
                senders = min(unit, ranks)
                inside = len(members) // below
                found.append(Level(tier=tier, size=-(-below // units), inside=inside, senders=senders))
            below, unit = units, tier.ranks
            if below == 1:
                return tuple(found)
        raise PlanError(
            f"{self.origin}: tiers: the last, {self.tiers[-1].name}, holds {self.tiers[-1].ranks:,} ranks, "
            f"but ranks {members.min():,} to {members.max():,} communicate; add a tier of at "
            f"least {ranks:,} ranks"
        )

    def prices(self, members: NDArray[np.int64], ranks: int) -> Prices | None:
        """Return what calls of a group of ranks cost, of `ranks` ranks in groups like it.

        None where they cost what was measured; raises PlanError where no tier holds them.
        """
        levels = self.levels(members, ranks)
        return None if levels[-1].tier.link is None else partial(self._price, levels)

    def _price(self, levels: Sequence[Level], verb: str, payload_bytes: int) -> Price:
        algorithm = self.algorithms.get(verb) or OFFERED.get(verb, ("best",))[0]
        if algorithm == "hierarchical":
            steps = list(_hierarchical(levels, verb, payload_bytes))
        else:
            steps = [_flat(levels, verb, payload_bytes, algorithm)]
        latency_s, busy_s = (sum(part) for part in zip(*steps, strict=True))
        shared = any(level.senders > 1 and level.tier.link for level in levels)
        meets = shared and verb in _MEETING
        return Price(latency_s=latency_s, busy_s=busy_s, link=levels[-1].tier.name, meets=meets)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Tiers, or links by the axis of calls (or `all`), whose calls then take what is needed at least.

    Axes of which neither says anything cost what was measured.
    """

    tiers: Tiers | None = None
    links: Mapping[str, Link] = field(default_factory=dict)

    def prices(self, axis: str, members: NDArray[np.int64], ranks: int) -> Prices | None:
        """Return what calls of a group of ranks along an axis cost, of `ranks` ranks in groups like it.

        None where they cost what was measured; raises PlanError where a tier is missing.
        """
        name = axis if axis in self.links else ALL
        if name in self.links:
            return self.links[name].prices(len(members), axis)
        return self.tiers.prices(members, ranks) if self.tiers and len(members) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Level:
    """A tier that the ranks of a group cross.

    `size` units of the tier below exchange, in each of which the group has `inside` ranks of `senders`.
    """

    tier: Tier
    size: int
    inside: int
    senders: int

    def seconds_per_byte(self, flows: int) -> float:
        """Return the time of a byte, if each group sends `flows` at once over the link of a unit."""
        link, groups = self.tier.link, max(self.senders // self.inside, 1)
        return 0.0 if link is None else groups * flows * self.tier.oversubscription / link.bytes_per_s

    @property
    def latency_s(self) -> float:
        """The latency of a message."""
        return 0.0 if self.tier.link is None else self.tier.link.latency_s


def _flat(
    levels: Sequence[Level], verb: str, payload_bytes: int, algorithm: Algorithm
) -> tuple[float, float]:
    """Return latency and sending time of a call that knows nothing of tiers: of the slowest that it crosses.

    Around a ring or along a tree one rank of a group sends out of a unit, else all of them do.
    """
    size = math.prod(level.size for level in levels)
    busy = [0.0]
    for level in levels:
        flows = 1 if algorithm in ("ring", "tree") or verb in BETWEEN_TWO else level.inside
        moved = moved_bytes(verb, size, payload_bytes, algorithm)
        if verb == "all_to_all":
            moved *= (size - level.inside) / (size - 1)  # the others are inside of the unit
        busy.append(moved * level.seconds_per_byte(flows))
    return rounds(verb, size, algorithm) * max(level.latency_s for level in levels), max(busy)


def _hierarchical(levels: Sequence[Level], verb: str, payload_bytes: float) -> list[tuple[float, float]]:
    """Return latency and sending time of each part of a call: within every unit first, then between them.

    Within a unit the ranks share the sum out, so that all of them send parts of it between units.
    """
    level, others = levels[0], levels[1:]
    whole = payload_bytes
    if verb == "all_gather":  # what is gathered between units is larger within
        whole = payload_bytes * math.prod(each.size for each in others)
    within = [_ring(level, verb, whole)]
    if not others:
        return within
    if verb == "all_reduce":
        part = payload_bytes / level.size
        scattered, gathered = _ring(level, "reduce_scatter", payload_bytes), _ring(level, "all_gather", part)
        return [scattered, *_hierarchical(others, verb, part), gathered]
    part = payload_bytes / level.size if verb == "reduce_scatter" else payload_bytes
    return within + _hierarchical(others, verb, part)


def _ring(level: Level, verb: str, payload_bytes: float) -> tuple[float, float]:
    busy_s = moved_bytes(verb, level.size, payload_bytes, "ring") * level.seconds_per_byte(level.inside)
    return rounds(verb, level.size, "ring") * level.latency_s, busy_s


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """An accelerator, one to a rank, or a node whose `cores` ranks share; `origin` is its file.

    `peak` is in FLOP/s by number type, of which matrix products reach the share `products`; of `memory` there
    are so many bytes, of which `bandwidth` pass in a second. `price` is of an hour. `network` joins ranks.
    """

    name: str
    peak: Mapping[str, float]
    products: float
    memory: int
    bandwidth: float
    cores: int | None = None
    price: float | None = None
    network: Tiers | None = None
    origin: str = ""

    def share(self, threads: int) -> float:
        """Return which part of the machine a rank has."""
        return threads / self.cores if self.cores else 1.0

    def kernel_s(self, flops: float, moved_bytes: float, dtype: str, threads: int) -> float:
        """Return the seconds of a kernel: those of its FLOPs as products, or of its bytes, the longer."""
        computing_s = flops / (self.peak[dtype] * self.products)
        return max(computing_s, moved_bytes / self.bandwidth) / self.share(threads)
