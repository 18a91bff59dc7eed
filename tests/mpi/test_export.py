"""Traced runs as other tools read them, beside what the tables say."""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import otf2
import pandas as pd
import pytest
from export_formats import ideal_ns, read_chakra, read_goal

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
