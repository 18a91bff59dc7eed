"""One rank's events summed, with times that a person can follow."""

from dataclasses import replace

import numpy as np
import pytest
from plans import TEXT, each_rank

from pscale.config import Plan
from pscale.runs.schema import Kind
from pscale.worker.recorder import Recorder
from pscale.worker.tables import call_table, hidden, phase_table

MS = 1_000_000


def no_wait(rows):
    """Return the waits of rows, those that they caused, and those on an ideal network: none."""
    return np.zeros_like(rows["enter"]), np.zeros_like(rows["enter"]), np.zeros(len(rows["enter"]))


def test_copies_are_neither_compute_nor_communication():
    record = Recorder(["dp"])
    record.enabled = True
    with record.step(0), record.phase("sync"):
        record.copied("dp", 11 * MS, 13 * MS)
    rows = {name: column.copy() for name, column in record.rows().items()}
    rows["enter"][1:], rows["leave"][1:] = [10 * MS, 0], [16 * MS, 17 * MS]
    table = phase_table(rows, *no_wait(rows), 0)
    assert table["copy_s"].sum() == pytest.approx(2e-3)
    assert table["compute_s"].sum() == pytest.approx(4e-3)
    assert table["transfer_s"].sum() == 0


def test_time_under_way_outside_its_calls_is_hidden():
    record = Recorder(["dp"])
    record.enabled = True
    with record.step(0), record.phase("backward"):
        number = record.posted("dp", "all_reduce", 8, 100, 110)
        record.polled(number, 150, 155)
        record.completed(number, 190, 200)
    assert hidden(record.rows())[0] == 100 - 10 - 5 - 10


def test_what_was_found_complete_is_hidden_no_longer_though_it_is_relied_on_later():
    record = Recorder(["dp"])
    record.enabled = True
    with record.step(0), record.phase("backward"):
        number = record.posted("dp", "all_reduce", 8, 100, 110)
        record.polled_complete(number, 150, 155)
        record.completed(number, 190, 190)
    assert hidden(record.rows())[0] == 55 - 10 - 5


def recorded_step():
    """Return the rows of one step: forward 10 ms, sync 6 ms of which 4 in a call."""
    record = Recorder(["dp"])
    record.enabled = True
    with record.step(0), record.phase("sync"):
        record.call("dp", "all_reduce", 8, 11 * MS, 15 * MS)
    rows = {name: column.copy() for name, column in record.rows().items()}
    rows["enter"][1:], rows["leave"][1:] = [10 * MS, 0], [16 * MS, 17 * MS]
    return rows


def test_the_kinds_of_time_of_a_phase_add_up_to_its_wall_time():
    rows = recorded_step()
    table = phase_table(
        rows, np.array([3 * MS, 0, 0]), np.array([2 * MS, 0, 0]), np.array([1.0 * MS, 0, 0]), 0
    )
    sync = list(table["phase"]).index("sync")
    assert table["wall_s"][sync] == pytest.approx(6e-3)
    assert table["compute_s"][sync] == pytest.approx(2e-3)
    assert table["wait_s"][sync] == pytest.approx(3e-3)
    assert table["transfer_s"][sync] == pytest.approx(1e-3)
    assert table["caused_wait_s"][sync] == pytest.approx(2e-3)
    assert table["ideal_wait_s"][sync] == pytest.approx(1e-3)
    assert table["end_s"][sync] == pytest.approx(17e-3)
    assert table["wall_s"].sum() == pytest.approx(6e-3)


def test_calls_are_summed_by_step_phase_axis_and_verb():
    record = Recorder(["dp"])
    record.enabled = True
    for step in range(2):
        with record.step(step), record.phase("sync"):
            record.call("dp", "gather", 100, 0, 2 * MS)
            record.call("dp", "gather", 50, 2 * MS, 3 * MS)
            record.call("dp", "broadcast", 7, 3 * MS, 4 * MS)
    rows = record.rows()
    table = call_table(rows, no_wait(rows)[0], no_wait(rows)[2], ["dp"])
    found = sorted(zip(table["step"], table["verb"], table["count"], table["bytes"], strict=True))
    assert found == [
        (0, "broadcast", 1, 7),
        (0, "gather", 2, 150),
        (1, "broadcast", 1, 7),
        (1, "gather", 2, 150),
    ]
    assert table["transfer_s"].sum() == pytest.approx(8e-3)


@pytest.mark.parametrize(
    "plan", [Plan(dp=2, zero=3), Plan(pp=2, dp=2, schedule="1f1b")], ids=["zero", "1f1b"]
)
def test_phases_hold_their_calls_and_steps_their_phases_and_nothing_overlaps(tmp_path, plan):
    def steps(trainer, _mesh):
        for index in range(3):
            trainer.step(index)
        return trainer.recorder.rows()

    def spans(rows, *kinds):
        chosen = np.isin(rows["kind"], kinds)
        order = np.argsort(rows["enter"][chosen], kind="stable")
        return np.stack([rows[end][chosen] for end in ("enter", "leave")], axis=1)[order]

    case = replace(TEXT, train=replace(TEXT.train, micro_batches=2))
    for rows in each_rank(case, plan, tmp_path, steps, record=True):
        calls = spans(rows, *set(Kind) - {Kind.STEP, Kind.PHASE})
        phases = spans(rows, Kind.PHASE)
        whole = spans(rows, Kind.STEP)
        for inner, outer in ((calls, phases), (phases, whole)):
            holder = np.searchsorted(outer[:, 0], inner[:, 0], side="right") - 1
            assert (inner[:, 0] >= outer[holder, 0]).all()
            assert (inner[:, 1] <= outer[holder, 1]).all()
            assert (inner[1:, 0] >= inner[:-1, 1]).all()
        start_ns = int(whole[0, 0]) - 5
        table = phase_table(rows, *no_wait(rows), start_ns)
        inside = sum(table[name].sum() for name in ("compute_s", "transfer_s", "copy_s"))
        between = table["unaccounted_s"][:: len(table["step"]) // 3].sum()
        assert inside + between == pytest.approx((whole[-1, 1] - start_ns) * 1e-9, abs=1e-9)
        assert table["unaccounted_s"].min() >= -1e-12, "0 where the clock has not moved between two steps"
