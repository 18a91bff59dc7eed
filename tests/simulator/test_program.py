"""Recorded programs on other networks, all ranks in one process."""

import numpy as np
import pytest
from programs import random_program

from pscale.errors import ResultsError
from pscale.mesh import grid
from pscale.runs.schema import VERBS, Kind
from pscale.simulator.network import IDEAL, Link
from pscale.simulator.program import Position, rank_program, simulate
from pscale.worker.recorder import FIELDS

GRID = {"pp": 2, "dp": 2, "tp": 2}


def seat(program, rank, span):
    places = grid.coordinates(program.sizes, rank)
    members = [
        other
        for other in range(len(program.rows))
        if all(
            grid.coordinates(program.sizes, other)[dim] == places[dim] for dim in places if dim not in span
        )
    ]
    return Position(group=members[0], size=len(members), rank=members.index(rank))


def step_ends(program, links):
    """Return when each step ends on the network, by rank."""
    positions = [[seat(program, rank, span) for span in program.spans] for rank in range(len(program.rows))]
    prices = [link and link.prices(place.size) for link, place in zip(links, positions[0], strict=True)]
    programs = [
        rank_program(rows, wait, prices, 0) for rows, wait in zip(program.rows, program.wait, strict=True)
    ]
    found = zip(programs, simulate(programs, positions), program.rows, strict=True)
    return np.array([own.ends(own.waits(waited))[rows["kind"] == Kind.STEP] for own, waited, rows in found])


@pytest.mark.parametrize("seed", range(10))
def test_on_an_ideal_network_a_random_program_takes_as_long_as_its_longest_path(seed):
    program = random_program(seed, GRID, alike=False)
    assert (step_ends(program, [IDEAL] * len(program.spans)) == program.ideal).all()


@pytest.mark.parametrize("seed", range(10))
def test_on_the_network_that_it_was_measured_on_it_takes_as_long_as_it_took(seed):
    program = random_program(seed, GRID, alike=False)
    assert (step_ends(program, [None] * len(program.spans)) == program.ends).all()


def walls(*ranks, link, size=2, names=("all",)):
    """Return the end of each rank, whose notes are (kind, verb, enter, leave) and further columns by name.

    `names` are those of the links of its axes.
    """
    tables = []
    for notes in ranks:
        rows = []
        for kind, verb, enter, leave, *more in notes:
            row = dict.fromkeys(FIELDS, -1) | {"kind": kind, "axis": 0, "verb": VERBS.index(verb), "bytes": 0}
            rows.append(row | {"enter": enter, "leave": leave} | (more[0] if more else {}))
        tables.append({name: np.array([row[name] for row in rows]) for name in FIELDS})
    prices = [link.prices(size, name) for name in names]
    programs = [rank_program(rows, np.zeros_like(rows["enter"]), prices, 0) for rows in tables]
    positions = [[Position(group=0, size=size, rank=rank)] * len(names) for rank in range(len(ranks))]
    waits = simulate(programs, positions)
    return [float(own.ends(own.waits(waited))[-1]) for own, waited in zip(programs, waits, strict=True)]


SLOW = Link(latency_s=100e-9, bytes_per_s=1e9)  # 100 ns and a byte per ns


@pytest.mark.parametrize(
    ("verb", "size", "cost_ns"),
    [
        ("all_reduce", 2, 100 + 1000),
        ("all_reduce", 4, 200 + 1500),
        ("reduce_scatter", 4, 200 + 750),
        ("all_gather", 4, 200 + 3000),
        ("all_to_all", 5, 300 + 800),
        ("barrier", 8, 300),
    ],
)
def test_a_call_costs_its_messages_in_turn_and_the_bytes_of_one_rank(verb, size, cost_ns):
    call = (Kind.CALL, verb, 10, 99, {"bytes": 1000})
    late = (Kind.CALL, verb, 50, 99, {"bytes": 1000})
    assert walls(*[[call]] * (size - 1), [late], link=SLOW, size=size) == pytest.approx([50 + cost_ns] * size)


def test_a_broadcast_costs_those_who_wait_and_holds_the_root_until_it_is_sent():
    root, other = (Kind.ROOT, "broadcast", 10, 20, {"bytes": 500}), (Kind.CALL, "broadcast", 5, 25)
    assert walls([root], [other], link=SLOW) == [510, 610]


def test_messages_leave_one_after_another_and_travel_while_both_ranks_compute():
    def start(verb, enter, request, partner):
        return Kind.POSTED, verb, enter, enter, {"bytes": 300, "request": request, "partner": partner}

    def take(verb, enter, request):
        return Kind.COMPLETED, verb, enter, enter, {"request": request}

    sender = [start("send", 0, 0, 1), start("send", 50, 1, 1), take("send", 60, 0), take("send", 2000, 1)]
    receiver = [start("receive", 0, 0, 0), start("receive", 0, 1, 0), take("receive", 390, 0)]
    assert walls(sender, [*receiver, take("receive", 395, 1)], link=SLOW) == [2240, 700]
    assert walls(sender, [*receiver, take("receive", 9000, 1)], link=SLOW) == [2240, 9010]


@pytest.mark.parametrize(("names", "end_ns"), [(("dp", "tp"), 1100), (("wire", "wire"), 2100)])
def test_calls_of_axes_that_share_a_link_send_one_after_another(names, end_ns):
    started = [(Kind.POSTED, "all_reduce", 0, 0, {"bytes": 1000, "request": n, "axis": n}) for n in (0, 1)]
    over = [(Kind.COMPLETED, "all_reduce", 0, 0, {"request": n, "axis": n}) for n in (0, 1)]
    assert walls(*[[*started, *over]] * 2, link=SLOW, names=names) == [end_ns] * 2


def test_events_that_do_not_match_are_an_error_and_not_an_endless_wait():
    call = (Kind.CALL, "all_reduce", 10, 20)
    with pytest.raises(ResultsError, match="ranks 0 do not match"):
        walls([call, call], [call], link=IDEAL)
