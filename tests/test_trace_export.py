import pandas as pd
import pytest
from trace_format import checked

from pscale.export.trace import trace_lines

NOTE = dict.fromkeys(("phase", "kind", "label", "axis", "verb"), "")
NOTE |= {"step": 0, "bytes": 0, "wait": 0, "group": -1, "request": -1, "partner": -1}


def note(rank, kind, enter, leave, **more):
    return NOTE | {"rank": rank, "kind": kind, "enter": enter, "leave": leave} | more


def call(rank, verb, enter, leave, *, kind="call", axis="dp", group=0, **more):
    return note(rank, kind, enter, leave, verb=verb, axis=axis, group=group, phase="sync", **more)


def step(rank, leave, enter=0, number=0):
    """Return the notes that stand around others."""
    phase = note(rank, "phase", enter + 1, leave - 1, phase="sync", label="sync", step=number)
    return [phase, note(rank, "step", enter, leave, step=number)]


def drawn(*notes, places=None, about=None):
    table = pd.DataFrame(sorted(notes, key=lambda each: each["rank"]))
    return checked("\n".join(trace_lines(table, places or {}, about or {})))


def arrows(trace):
    """Return name, ranks and times of beginning and end of all arrows."""
    return sorted(
        (name, begin["pid"] // 1000 - 1, begin["at"], end["pid"] // 1000 - 1, end["at"], end["name"])
        for name, begin, end in trace.flows
    )


def named(trace, name):
    return [each for slices in trace.slices.values() for each in slices if each["name"] == name]


def test_a_wait_and_the_transfer_after_it_lie_in_their_call_and_the_arrow_comes_from_the_last_rank():
    trace = drawn(
        call(0, "all_reduce", 100, 1000, wait=600, bytes=8),
        call(1, "all_reduce", 700, 1000, bytes=8),
        call(2, "all_reduce", 300, 1000, wait=400, bytes=8),
        *(each for rank in range(3) for each in step(rank, 1100)),
    )
    slices = trace.slices[1000, 1000]
    assert [each["name"] for each in slices] == ["step 0", "sync", "all_reduce dp", "wait", "transfer"]
    assert [each["depth"] for each in slices] == [0, 1, 2, 3, 3]
    whole, wait, transfer = slices[2:]
    assert (wait["at"], wait["until"], wait["args"]["for_rank"]) == (100, 700, 1)
    assert (transfer["at"], transfer["until"]) == (700, 1000)
    costs = {"wait_us": 0.6, "transfer_us": 0.3}
    told = {"axis": "dp", "verb": "all_reduce", "bytes": 8}
    assert {name: whole["args"][name] for name in told} == told
    assert {name: float(whole["args"][name]) for name in costs} == costs
    assert arrows(trace) == [
        ("last to arrive", 1, 700, 0, 700, "transfer"),
        ("last to arrive", 1, 700, 2, 700, "transfer"),
    ]


def test_calls_of_different_groups_and_axes_are_kept_separate():
    """Ranks 0 and 1, and 2 and 3, exchange on `tp`; 0 and 2 then on `dp`."""
    pairs = [
        call(
            rank,
            "all_gather",
            100 + 100 * rank,
            500,
            axis="tp",
            group=rank // 2 * 2,
            wait=100 - rank % 2 * 100,
        )
        for rank in range(4)
    ]
    across = [call(0, "all_reduce", 600, 900, wait=200), call(2, "all_reduce", 800, 900)]
    trace = drawn(*pairs, *across, *(each for rank in range(4) for each in step(rank, 1000)))
    assert [arrow[1:4:2] for arrow in arrows(trace)] == [(1, 0), (2, 0), (3, 2)]


def test_of_calls_with_a_root_the_right_side_waits():
    trace = drawn(
        call(0, "broadcast", 300, 400, kind="root"),
        call(1, "broadcast", 100, 400, wait=200),
        call(2, "broadcast", 350, 400),
        call(0, "gather", 500, 900, kind="root", wait=200),
        call(1, "gather", 700, 750),
        call(2, "gather", 600, 650),
        *(each for rank in range(3) for each in step(rank, 1000)),
    )
    assert [(arrow[1], arrow[3]) for arrow in arrows(trace)] == [(0, 1), (1, 0)]


def message(enter, leave, wait=0, found=None):
    """Return the notes of a send by rank 0 at 500 and the receive by rank 1 that is relied on at `enter`."""
    sent = {"request": 0, "partner": 1, "bytes": 64}
    asked = (
        [call(1, "receive", found, found + 20, kind="polled_complete", axis="pp", request=0)] if found else []
    )
    return [
        call(0, "send", 500, 520, kind="posted", axis="pp", **sent),
        call(0, "send", 530, 560, kind="polled_complete", axis="pp", request=0),
        call(0, "send", 900, 900, kind="completed", axis="pp", request=0),
        call(1, "receive", 50, 60, kind="posted", axis="pp", request=0, partner=0),
        *asked,
        call(1, "receive", enter, leave, kind="completed", axis="pp", request=0, wait=wait),
        *step(0, 1000),
        *step(1, 1000),
    ]


def test_a_message_goes_from_its_send_to_where_the_wait_for_it_ends():
    trace = drawn(*message(200, 700, wait=300))
    assert arrows(trace) == [("message", 0, 500, 1, 500, "transfer")]
    assert named(trace, "wait")[0]["args"]["for_rank"] == 0
    assert named(trace, "start send pp")[0]["args"]["bytes"] == 64
    (sent,), (received,) = trace.slices[1000, 1001], trace.slices[2000, 2001]
    assert trace.names[1000, 1001] == "under way"
    assert (sent["name"], sent["at"], sent["until"]) == ("send pp", 500, 560)
    assert (received["name"], received["at"], received["until"]) == ("receive pp", 50, 700)


def test_a_message_that_was_found_before_it_was_needed_ends_where_it_is_relied_on():
    trace = drawn(*message(800, 800, found=600))
    assert [arrow[:5] for arrow in arrows(trace)] == [("message", 0, 500, 1, 800)]
    assert trace.slices[2000, 2001][0]["until"] == 620


def test_an_arrow_that_would_lead_back_in_time_is_left_out():
    assert drawn(*message(200, 400)).flows == []


def test_a_started_call_that_somebody_waits_for_begins_with_the_last_that_started_it():
    notes = []
    for rank, (posted, wait) in enumerate([(100, 300), (600, 0)]):
        notes += [
            call(rank, "all_reduce", posted, posted + 10, kind="posted", request=4, bytes=8),
            call(rank, "all_reduce", posted + 20, posted + 25, kind="polled", request=4),
            call(rank, "all_reduce", 600 - wait + 50 * rank, 800, kind="completed", request=4, wait=wait),
            *step(rank, 1000),
        ]
    trace = drawn(*notes)
    assert arrows(trace) == [("last to arrive", 1, 600, 0, 600, "transfer")]
    assert len(named(trace, "test all_reduce dp")) == 2


def test_calls_that_are_under_way_together_have_lanes_of_their_own():
    starts = [(100, 500), (200, 300), (400, 450), (550, 600)]
    notes = []
    for request, (posted, over) in enumerate(starts):
        notes.append(call(0, "all_reduce", posted, posted + 5, kind="posted", request=request))
        notes.append(call(0, "all_reduce", over - 5, over, kind="completed", request=request))
    never = call(0, "all_reduce", 700, 705, kind="posted", request=9)
    trace = drawn(*notes, never, *step(0, 1000))
    spans = {
        trace.names[key]: [(each["at"], each["until"]) for each in slices]
        for key, slices in trace.slices.items()
    }
    assert spans["under way 1"] == [(100, 500), (700, 1000)]
    assert spans["under way 2"] == [(200, 300), (400, 450), (550, 600)]


def test_phases_tell_action_micro_batch_and_part():
    labels = {"forward 3": (3, 0), "weight 0.2": (0, 2), "sync": None, "my halo": None, "a 1.2.3": None}
    notes = [
        note(0, "phase", 10 * place, 10 * place + 9, phase="backward", label=label)
        for place, label in enumerate(labels)
    ]
    trace = drawn(*notes, note(0, "step", 0, 100))
    for label, numbers in labels.items():
        args = named(trace, label)[0]["args"]
        assert (args.get("micro_batch"), args.get("part")) == (numbers or (None, None))


def test_what_begins_and_ends_together_lies_in_what_was_noted_after_it():
    trace = drawn(call(0, "barrier", 100, 100), call(0, "barrier", 200, 300), *step(0, 301, enter=199))
    assert [each["name"] for each in trace.slices[1000, 1000]] == [
        "barrier dp",
        "step 0",
        "sync",
        "barrier dp",
    ]


def test_times_before_the_first_step_of_rank_0_are_moved_and_texts_are_cleaned():
    trace = drawn(
        *step(0, 1000, enter=0),
        *step(1, 900, enter=-250),
        places={1: 'a "host"\n\x1b[31m, CPU 0-1'},
        about={"label": 'dp 2 \x00 "x" é', "launch": 1},
    )
    assert [slices[0]["at"] for slices in trace.slices.values()] == [250, 0]
    labels = [event["args"]["labels"] for event in trace.events if event["name"] == "process_labels"]
    assert labels == ['a "host"  [31m, CPU 0-1']
    assert trace.other == {"label": 'dp 2   "x" é', "launch": 1}


@pytest.mark.parametrize("kind", ["injected", "copied"])
def test_copies_and_injected_delays_are_slices(kind):
    assert named(drawn(note(0, kind, 10, 20), *step(0, 30)), kind)
