"""Schedules as data: complete, free of deadlock, as idle and as hungry for memory as the formulas say."""

from collections import Counter
from itertools import product

import pytest
from kept_activations import peak

from pscale.parallel.schedule import Action, Timetable
from pscale.parallel.schedule_timing import bubble, table, time_slots

ONE_CHUNK = [
    Timetable(schedule=schedule, stages=stages, micro_batches=micro_batches)
    for schedule, stages, micro_batches in product(
        ("gpipe", "1f1b", "zero-bubble"), (1, 2, 3, 4, 8), (1, 2, 3, 4, 8, 16)
    )
]
INTERLEAVED = [
    Timetable(schedule="interleaved", stages=stages, micro_batches=rounds * stages, chunks=chunks)
    for stages, rounds, chunks in product((2, 3, 4), (1, 2, 4), (2, 3))
]
ALL = [*ONE_CHUNK, *INTERLEAVED]


def of(schedule, least_stages=2):
    return [table for table in ALL if table.schedule == schedule and table.stages >= least_stages]


def label(timetable):
    return "-".join(str(value) for value in vars(timetable).values())


def in_flight(timetable, stage):
    return peak(timetable.actions(stage), lambda _: 1, lambda _: 1)


@pytest.mark.parametrize("timetable", ALL, ids=label)
def test_every_micro_batch_goes_once_through_every_part_each_way(timetable):
    done = Counter(action for stage in range(timetable.stages) for action in timetable.actions(stage))
    kinds = ("forward", "input", "weight") if timetable.splits else ("forward", "backward")
    everything = product(kinds, range(timetable.micro_batches), range(timetable.parts))
    assert done == Counter(Action(*action) for action in everything)
    assert all(
        timetable.stage_of(action) == stage
        for stage in range(timetable.stages)
        for action in timetable.actions(stage)
    )


@pytest.mark.parametrize("timetable", ALL, ids=label)
def test_whatever_is_held_is_let_go_in_the_order_that_layers_need(timetable):
    for stage in range(timetable.stages):
        place = {action: number for number, action in enumerate(timetable.actions(stage))}
        for action, number in place.items():
            later = [place.get(action._replace(kind=kind)) for kind in ("backward", "input", "weight")]
            if action.kind == "forward":
                assert all(other is None or number < other for other in later)
            if action.kind == "input":
                assert number < place[action._replace(kind="weight")]


def test_one_stage_alone_never_waits_and_never_puts_off():
    for timetable in ALL:
        if timetable.stages == 1:
            assert [(action.kind, action.micro) for action in timetable.actions(0)] == [
                (kind, micro) for micro in range(timetable.micro_batches) for kind in ("forward", "backward")
            ]


def rendezvous(timetable, *, posted):
    """Tell whether all stages come to their end if a message moves only when both sides ask for it.

    Posted sends go on; the others stand still until the message is taken. Messages of a pair have no names:
    they are received in the order in which they are sent.
    """
    arriving = {
        (source, stage): timetable.arriving(stage, source)
        for source, stage in product(range(timetable.stages), repeat=2)
    }
    programs = []
    for stage in range(timetable.stages):
        program, here = [], set()
        for action in timetable.actions(stage):
            if source := timetable.source(action):
                pair = timetable.stage_of(source), stage
                while action not in here:
                    here.add(coming := arriving[pair].pop(0))
                    program.append(("receive", pair, coming))
            if target := timetable.target(action):
                program.append(("send", (stage, timetable.stage_of(target)), target))
        programs.append(program)
    on_the_way = []
    while any(programs):
        waiting = [program[0] for program in programs if program]
        for program in programs:
            if not program:
                continue
            verb, pair, message = program[0]
            if verb == "send" and posted:
                on_the_way.append(program.pop(0)[1:])
                break
            if verb == "send" and ("receive", pair, message) in waiting:
                next(other for other in programs if other and other[0] == ("receive", pair, message)).pop(0)
                program.pop(0)
                break
            sent = [other for other in on_the_way if other[0] == pair]
            if verb == "receive" and sent:
                assert sent[0] == (pair, message), "another message comes first"
                on_the_way.remove(sent[0])
                program.pop(0)
                break
        else:
            return False
    return not on_the_way


@pytest.mark.parametrize("timetable", ALL, ids=label)
def test_no_schedule_deadlocks_when_sends_are_posted(timetable):
    assert rendezvous(timetable, posted=True)


def test_sends_that_block_would_deadlock_where_neighbours_send_to_each_other():
    blocked = [table for table in of("1f1b") if not rendezvous(table, posted=False)]
    assert Timetable(schedule="1f1b", stages=4, micro_batches=8) in blocked
    assert all(rendezvous(table, posted=False) for table in of("gpipe"))


def test_stages_that_wait_for_each_other_are_noticed(monkeypatch):
    timetable = Timetable(schedule="1f1b", stages=2, micro_batches=1)
    wrong = [timetable.actions(0)[::-1], timetable.actions(1)]
    monkeypatch.setattr(Timetable, "actions", lambda _, stage: wrong[stage])
    with pytest.raises(AssertionError, match="wait for each other"):
        time_slots(timetable)


@pytest.mark.parametrize("timetable", [*of("gpipe"), *of("1f1b"), *of("interleaved")], ids=label)
def test_stages_idle_as_long_as_the_formula_says(timetable):
    pp, m, v = timetable.stages, timetable.micro_batches, timetable.chunks
    assert bubble(time_slots(timetable)) == pytest.approx((pp - 1) / (v * m))


@pytest.mark.parametrize("timetable", of("zero-bubble"), ids=label)
def test_weight_gradients_that_wait_leave_a_third_of_the_bubble(timetable):
    pp, m = timetable.stages, timetable.micro_batches
    idle = bubble(time_slots(timetable))
    assert idle < (pp - 1) / m
    if m >= pp:
        assert idle == pytest.approx((pp - 1) / (3 * m))


def test_unequal_parts_are_replayed_as_they_are():
    timetable = Timetable(schedule="gpipe", stages=2, micro_batches=2)
    slots = time_slots(timetable, lambda action: 3 if action.part == 1 else 1)
    assert [slot.start for slot in slots[1]] == [1, 4, 7, 10]
    assert [slot.start for slot in slots[0]] == [0, 1, 10, 13]


@pytest.mark.parametrize("timetable", [table for table in ALL if table.stages > 1], ids=label)
def test_micro_batches_in_flight_are_those_of_the_formulas(timetable):
    pp, m, v = timetable.stages, timetable.micro_batches, timetable.chunks
    for r in range(pp):
        formula = {
            "gpipe": m,
            "1f1b": min(pp - r, m),
            "interleaved": min(2 * (pp - r - 1) + (v - 1) * pp + 1, m * v),
            "zero-bubble": min(pp, m),
        }
        assert in_flight(timetable, r) == formula[timetable.schedule]


def test_a_schedule_is_drawn_with_a_row_a_stage_and_time_to_the_right():
    assert table(Timetable(schedule="zero-bubble", stages=2, micro_batches=2)).splitlines() == [
        "stage 0  F0 F1 ·  B0 W0 B1 W1",
        "stage 1  ·  F0 B0 F1 B1 W0 W1",
    ]
    assert table(Timetable(schedule="interleaved", stages=2, micro_batches=2, chunks=2)).splitlines() == [
        "stage 0  F0a F1a F0b F1b ·   ·   B0b ─── ·   B1b ─── B0a ─── B1a ───",
        "stage 1  ·   F0a F1a F0b B0b ─── F1b B1b ─── B0a ─── B1a ─── ·   ·",
    ]


def test_a_wide_schedule_is_drawn_in_parts_that_together_are_all_of_it():
    drawn = Timetable(schedule="1f1b", stages=4, micro_batches=16)
    whole = [
        line.removeprefix(f"stage {stage}").split() for stage, line in enumerate(table(drawn).splitlines())
    ]
    parts = [part.splitlines() for part in table(drawn, 80).split("\n\n")]
    assert max(len(line) for part in parts for line in part) <= 80
    starts = [int(part[0].removeprefix("time")) for part in parts]
    cells = [[line.split()[2:] for line in part[1:]] for part in parts]
    joined = [[cell for part in cells for cell in part[stage]] for stage in range(4)]
    assert joined == whole
    assert starts == [sum(len(part[0]) for part in cells[:place]) for place in range(len(parts))]
