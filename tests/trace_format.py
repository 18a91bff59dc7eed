"""The rules of the Trace Event Format that viewers rely on, and Perfetto's own beyond them, as a check."""

import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter


@dataclass(frozen=True)
class Trace:
    events: list
    slices: dict  # by thread, in order of the file; `at` and `until` are ns
    flows: list  # slices at both ends
    names: dict  # of processes, and of threads by process and thread
    other: dict


def ns(number):
    exact = 1000 * number
    assert exact == int(exact), f"{number} µs is no whole number of ns"
    return int(exact)


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def checked(text):
    """Return what a trace holds; fails where a viewer could stumble."""
    document = json.loads(text, parse_constant=refuse, parse_float=Decimal)
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert "\\u" not in text, "early versions of Perfetto cannot read escapes"
    events = document["traceEvents"]
    for event in events:
        check_event(event)
    names = check_names(events)
    slices = check_slices(events)
    flows = check_flows(events, slices)
    return Trace(events, slices, flows, names, document["otherData"])


def check_event(event):
    assert event["ph"] in ("M", "X", "s", "f")
    assert isinstance(event["name"], str)
    assert event["name"].isprintable()
    assert event["name"]
    assert all(isinstance(event[key], int) and event[key] > 0 for key in ("pid", "tid"))
    for value in event.get("args", {}).values():
        assert isinstance(value, str | int | Decimal), "early versions of Perfetto cannot read lists"
    if event["ph"] != "M":
        event["at"] = ns(event["ts"])
        assert event["at"] >= 0
        assert isinstance(event["cat"], str)
    if event["ph"] == "X":
        event["until"] = event["at"] + ns(event["dur"])
        assert event["at"] <= event["until"]


def check_names(events):
    """Every process and thread has a name and a place, once, said before it does anything."""
    said, names = defaultdict(list), {}
    for event in events:
        if event["ph"] == "M":
            of_process = event["name"].startswith("process")
            key = event["pid"] if of_process else (event["pid"], event["tid"])
            said[key].append(event["name"])
            if event["name"].endswith("_name"):
                names[key] = event["args"]["name"]
        else:
            assert {"process_name", "process_sort_index"} <= set(said[event["pid"]])
            assert sorted(said[event["pid"], event["tid"]]) == ["thread_name", "thread_sort_index"]
    threads = [key[1] for key in names if isinstance(key, tuple)]
    assert len(threads) == len(set(threads)), "Perfetto names threads by number alone"
    assert all(len(each) == len(set(each)) for each in said.values())
    return names


def check_slices(events):
    """Slices of a thread begin one after another, outer before inner, and end inside the one around them."""
    slices, stacks = defaultdict(list), defaultdict(list)
    for event in events:
        if event["ph"] != "X":
            continue
        key = event["pid"], event["tid"]
        stack, empty = stacks[key], event["at"] == event["until"]
        if slices[key]:
            assert event["at"] >= slices[key][-1]["at"], event
        while stack and stack[-1]["until"] <= event["at"] and not empty:
            stack.pop()
        if stack and not empty:
            assert event["until"] <= stack[-1]["until"], (stack[-1], event)
        slices[key].append(event | {"depth": len(stack)})
        if not empty:
            stack.append(event)
    return dict(slices)


def check_flows(events, slices):
    """An arrow has both ends, each in a slice, and leads from what began first, as Perfetto will have it."""
    ends = defaultdict(dict)
    for event in events:
        if event["ph"] in ("s", "f"):
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = event
            assert event["ph"] == "s" or event["bp"] == "e"
    found = []
    for pair in ends.values():
        start, end = pair["s"], pair["f"]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["at"] <= end["at"]
        begin, stop = (around(slices[each["pid"], each["tid"]], each["at"]) for each in (start, end))
        assert begin["at"] <= stop["at"], (begin, stop)
        found.append((start["name"], begin, stop))
    return found


def around(slices, at):
    """Return the innermost slice at a time."""
    for each in reversed(slices[: bisect_right(slices, at, key=itemgetter("at"))]):
        if at <= each["until"]:
            return each
    raise AssertionError("an arrow that ends nowhere")
