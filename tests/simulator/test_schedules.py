"""Pipelines as they were recorded on a slow network, on one that costs nothing: the bubble alone is left."""

import numpy as np
import pytest

from pscale.parallel.schedule import Timetable
from pscale.parallel.schedule_timing import in_units, time_slots
from pscale.runs.schema import VERBS, Kind
from pscale.simulator.network import IDEAL
from pscale.simulator.program import Position, rank_program, simulate
from pscale.worker.recorder import FIELDS

TABLES = [
    Timetable(schedule="gpipe", stages=4, micro_batches=4),
    Timetable(schedule="1f1b", stages=4, micro_batches=6),
    Timetable(schedule="interleaved", stages=2, micro_batches=4, chunks=2),
    Timetable(schedule="zero-bubble", stages=3, micro_batches=6),
]
UNIT_NS = 1000


def noted(table, stage, random):
    """Return the notes of a stage whose every call takes some time that an ideal network would not."""
    rows, clock, numbers, requests = [], 0, {}, 0

    def note(kind, verb, request, partner=-1):
        nonlocal clock
        length = int(random.integers(0, 700))
        row = dict.fromkeys(FIELDS, -1) | {"kind": kind, "axis": 0, "verb": VERBS.index(verb), "bytes": 8}
        rows.append(row | {"request": request, "partner": partner, "enter": clock, "leave": clock + length})
        clock += length

    for source in range(table.stages):
        for action in table.arriving(stage, source):
            numbers[action] = requests
            note(Kind.POSTED, "receive", requests, source)
            requests += 1
    for action in table.actions(stage):
        if action in numbers:
            note(Kind.COMPLETED, "receive", numbers[action])
        clock += in_units(action) * UNIT_NS
        target = table.target(action)
        if target is not None:
            note(Kind.POSTED, "send", requests, table.stage_of(target))
            requests += 1
    note(Kind.STEP, "copy", -1)
    rows[-1]["leave"] = rows[-1]["enter"]
    return {name: np.array([row[name] for row in rows], np.int64) for name in FIELDS}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.schedule)
def test_a_pipeline_on_an_ideal_network_takes_as_long_as_its_timetable(table):
    random = np.random.default_rng(1)
    rows = [noted(table, stage, random) for stage in range(table.stages)]
    programs = [
        rank_program(notes, np.zeros_like(notes["enter"]), [IDEAL.prices(table.stages)], 0) for notes in rows
    ]
    positions = [[Position(group=0, size=table.stages, rank=stage)] for stage in range(table.stages)]
    waits = simulate(programs, positions)
    ends = [own.ends(own.waits(waited))[-1] for own, waited in zip(programs, waits, strict=True)]
    assert ends == [slots[-1].stop * UNIT_NS for slots in time_slots(table)]
