"""Readers of the formats of other tools, written from their definitions, and an engine without a network.

Each returns the nodes of every rank by number; `ideal_ns` runs them where exchanges cost nothing.
"""

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from graphlib import TopologicalSorter

FROM_ROOT, TO_ROOT = ("broadcast", "scatter"), ("gather", "reduce")


@dataclass
class Node:
    """`kind` is compute, send, receive, or the verb of a call among the ranks of `group`."""

    kind: str
    needs: list
    duration_ns: int = 0
    bytes: int = 0
    partner: int = -1
    tag: int = 0
    group: tuple = ()
    root: int = -1


# Chakra: schema/protobuf/et_def.proto of MLCommons; the wire format of protocol buffers.
TYPES = {4: "compute", 5: "send", 6: "receive", 7: "collective"}
VERBS = "all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter"
VALUES = {7: int, 9: int, 27: bool, 29: bytes.decode}  # int32, int64, bool, string of AttributeProto


def varint(data, at):
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """Return the values of every field of a message."""
    found, at = defaultdict(list), 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        assert key & 7 in (0, 2), "a wire type that the schema has no use for here"
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found[key >> 3].append(value)
    assert at == len(data), "a message ends within its length"
    return found


def packed(values):
    return [number for value in values for number in _numbers(value)]


def _numbers(value):
    at = 0
    while at < len(value):
        number, at = varint(value, at)
        yield number


def read_chakra(files):
    """Return the nodes of each rank; durations are whole microseconds."""
    *traces, groups = files
    members = {name: tuple(ranks) for name, ranks in json.loads(groups.read_text()).items()}
    return {int(path.suffixes[-2][1:]): dict(_chakra_nodes(path.read_bytes(), members)) for path in traces}


def _chakra_nodes(data, groups):
    size, at = varint(data, 0)
    assert fields(data[at : at + size])[1], "the first message is GlobalMetadata, with a version"
    at += size
    while at < len(data):
        size, at = varint(data, at)
        message, at = fields(data[at : at + size]), at + size
        about = {}
        for attribute in map(fields, message[10]):
            ((number, (value,)),) = ((key, value) for key, value in attribute.items() if key != 1)
            about[attribute[1][0].decode()] = VALUES[number](value)
        kind = TYPES[message[3][0]]
        assert about["is_cpu_op"] == (kind == "compute"), "ASTRA-sim communicates from no CPU"
        yield (
            message[1][0],
            Node(
                kind=(*VERBS.split(), "", "barrier")[about["comm_type"]] if kind == "collective" else kind,
                needs=packed(message[5]),
                duration_ns=1000 * message[7][0],
                bytes=about.get("comm_size", 0),
                partner=about.get({"send": "comm_dst", "receive": "comm_src"}.get(kind), -1),
                group=groups.get(about.get("pg_name"), ()),
                root=about.get("root_rank", -1),
            ),
        )


# GOAL: the grammar of txt2bin.re of LogGOPSim.
HEAD = re.compile(r"num_ranks (\d+)")
RANK = re.compile(r"rank (\d+) \{")
OPERATION = re.compile(r"([a-zA-Z]\w*): (?:calc (\d+)|(send|recv) (\d+)b (to|from) (\d+) tag (\d+))")
REQUIRES = re.compile(r"([a-zA-Z]\w*) requires ([a-zA-Z]\w*)")


def read_goal(path):
    """Return the nodes of each rank."""
    first, *lines = path.read_text().splitlines()
    ranks, nodes = {}, None
    for line in filter(None, lines):
        if begins := RANK.fullmatch(line):
            nodes = ranks.setdefault(int(begins[1]), {})
        elif requires := REQUIRES.fullmatch(line):
            assert requires[2] in nodes
            nodes[requires[1]].needs.append(requires[2])
        elif line != "}":
            label, length, way, size, preposition, partner, tag = OPERATION.fullmatch(line).groups()
            assert label not in nodes
            assert (way, preposition) in ((None, None), ("send", "to"), ("recv", "from"))
            kind = {"send": "send", "recv": "receive"}.get(way, "compute")
            numbers = {} if length else {"bytes": int(size), "partner": int(partner), "tag": int(tag)}
            nodes[label] = Node(kind, [], duration_ns=int(length or 0), **numbers)
    assert len(ranks) == int(HEAD.fullmatch(first)[1])
    return ranks


def ideal_ns(ranks):
    """Return when the last rank ends if what is exchanged arrives as it is sent; all must be matched.

    A call among ranks ends when all of them have begun it; with a root, who depends on somebody waits.
    """
    order, partners, numbers = {}, {}, Counter()
    meetings = defaultdict(dict)
    for rank, nodes in ranks.items():
        for name, node in nodes.items():
            order[rank, name] = [(rank, other) for other in node.needs]
            if node.kind == "compute":
                continue
            ends = {"send": (rank, node.partner), "receive": (node.partner, rank)}.get(node.kind)
            where = (*ends, node.tag) if ends else node.group
            numbers[rank, node.kind if ends else "", where] += 1
            meeting = (where, numbers[rank, node.kind if ends else "", where])
            meetings[meeting][rank] = (rank, name)
            partners[rank, name] = meeting
    begun = {}  # a point of its own before each node that others meet
    for at, meeting in partners.items():
        begun[at] = ("begin", *at)
        order[begun[at]] = order[at]
        order[at] = [begun[at]]
        node, met = ranks[at[0]][at[1]], meetings[meeting]
        if node.kind in ("send", "receive"):
            assert len(met) == 2, f"rank {at[0]}: a {node.kind} without its other end: {meeting}"
            assert len({ranks[rank][name].bytes for rank, name in met.values()}) == 1
            depends = [
                each
                for each in met.values()
                if ranks[each[0]][each[1]].kind == "send" and node.kind == "receive"
            ]
        else:
            assert set(met) == set(node.group), f"rank {at[0]}: {node.kind} without all of {node.group}"
            assert len({ranks[rank][name].kind for rank, name in met.values()}) == 1
            depends = [
                each
                for each in met.values()
                if (node.kind not in FROM_ROOT or each[0] == node.root)
                and (node.kind not in TO_ROOT or at[0] == node.root)
            ]
        order[at] += [("begin", *each) for each in depends]
    ends = {}
    for at in TopologicalSorter(order).static_order():
        own = 0 if at in partners or at[0] == "begin" else ranks[at[0]][at[1]].duration_ns
        ends[at] = own + max((ends[other] for other in order[at]), default=0)
    return max(ends.values())
