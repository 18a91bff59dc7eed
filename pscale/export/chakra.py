"""Chakra execution traces, which ASTRA-sim and the other tools of MLCommons' Chakra read.

A file for each rank, NAME.RANK.et: protobuf messages, each after its length as a varint: GlobalMetadata, then
a Node for each activity; numbers of fields and of enumerations as in schema/protobuf/et_def.proto of
https://github.com/mlcommons/chakra. NAME.groups.json has the ranks of each group, as ASTRA-sim's
--comm-group-configuration reads it. A node depends on the one before, and on the started calls waited for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pscale.export.activities import Activity, Launch
from pscale.runs import atomic_files
from pscale.runs.schema import BETWEEN_TWO

_VERSION = "0.0.4"
_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7  # NodeType
_COLLECTIVES = {  # CollectiveCommType
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}
_BOOL, _INT32, _INT64, _TEXT = 27, 7, 9, 29  # fields of AttributeProto's value
_ID, _NAME, _TYPE, _DEPENDS, _START, _DURATION, _ATTRIBUTE = 1, 2, 3, 5, 6, 7, 10  # fields of Node

Groups = Mapping[tuple[str, int], int]  # their numbers, from 1


def write_chakra(launch: Launch, folder: Path, name: str) -> list[Path]:
    """Write the trace of a launch into a folder; return the files."""
    groups = {key: number for number, key in enumerate(sorted(launch.groups), 1)}
    origin = min(own[0].enter for own in launch.ranks.values() if own)
    written = []
    for rank, own in launch.ranks.items():
        path = folder / f"{name}.{rank}.et"
        with atomic_files.create(path) as file:
            file.writelines(_framed(each) for each in _messages(launch, groups, rank, own, origin))
        written.append(path)
    path = folder / f"{name}.groups.json"
    names = {str(groups[key]): list(launch.groups[key]) for key in groups}
    atomic_files.write(path, json.dumps(names, indent=1))
    return [*written, path]


def _messages(
    launch: Launch, groups: Groups, rank: int, own: Sequence[Activity], origin: int
) -> Iterator[bytes]:
    yield _text(1, _VERSION)
    last: list[int] = []  # what the next node depends on
    started: dict[int, int] = {}  # nodes by request
    for number, each in enumerate(own, 1):
        if each.kind == "wait":
            last += [node for node in (started.pop(each.request, 0),) if node]
        elif each.kind != "test":
            yield _node(number, each, last, origin) + b"".join(_attributes(launch, groups, rank, each))
            if each.kind == "start":
                started[each.request] = number
            else:
                last = [number]


def _node(number: int, activity: Activity, depends: Sequence[int], origin: int) -> bytes:
    """Encode a node without attributes; whole microseconds are differences of rounded times: no drift."""
    start, stop = (round((at - origin) / 1000) for at in (activity.enter, activity.leave))
    kind = {"send": _SEND, "receive": _RECEIVE}.get(activity.verb, _COLLECTIVE)
    return b"".join(
        (
            _number(_ID, number),
            _text(_NAME, activity.name),
            _number(_TYPE, _COMPUTE if activity.kind == "compute" else kind),
            _bytes(_DEPENDS, b"".join(map(_varint, depends))) if depends else b"",
            _number(_START, start),
            _number(_DURATION, stop - start),
        )
    )


def _attributes(launch: Launch, groups: Groups, rank: int, activity: Activity) -> Iterator[bytes]:
    yield _attribute("is_cpu_op", _number(_BOOL, int(activity.kind == "compute")))
    if activity.kind == "compute":
        return
    yield _attribute("comm_size", _number(_INT64, activity.bytes))
    if activity.verb in BETWEEN_TWO:
        ends = (rank, activity.partner) if activity.verb == "send" else (activity.partner, rank)
        for name, end in zip(("comm_src", "comm_dst"), ends, strict=True):
            yield _attribute(name, _number(_INT32, end))
        return
    assert activity.id is not None
    yield _attribute("comm_type", _number(_INT64, _COLLECTIVES[activity.verb]))
    yield _attribute("pg_name", _text(_TEXT, str(groups[activity.id.axis, activity.id.group])))
    if activity.id in launch.roots:
        yield _attribute("root_rank", _number(_INT32, launch.roots[activity.id]))


def _attribute(name: str, value: bytes) -> bytes:
    return _bytes(_ATTRIBUTE, _text(1, name) + value)


def _framed(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Encode a number that is not negative, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
