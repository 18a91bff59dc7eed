"""Networks and machines as people write them: links by axis in one line, files of tiers, data sheets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from pscale.config.axes import DEGREES, HALVES
from pscale.config.choices import Group, NonEmpty, Number
from pscale.config.metrics import measured
from pscale.errors import SuiteError, UsageError
from pscale.simulator.network import ALL, IDEAL, OFFERED, DataSheet, Link, Network, Tier, Tiers
from pscale.suite.document import LONGEST_TEXT, read_document, read_value
from pscale.suite.problems import Problem, nearest, suite_error, validated

_EXAMPLE = "such as 'dp: {latency: 5us, bandwidth: 10GB/s}' or 'all: ideal'"
_TIER = "{name: node, ranks: 8, latency: 2us, bandwidth: 10GB/s}"


def read_network(text: str) -> Network:
    """Return the network that a line describes by axis (or `all`), or the file of that name by tiers.

    Raises UsageError or SuiteError with what was expected.
    """
    if Path(text).suffix in (".yaml", ".yml"):
        return Network(tiers=load_network(Path(text)))
    try:
        if len(text) > LONGEST_TEXT:
            raise ValueError(f"a text of {len(text)} characters; at most {LONGEST_TEXT} are allowed")
        document = read_value(text, "the network")
        if not isinstance(document, dict) or not document:
            raise ValueError("not a network")
        return Network(links={_axis(name): _link(value) for name, value in document.items()})
    except (SuiteError, ValueError) as error:
        raise UsageError(
            f"--what-if '{text}': {error}. Expected links by axis, {_EXAMPLE}, or a file of tiers"
        ) from error


def _axis(name: Any) -> str:
    parts = str(name).split("+")
    if name != ALL and not set(parts) <= {*DEGREES, *itertools.chain(*HALVES.values())}:
        raise ValueError(
            f"there is no axis '{name}': axes are {', '.join(DEGREES)}, products such as dp+cp, and {ALL}"
        )
    return str(name)


def _link(value: Any) -> Link:
    if value == "ideal":
        return IDEAL
    if not isinstance(value, dict) or not value or not set(value) <= {"latency", "bandwidth"}:
        raise ValueError(f"a link has latency and bandwidth, or is ideal, not '{value}'")
    latency, bandwidth = value.get("latency", "0s"), value.get("bandwidth", "inf")
    return Link(latency_s=_latency_s(latency), bytes_per_s=_bytes_per_s(bandwidth))


def _latency_s(value: Any) -> float:
    return measured(value, "s", "a latency such as 5us")


def _rate(unit: str, expected: str, value: Any) -> float:
    found = measured(value, unit, expected)
    if not found > 0:
        raise ValueError(f"expected {expected}, which is above 0, got {value}")
    return found


_bytes_per_s = partial(_rate, "B/s", "a bandwidth such as 10GB/s or 100Gbit/s")
_flops_per_s = partial(_rate, "FLOP/s", "a rate such as 312TFLOP/s")


def load_network(path: Path) -> Tiers:
    """Read a network's file; raises SuiteError with file, line and field for what cannot be."""
    document = read_document(path)
    given = validated(document.values, document.places, NetworkFile)
    if problems := list(_problems(given.tiers, given.algorithms)):
        raise suite_error(problems, document.places)
    return _tiers(given, path)


def _tiers(given: NetworkFile, path: Path) -> Tiers:
    algorithms: Any = given.algorithms
    tiers = [
        Tier(
            name=each.name,
            ranks=each.ranks,
            link=None if each.latency is None else Link(latency_s=each.latency, bytes_per_s=each.bandwidth),
            oversubscription=each.oversubscription or 1.0,
        )
        for each in given.tiers
    ]
    return Tiers(tiers=tuple(tiers), algorithms=algorithms, origin=str(path))


def load_data_sheet(path: Path) -> DataSheet:
    """Read a machine's file; raises SuiteError with file, line and field for what cannot be."""
    document = read_document(path)
    given = validated(document.values, document.places, DataSheetFile)
    network, peak = given.network, {dtype: rate for dtype, rate in vars(given.peak).items() if rate}
    problems = list(_problems(network.tiers, network.algorithms, linked=True)) if network else []
    problems = [replace(each, path=("network", *each.path)) for each in problems]
    if not peak:
        problems.append(Problem(("peak",), "expected FLOP/s by number type, such as {bf16: 312TFLOP/s}"))
    if problems:
        raise suite_error(problems, document.places)
    same = {name: getattr(given, name) for name in ("name", "products", "bandwidth", "cores", "price")}
    tiers = _tiers(network, path) if network else None
    return DataSheet(**same, peak=peak, memory=given.memory_bytes, network=tiers, origin=str(path))


def _problems(
    tiers: Sequence[TierEntry], algorithms: Mapping[str, str], *, linked: bool = False
) -> Iterator[Problem]:
    """Yield what is wrong between tiers, with algorithms, and, if they have to be `linked`, without links."""
    if not tiers:
        yield Problem(("tiers",), f"expected a list of tiers, the lowest first, such as {_TIER}")
    for number, (below, tier) in enumerate(pairwise(each.ranks for each in tiers), start=1):
        if tier % below or tier == below:
            message = f"{tier} is not a multiple of the {below} ranks of the tier below"
            yield Problem(("tiers", number, "ranks"), message)
    for number, entry in enumerate(tiers):
        if linked and entry.latency is None:
            message = "has no latency and bandwidth, and nothing was measured that could stand for them"
            yield Problem(("tiers", number), message)
    for verb, name in algorithms.items():
        if verb not in OFFERED:
            yield Problem(("algorithms", verb), f"no such call; {nearest(verb, OFFERED)}")
        elif name not in OFFERED[verb]:
            yield Problem(("algorithms", verb), f"no such algorithm; {nearest(name, OFFERED[verb])}")
    if "hierarchical" in algorithms.values() and tiers and tiers[0].bandwidth is None:
        yield Problem(("algorithms",), "hierarchical needs latency and bandwidth of every tier")


@dataclass(frozen=True, kw_only=True)
class TierEntry(Group):
    """A tier as its file has it; one without a link costs what was measured."""

    name: NonEmpty
    ranks: Annotated[int, Number(ge=1, computed=False)]  # in one such unit
    latency: Annotated[Any, BeforeValidator(_latency_s)] = None
    bandwidth: Annotated[Any, BeforeValidator(_bytes_per_s)] = None
    oversubscription: Annotated[float, Number(ge=1, computed=False)] | None = None

    def check_fields(self) -> None:
        """Raise ValueError for half a link."""
        lacking = [name for name in ("latency", "bandwidth") if getattr(self, name) is None]
        if len(lacking) == 1:
            raise ValueError(f"'{lacking[0]}' is missing; a tier has latency and bandwidth, or neither")
        if lacking and self.oversubscription is not None:
            raise ValueError("oversubscription needs latency and bandwidth, without which nothing is shared")


@dataclass(frozen=True, kw_only=True)
class PeakEntry(Group):
    """FLOP/s by number type."""

    bf16: Annotated[Any, BeforeValidator(_flops_per_s)] = None
    fp16: Annotated[Any, BeforeValidator(_flops_per_s)] = None
    float32: Annotated[Any, BeforeValidator(_flops_per_s)] = None
    float64: Annotated[Any, BeforeValidator(_flops_per_s)] = None


@dataclass(frozen=True, kw_only=True)
class NetworkFile(Group):
    """A network as its file has it."""

    tiers: tuple[TierEntry, ...]
    algorithms: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataSheetFile(Group):
    """A machine as its file has it."""

    name: NonEmpty
    peak: PeakEntry
    products: Annotated[float, Number(gt=0, le=1, unit="share", computed=False)]
    memory_bytes: Annotated[int, Number(ge=1, unit="bytes", computed=False)]
    bandwidth: Annotated[Any, BeforeValidator(_bytes_per_s)]
    cores: Annotated[int, Number(ge=1, computed=False)] | None = None
    price: Annotated[float, Number(ge=0, computed=False)] | None = None
    network: NetworkFile | None = None
