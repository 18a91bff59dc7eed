"""Networks as people write them: links by axis in one line, or a file of tiers and algorithms."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import yaml

from pscale.config.axes import DEGREES, HALVES
from pscale.errors import SuiteError, UsageError
from pscale.simulator.network import ALL, IDEAL, OFFERED, Algorithm, Link, Network, Tier, Tiers
from pscale.suite.document import LONGEST_TEXT, Document, Path_, dotted, read_document
from pscale.suite.problems import nearest, place_of
from pscale.suite.quantities import measured

_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_RATES = {
    **{f"{prefix}B/s": 1e3**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB/s": 2.0 ** (10 * power) for power, prefix in enumerate("KMG", start=1)},
    **{f"{prefix}bit/s": 1e3**power / 8 for power, prefix in enumerate("MGT", start=2)},
}
_EXAMPLE = "such as 'dp: {latency: 5us, bandwidth: 10GB/s}' or 'all: ideal'"
_TIER = "{name: node, ranks: 8, latency: 2us, bandwidth: 10GB/s}"
_OF_TIER = ("name", "ranks", "latency", "bandwidth", "oversubscription")


def read_network(text: str) -> Network:
    """Return the network that a line describes by axis (or `all`), or the file of that name by tiers.

    Raises UsageError or SuiteError with what was expected.
    """
    if Path(text).suffix in (".yaml", ".yml"):
        return Network(tiers=load_network(Path(text)))
    try:
        if len(text) > LONGEST_TEXT:
            raise ValueError(f"a text of {len(text)} characters; at most {LONGEST_TEXT} are allowed")
        document = yaml.safe_load(text)
        if not isinstance(document, dict) or not document:
            raise ValueError("not a network")
        return Network(links={_axis(name): _link(value) for name, value in document.items()})
    except (yaml.YAMLError, ValueError) as error:
        why = "it is not YAML" if isinstance(error, yaml.YAMLError) else str(error)
        expected = f"a file of tiers, network.yaml, or axes with their links, {_EXAMPLE}"
        raise UsageError(f"--what-if '{text}': {why}; expected {expected}") from error


def _axis(name: Any) -> str:
    parts = str(name).split("+")
    if name != ALL and not set(parts) <= {*DEGREES, *itertools.chain(*HALVES.values())}:
        raise ValueError(
            f"'{name}' is no axis; there are {', '.join(DEGREES)}, products such as dp+cp, and {ALL}"
        )
    return str(name)


def _link(value: Any) -> Link:
    if value == "ideal":
        return IDEAL
    if not isinstance(value, dict) or not value or not set(value) <= {"latency", "bandwidth"}:
        raise ValueError(f"a link is latency and bandwidth, or ideal, not '{value}'")
    return Link(
        latency_s=_latency_s(value.get("latency", "0s")), bytes_per_s=_rate(value.get("bandwidth", "inf"))
    )


def _latency_s(value: Any) -> float:
    return measured(value, _TIMES, "a latency such as 5us")


def _rate(value: Any) -> float:
    found = measured(value, _RATES, "a bandwidth such as 10GB/s or 100Gbit/s")
    if not found > 0:
        raise ValueError("a bandwidth has to be above 0")
    return found


def load_network(path: Path) -> Tiers:
    """Read a network's file; raises SuiteError with file, line and field for what cannot be."""
    document = read_document(path)
    reader = _File(path, document)
    reader.only((), document.values, ("tiers", "algorithms"))
    tiers = document.values.get("tiers")
    if not isinstance(tiers, list) or not tiers:
        raise reader.error(("tiers",), f"expected a list of tiers, the lowest first, such as {_TIER}")
    return Tiers(tiers=reader.tiers(tiers), algorithms=reader.algorithms(), origin=str(path))


class _File:
    """A network's file, with the line of every field."""

    def __init__(self, path: Path, document: Document):
        self._path, self._document = path, document

    def error(self, field: Path_, message: str) -> SuiteError:
        """Return what is wrong with a field."""
        place = place_of(field, self._document.places)
        return SuiteError(message, file=self._path, line=place.line, field=dotted(field))

    def only(self, within: Path_, group: dict[str, Any], known: tuple[str, ...]) -> None:
        """Refuse fields that there are not."""
        for name in group:
            if name not in known:
                raise self.error((*within, name), f"no such field; {nearest(name, known)}")

    def tiers(self, tiers: list[Any]) -> tuple[Tier, ...]:
        """Return the tiers, each a whole number of the one below."""
        found: list[Tier] = []
        for number, values in enumerate(tiers):
            at: Path_ = ("tiers", number)
            if not isinstance(values, dict):
                raise self.error(at, f"expected a tier such as {_TIER}")
            self.only(at, values, _OF_TIER)
            tier = self._tier(at, values)
            below = found[-1].ranks if found else 1
            if tier.ranks % below or (found and tier.ranks == below):
                message = f"{tier.ranks} is no multiple of the {below} ranks of the tier below"
                raise self.error((*at, "ranks"), message)
            found.append(tier)
        return tuple(found)

    def _tier(self, at: Path_, values: dict[str, Any]) -> Tier:
        ranks, name = values.get("ranks"), values.get("name")
        if not isinstance(name, str) or not name:
            raise self.error((*at, "name"), "expected a name such as node")
        if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
            raise self.error((*at, "ranks"), "expected how many ranks are in one such unit, such as 8")
        times = values.get("oversubscription", 1)
        if not isinstance(times, int | float) or isinstance(times, bool) or not 1 <= times < float("inf"):
            raise self.error((*at, "oversubscription"), "expected a number of at least 1")
        link = None
        if "latency" in values or "bandwidth" in values:
            link = Link(
                latency_s=self._quantity(at, values, "latency", _latency_s),
                bytes_per_s=self._quantity(at, values, "bandwidth", _rate),
            )
        elif "oversubscription" in values:
            message = "needs latency and bandwidth; a tier without them costs what was measured"
            raise self.error((*at, "oversubscription"), message)
        return Tier(name=name, ranks=ranks, link=link, oversubscription=float(times))

    def _quantity(self, at: Path_, values: dict[str, Any], name: str, read: Any) -> float:
        if name not in values:
            raise self.error(at, f"'{name}' is missing; a tier has latency and bandwidth, or neither")
        try:
            return float(read(values[name]))
        except ValueError as error:
            raise self.error((*at, name), str(error)) from None

    def algorithms(self) -> dict[str, Algorithm]:
        """Return the algorithms by verb."""
        given = self._document.values.get("algorithms") or {}
        if not isinstance(given, dict):
            raise self.error(
                ("algorithms",), "expected verbs with their algorithm, such as {all_reduce: ring}"
            )
        self.only(("algorithms",), given, tuple(OFFERED))
        for verb, name in given.items():
            if name not in OFFERED[verb]:
                raise self.error(
                    ("algorithms", verb), f"no such algorithm; {nearest(str(name), OFFERED[verb])}"
                )
        if "hierarchical" in given.values() and not self._document.values["tiers"][0].get("bandwidth"):
            message = "hierarchical needs latency and bandwidth of every tier"
            raise self.error(("algorithms",), message)
        return dict(given)
