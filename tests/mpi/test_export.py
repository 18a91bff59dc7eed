"""Traced runs as other tools read them, beside what the tables say.

Readers of their formats are written from the definitions; each returns the nodes of every rank by number.
`ideal_ns` runs nodes where exchanges cost nothing.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import otf2
import pandas as pd
import pytest

from pscale.analysis.frames import load
from pscale.analysis.network import launch_of, wall_ns
from pscale.analysis.timeline import launch_events, traced
from pscale.cli.options import Export
from pscale.cli.trace import export
from pscale.errors import PscaleError
from pscale.runs.schema import AMONG_ALL, FROM_ROOT, TO_ROOT
from pscale.simulator.network import IDEAL, Network, moved_bytes

pytestmark = pytest.mark.slow

COLLECTIVES = (*AMONG_ALL, *FROM_ROOT, *TO_ROOT)
BEGUN_BY = {  # events of OTF2
    "Leave": "Enter",
    "MpiCollectiveEnd": "MpiCollectiveBegin",
    "MpiIsendComplete": "MpiIsend",
    "MpiIrecv": "MpiIrecvRequest",
    "NonBlockingCollectiveComplete": "NonBlockingCollectiveRequest",
}
LABELS = ("gather-broadcast", "zero 3", "cp 4", "zero-bubble", "interleaved")


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


@pytest.fixture(scope="module")
def launches(plans):
    """The traced launches of each case, with their events as stored."""
    run = load(plans.folder)
    stored = pd.DataFrame(plans.rows("events")).groupby("case")
    found = [(launch, launch_events(run, launch), stored.get_group(launch.case)) for launch in traced(run)]
    assert len(found) == len(LABELS)
    return found


@pytest.fixture
def exported(plans, tmp_path, capsys):
    """What exports a run into a folder of its own and returns the files that it names."""

    def export_(as_format, case=None):
        folder = tmp_path / f"{as_format} {case}"
        export(Export(path=plans.folder, as_format=as_format, case=case, output=folder))
        *files, hint = capsys.readouterr().out.splitlines()
        assert hint.startswith("read by: ")
        assert str(files[0]) in hint or as_format == "chakra"
        return [Path(name) for name in files]

    return export_


def calls_of(events):
    """Return how often each rank made each call, of stored rows; what is received has the bytes sent."""
    made = events[events["kind"].isin(["call", "root", "posted"])]
    return {
        rank: Counter(zip(rows["verb"], rows["bytes"].where(rows["verb"] != "receive", -1), strict=True))
        for rank, rows in made.groupby("rank")
    }


def ideal_of_simulator_ns(table, stored):
    origin = table.loc[table["kind"] == "step", "enter"].min()
    return wall_ns(launch_of(stored), Network(links={"all": IDEAL})) - origin


def test_chakra_has_every_call_with_its_bytes_and_group_and_takes_as_long_as_the_simulator_says(
    exported, launches
):
    for launch, table, stored in launches:
        ranks = read_chakra(exported("chakra", launch.case))
        groups = {}
        for (axis, first), rows in stored[stored["axis"] != ""].groupby(["axis", "group"]):
            groups[axis, first] = tuple(sorted(rows["rank"].unique()))
        for rank, nodes in ranks.items():
            found = Counter(
                (node.kind, -1 if node.kind == "receive" else node.bytes)
                for node in nodes.values()
                if node.kind != "compute"
            )
            assert found == calls_of(stored)[rank], f"{launch.label}, rank {rank}"
            own = stored[(stored["rank"] == rank) & stored["verb"].isin(COLLECTIVES)]
            own = own[own["kind"].isin(["call", "root", "posted"])]
            among = Counter(groups[key] for key in zip(own["axis"], own["group"], strict=True))
            assert Counter(node.group for node in nodes.values() if node.group) == among
            assert all(need < number for number, node in nodes.items() for need in node.needs)
        most = max(map(len, ranks.values()))
        assert ideal_ns(ranks) == pytest.approx(ideal_of_simulator_ns(table, stored), abs=1000 * most)


def test_goal_sends_what_calls_have_to_move_and_takes_as_long_as_the_simulator_says(exported, launches):
    for launch, table, stored in launches:
        (file,) = exported("goal", launch.case)
        ranks = read_goal(file)
        sent = sum(node.bytes for nodes in ranks.values() for node in nodes.values() if node.kind == "send")
        made = stored[stored["kind"].isin(["call", "root", "posted"])]
        sizes = stored[stored["axis"] != ""].groupby(["axis", "group"])["rank"].nunique()
        expected = 0.0
        for row in made.itertuples():
            size, short = sizes[row.axis, row.group], row.verb == "all_reduce" and row.bytes <= 2048
            rooted = {"gather": row.kind != "root", "broadcast": (row.kind == "root") * (size - 1)}
            if short:
                expected += row.bytes * int(size - 1).bit_length()
            elif row.verb in rooted:
                expected += row.bytes * rooted[row.verb]
            else:
                expected += moved_bytes(row.verb, size, row.bytes)
        assert sent == pytest.approx(expected, abs=len(made)), launch.label  # parts of a byte
        ideal = ideal_of_simulator_ns(table, stored)
        assert ideal_ns(ranks) == pytest.approx(ideal, abs=1000), launch.label


def test_otf2_has_every_call_in_order_and_both_ends_of_whatever_begins(exported, launches):
    events = otf2.events
    for launch, _, stored in launches:
        exported("otf2", launch.case)
        (anchor,) = exported("otf2", launch.case)  # in place of the first
        made = {rank: Counter() for rank in range(launch.ranks)}
        times, begun, sent, received = (defaultdict(list) for _ in range(4))
        with otf2.reader.open(str(anchor)) as trace:
            for location, event in trace.events:
                rank, kind = int(location.name.removeprefix("rank ")), type(event).__name__
                times[rank].append(event.time)
                subject = [getattr(event, "request_id", None)]
                if hasattr(event, "region"):
                    subject = [event.region.name]
                if kind in BEGUN_BY.values():
                    assert kind == "Enter" or (kind, *subject) not in begun[rank]
                    begun[rank].append((kind, *subject))
                elif kind in BEGUN_BY:
                    last = next(each for each in reversed(begun[rank]) if each[0] == BEGUN_BY[kind])
                    assert kind != "Leave" or last == ("Enter", *subject), "regions lie within each other"
                    begun[rank].remove((BEGUN_BY[kind], *subject))
                match event:
                    case events.MpiIsend():
                        made[rank]["send", event.msg_length] += 1
                        sent[rank, event.receiver].append(event.msg_length)
                    case events.MpiIrecv():
                        received[event.sender, rank].append(event.msg_length)
                    case events.MpiIrecvRequest():
                        made[rank]["receive", -1] += 1
                    case events.MpiCollectiveEnd() | events.NonBlockingCollectiveComplete():
                        name = str(event.collective_op).rpartition(".")[2].lower()
                        made[rank][name, event.size_sent] += 1
        assert all(each == sorted(each) for each in times.values())
        assert not any(begun.values())
        assert sent == received
        names = {"broadcast": "bcast", "gather": "gatherv"}
        names |= {"all_gather": "allgatherv", "all_to_all": "alltoallv"}
        for rank, calls in calls_of(stored).items():
            expected = Counter()
            for (verb, size), count in calls.items():
                expected[names.get(verb, verb.replace("all_", "all")), size] += count
            assert made[rank] == expected, f"{launch.label}, rank {rank}"


def test_extrap_has_the_step_times_and_the_calls_of_a_mean_rank_and_step(plans, exported):
    lines = [json.loads(line) for file in exported("extrap") for line in file.read_text().splitlines()]
    cases = list(plans.cases.values())
    assert sorted(line["value"] for line in lines if line["callpath"] == "step") == sorted(
        case["step_s"] for case in cases
    )
    assert {line["params"]["ranks"] for line in lines} == {4}
    calls = pd.DataFrame(plans.rows("calls"))
    steps = pd.DataFrame(plans.rows("steps")).groupby("case")[["rank", "step"]].nunique().prod(axis=1)
    for metric, column in (("calls", "count"), ("bytes", "bytes"), ("wait", "wait_s")):
        found = sum(line["value"] for line in lines if line["metric"] == metric and " " in line["callpath"])
        expected = (calls.groupby("case")[column].sum() / steps).sum()
        assert found == pytest.approx(expected)


def test_what_cannot_be_exported_is_said(plans, tmp_path, monkeypatch):
    def refused(as_format, output=tmp_path / "out", **asked):
        with pytest.raises(PscaleError) as error:
            export(Export(path=plans.folder, as_format=as_format, output=output, **asked))
        return str(error.value)

    assert "the run has no such case" in refused("goal", case="no such")
    assert "measured steps 0 to 3" in refused("chakra", steps="2-8")
    assert "is of all launches" in refused("extrap", launch=1)
    (tmp_path / "file").touch()
    assert "cannot write in" in refused("extrap", output=tmp_path / "file" / "folder")
    monkeypatch.setitem(sys.modules, "otf2", None)
    assert "pip install otf2" in refused("otf2")
