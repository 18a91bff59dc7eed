"""GOAL schedules, the text that LogGOPSim (its txt2bin) and ATLAHS read.

The grammar is that of txt2bin.re of https://github.com/spcl/LogGOPSim: `calc` in ns, `send` and `recv` in
bytes, `a requires b`: a begins when b has ended. GOAL has messages alone, so calls among ranks are spelt out:
short all-reduces reach twice as many ranks in every round, what is longer goes around a ring, calls with a
root are direct.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pscale.export.activities import Activity, CallId, Launch
from pscale.runs import atomic_files
from pscale.runs.schema import BETWEEN_TWO, TO_ROOT

_SHORT_BYTES = 2048  # up to which MPICH does not cut an all-reduce into parts


class Message(NamedTuple):
    """A message of a call between two members of its group, by their places in it."""

    source: int
    to: int
    bytes: int


Rounds = tuple[tuple[Message, ...], ...]


def write_goal(launch: Launch, folder: Path, name: str) -> list[Path]:
    """Write the schedule of a launch into a folder; return the file."""
    path = folder / f"{name}.goal"
    tags = _Tags()
    with io.TextIOWrapper(atomic_files.create(path), encoding="ascii") as file:
        file.write(f"num_ranks {len(launch.ranks)}\n")
        for rank, own in sorted(launch.ranks.items()):
            file.write(f"\nrank {rank} {{\n")
            file.writelines(f"{line}\n" for line in _Schedule(launch, rank, tags).lines(own))
            file.write("}\n")
    return [path]


class _Tags(dict[object, int]):
    """A number for each call among ranks, and for each pair that exchanges messages on an axis."""

    def __missing__(self, key: object) -> int:
        self[key] = len(self)
        return self[key]


class _Schedule:
    """The lines of one rank."""

    def __init__(self, launch: Launch, rank: int, tags: _Tags):
        self._launch, self._rank, self._tags = launch, rank, tags
        self._labels = 0
        self._last: list[str] = []  # what the next operation requires
        self._started: dict[int, list[str]] = {}  # by request: what has to end

    def lines(self, activities: Sequence[Activity]) -> Iterator[str]:
        """Yield operations, each with what it requires."""
        for each in activities:
            if each.kind == "compute":
                yield from self._operation(f"calc {each.length}", self._last)
                self._last = [self._label]
            elif each.kind == "wait":
                self._last = [*self._last, *self._started.pop(each.request, [])]
            elif each.kind != "test":
                ends: list[str] = []
                yield from self._message(each, ends) if each.verb in BETWEEN_TWO else self._call(each, ends)
                if each.kind == "start":
                    self._started[each.request] = ends
                else:
                    self._last = ends or self._last

    @property
    def _label(self) -> str:
        return f"l{self._labels}"

    def _operation(self, text: str, requires: Sequence[str]) -> Iterator[str]:
        self._labels += 1
        yield f"{self._label}: {text}"
        for other in requires:
            yield f"{self._label} requires {other}"

    def _message(self, activity: Activity, ends: list[str]) -> Iterator[str]:
        sends, pair = activity.verb == "send", (self._rank, activity.partner)
        tag = self._tags[activity.axis, *(pair if sends else pair[::-1])]
        text = f"send {activity.bytes}b to" if sends else f"recv {activity.bytes}b from"
        yield from self._operation(f"{text} {activity.partner} tag {tag}", self._last)
        ends.append(self._label)

    def _call(self, activity: Activity, ends: list[str]) -> Iterator[str]:
        """Yield this rank's part of a call: a round begins when the rank's last one has ended."""
        assert activity.id is not None
        members = self._launch.groups[activity.id.axis, activity.id.group]
        own, before = members.index(self._rank), self._last
        tag = self._tags[activity.id]
        for messages in _of_call(self._launch, activity.verb, activity.id):
            labels = []
            for message in messages:
                if own == message.source:
                    text = f"send {message.bytes}b to {members[message.to]} tag {tag}"
                elif own == message.to:
                    text = f"recv {message.bytes}b from {members[message.source]} tag {tag}"
                else:
                    continue
                yield from self._operation(text, before)
                labels.append(self._label)
            before = labels or before
        ends += before


def _of_call(launch: Launch, verb: str, id_: CallId) -> Rounds:
    members = launch.groups[id_.axis, id_.group]
    handed = tuple(launch.bytes.get((id_, rank), 0) for rank in members)
    root = members.index(launch.roots[id_]) if id_ in launch.roots else 0
    return rounds(verb, handed, root)


@lru_cache(maxsize=4096)
def rounds(verb: str, handed: tuple[int, ...], root: int = 0) -> Rounds:
    """Return the messages of a call among as many ranks as there are numbers of bytes handed to it."""
    size, most = len(handed), max(handed)
    others = [place for place in range(size) if place != root]
    match verb:
        case "all_reduce" | "barrier" if most <= _SHORT_BYTES:
            return _doubling(size, most)
        case "all_reduce" | "reduce_scatter":
            parts = _parts(most, size)
            return _ring(parts) + (_ring(parts[1:] + parts[:1]) if verb == "all_reduce" else ())
        case "all_gather":
            return _ring(handed)
        case "all_to_all":
            return tuple(_shifted(handed, distance) for distance in range(1, size))
    if verb in TO_ROOT:
        return (tuple(Message(source, root, handed[source]) for source in others),)
    parts = _parts(handed[root], size) if verb == "scatter" else (handed[root],) * size
    return (tuple(Message(root, to, parts[to]) for to in others),)


def _shifted(handed: Sequence[int], distance: int) -> tuple[Message, ...]:
    """Every rank sends the part of the one that is so far away."""
    size = len(handed)
    pairs = ((source, (source + distance) % size) for source in range(size))
    return tuple(Message(source, to, _parts(handed[source], size)[to]) for source, to in pairs)


def _doubling(size: int, bytes_: int) -> Rounds:
    """Every round each rank tells one that is twice as far away: all know of all after log2 of the ranks."""
    return tuple(
        tuple(Message(source, (source + (1 << power)) % size, bytes_) for source in range(size))
        for power in range((size - 1).bit_length())
    )


def _ring(parts: Sequence[int]) -> Rounds:
    """Pass every part on to all but one: in round k a rank sends the part that began k ranks before it."""
    size = len(parts)
    return tuple(
        tuple(Message(source, (source + 1) % size, parts[(source - number) % size]) for source in range(size))
        for number in range(size - 1)
    )


def _parts(bytes_: int, count: int) -> tuple[int, ...]:
    return tuple(bytes_ * (place + 1) // count - bytes_ * place // count for place in range(count))
