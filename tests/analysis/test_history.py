"""What is said of a case's history: its pace, its levels, what changed at them, and whether it is worse."""

import re
from dataclasses import replace

import numpy as np
import pytest

from pscale.analysis.history import (
    FEWEST,
    CaseHistory,
    Series,
    accepting,
    case_history,
    estimate_noise,
    is_worse,
    level_changes,
    level_changes_at,
    suite_history,
)
from pscale.analysis.messages import case_history as said
from pscale.report.comparison import history_sheet
from pscale.runs.history import Acceptance, Entry, History

FINGERPRINT = {
    "MPI": "MPICH 4.3",
    "BLAS": "openblas 0.3.21",
    "operating system": "Linux 6.1",
    "driver": "mlx5_core 23.10",
    "host": "node1",
    "OMP_NUM_THREADS": "1",
}


def entries(runs=30, scatter=0.01, machine=0.0, seed=1):
    """Draw paced runs of five launches; the machine is felt by steps and paces alike."""
    random = np.random.default_rng(seed)
    felt = machine * (random.normal(size=(runs, 1)) + 0.3 * random.normal(size=(runs, 5)))
    levels = np.log(0.2) + felt + scatter * random.normal(size=(runs, 5))
    return [
        Entry(
            run=f"r{run:02}",
            begun_unix_s=1.7e9 + run,
            case="id",
            label="2 ranks",
            work="gpt, 8",
            steps=levels[run].tolist(),
            levels=levels[run].tolist(),
            paces=(felt[run] - 5).tolist(),
            times_s={"forward compute": 0.07, "backward compute": 0.12},
            counters={"bytes of dp all_reduce": 1000, "calls of dp all_reduce": 10},
            code=str(run),
            fingerprint=FINGERPRINT,
        )
        for run in range(runs)
    ]


def slower(known, since, share, *, paces=0.0, **fields):
    """Change the times from a run on, and fields of the fingerprint with them."""

    def changed(entry):
        return replace(
            entry,
            steps=[log + np.log1p(share) for log in entry.steps],
            levels=[log + np.log1p(share) for log in entry.levels],
            paces=[log + paces for log in entry.paces],
            fingerprint=entry.fingerprint | fields,
        )

    return [*known[:since], *map(changed, known[since:])]


def judged(known, accepted=None) -> CaseHistory:
    return case_history(known, accepted, 0.05)


def test_what_does_not_change_is_the_same():
    found = judged(entries())
    assert (found.row.answer, found.changes, found.row.since) == ("equal", [], "")
    assert found.row.levels[0].step_s == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("field", FINGERPRINT)
def test_a_change_is_named_after_the_field_that_changed_with_it(field):
    known = slower(entries(), 20, 0.05, **{field: "another"})
    found = judged(slower(known, 10, 0.0, Python="3.12"))
    (change,) = found.changes
    assert (change.run, change.cause) == ("r20", f"{field} {FINGERPRINT[field]} → another")
    assert change.ratio.low < 1.05 < change.ratio.high
    assert (found.row.answer, found.row.since, found.row.cause) == ("slower", "r20", change.cause)


def test_a_change_with_nothing_but_a_commit_is_named_after_that():
    (change,) = judged(slower(entries(), 20, 0.05)).changes
    assert change.cause == "code 19 → 20"
    (change,) = judged([replace(each, code="") for each in slower(entries(), 20, 0.05)]).changes
    assert change.cause == "nothing that was recorded"


def test_the_part_of_the_step_that_changed_is_named():
    known = slower(entries(), 20, 0.05)
    known[20:] = [replace(each, times_s=each.times_s | {"backward compute": 0.13}) for each in known[20:]]
    assert judged(known).changes[0].parts == "backward compute +10 ms"


def test_a_drift_of_the_machine_vanishes_at_one_pace():
    known = entries(machine=0.05)
    paced, plain = judged(known), judged([replace(each, levels=(), paces=()) for each in known])
    assert np.std(np.log(paced.row.steps_s)) < 0.01
    assert np.std(np.log(plain.row.steps_s)) > 0.04
    assert (paced.row.answer, plain.row.answer) == ("equal", "undecided")
    assert judged(slower(known, 28, 0.05)).row.answer == "slower"


def test_a_library_that_makes_the_fixed_work_slower_too_is_not_taken_for_a_slow_machine():
    found = judged(slower(entries(machine=0.01), 20, 0.08, paces=np.log(1.08), BLAS="openblas 0.3.30"))
    assert [change.cause for change in found.changes] == ["BLAS openblas 0.3.21 → openblas 0.3.30"]
    assert found.row.answer == "slower"


def test_a_slow_spell_of_the_machine_is_not_attributed_to_what_changed_meanwhile():
    found = [judged(slower(entries(machine=0.03, seed=seed), 20, 0.0, BLAS="another")) for seed in range(20)]
    assert [each.changes for each in found] == [[]] * 20


def test_one_wild_launch_in_a_run_is_no_change():
    known = entries()
    for place in (27, 28, 29):
        known[place].steps[0] += 1.0
        known[place].levels[0] += 1.0
    assert judged(known).changes == []


def test_a_change_of_a_counter_is_certain_without_statistics():
    known = entries(runs=2, scatter=0.5)
    counters = known[1].counters | {"bytes of dp all_reduce": 1001}
    found = judged([known[0], replace(known[1], counters=counters)])
    (change,) = found.counters
    assert (change.run, change.counter, change.before, change.after) == (
        *("r01", "bytes of dp all_reduce"),
        *(1000, 1001),
    )
    assert is_worse(found.row)
    assert said(found.row) == "more work (exact counter): bytes of dp all_reduce 1,000 → 1,001"
    fewer = judged([replace(known[0], counters=counters), known[1]])
    assert (len(fewer.counters), is_worse(fewer.row)) == (1, False), "fewer bytes are not worse"


def test_an_improvement_becomes_normal_by_itself_and_what_is_worse_does_not():
    better = slower(entries(), 10, -0.1)
    assert judged(better).row.answer == "faster"
    back = judged(slower(better, 20, 1 / 0.9 - 1))
    assert back.row.answer == "slower"
    assert back.row.normal_s == pytest.approx(0.18, rel=0.01)
    returned = judged(slower(slower(entries(), 10, 0.1), 20, 1 / 1.1 - 1))
    assert (len(returned.changes), returned.row.answer) == (2, "equal")


def test_what_was_accepted_is_normal_from_then_on():
    known = slower(entries(), 20, 0.05)
    known[20:] = [replace(each, counters={"calls of dp all_reduce": 11}) for each in known[20:]]
    suite = suite_history(History(suite="weak", entries=tuple(known), acceptances=(), damaged=()))
    (accepted,) = accepting(suite, [], "more ranks share a node", 2e9)
    assert (accepted.accepted, accepted.label) == ("r29", "2 ranks")
    found = judged(known, accepted)
    assert (found.row.answer, found.row.normal_s) == ("equal", pytest.approx(0.21, rel=0.01))
    assert (
        judged(known, Acceptance(accepted="lost", label="", reason="", at_unix_s=0.0)).row.answer == "slower"
    )


def test_few_runs_a_lone_run_and_much_noise_are_undecided():
    assert said(judged(entries(runs=7)).row) == "undecided: 7 runs so far, 8 needed"
    lone = judged(slower(entries(), 29, 0.2))
    assert lone.row.answer == "undecided"
    assert "only the newest run is slower, by 19.8%" in said(lone.row)
    noisy = judged([replace(each, levels=(), paces=()) for each in entries(scatter=0.2)])
    assert noisy.row.answer == "undecided"
    assert "only show a change of" in said(noisy.row)


@pytest.mark.slow
@pytest.mark.figure
def test_noise_that_grows_and_a_newest_run_that_alone_is_slow_are_hardly_ever_called_worse():
    grown, lone = [], []
    for seed in range(30):
        random, known = np.random.default_rng(seed), entries(seed=seed)
        noise = np.linspace(0.01, 0.05, len(known))[:, None] * random.normal(size=(len(known), 5))
        noisy = [
            replace(each, steps=(np.log(0.2) + own).tolist(), levels=(), paces=())
            for each, own in zip(known, noise, strict=True)
        ]
        grown.append(judged(noisy).row.answer)
        lone.append(judged(slower(known, 29, 0.3)).row.answer)
    assert grown.count("slower") <= 1
    assert lone == ["undecided"] * 30


def test_runs_that_computed_something_else_are_not_compared():
    known = entries()
    known[:10] = [replace(each, work="gpt, 16") for each in slower(known, 0, 1.0)[:10]]
    found = judged(known)
    assert (len(found.row.runs), found.changes, found.row.answer) == (20, [], "equal")
    assert said(found.row).endswith("10 runs did different work")


def test_the_worst_case_decides_for_the_suite():
    known = entries()
    other = [replace(each, label="1 rank") for each in slower(known, 20, 0.05)]

    def answer(*cases):
        every = tuple(entry for case in cases for entry in case)
        return suite_history(History(suite="weak", entries=every, acceptances=(), damaged=())).answer

    assert answer(known) == "equal"
    assert answer(known, other) == "slower"
    assert answer(known, [replace(each, label="few") for each in known[:3]]) == "undecided"


def test_by_how_much_a_case_is_worse_or_better_is_a_cell_of_the_tables():
    random, given = np.random.default_rng(7), set()
    for seed in range(40):
        scatter, share = (
            float(random.choice([0.001, 0.01, 0.05])),
            float(random.choice([0.0, 0.05, 0.2, -0.1])),
        )
        found = suite_history(
            History(
                suite="any",
                entries=tuple(slower(entries(scatter=scatter, seed=seed), 20, share)),
                acceptances=(),
                damaged=(),
            )
        )
        (case,) = found.cases
        cells = [
            cell
            for table in history_sheet(found).tables
            for _, cells in table.texts()
            for column, cell in zip(table.columns, cells, strict=True)
            if column.name != "answer"
        ]
        given.add(case.answer)
        if case.answer in ("slower", "faster"):
            (number,) = re.findall(r"[\d.]+%", said(case))
            assert any(number in cell for cell in cells), (said(case), cells)
    assert {"slower", "faster", "equal", "undecided"} <= given


# Changes of a level among noise. Seeds are fixed: every outcome is exact


def series(random, *, runs=40, scatter=0.03, drift=0.0, launches=5, steps=()):
    """Draw runs about levels: `steps` are runs and logarithms by which the level changes with them."""
    machine = random.normal(size=runs)
    for run in range(1, runs):
        machine[run] = 0.5 * machine[run - 1] + np.sqrt(0.75) * machine[run]
    values = drift * machine[:, None] + scatter * random.normal(size=(runs, launches))
    for run, size in steps:
        values[run:] += size
    variance = float(values.var(axis=1, ddof=1).mean() / launches) if launches > 1 else 0.0
    return Series(values=values.mean(axis=1), variance=variance, degrees=np.full(runs, launches - 1))


NOISES = {
    "scatter": {},
    "drift": {"drift": 0.03, "scatter": 0.005},
    "both": {"drift": 0.013},
    "single launches": {"drift": 0.03, "launches": 1},
}


@pytest.mark.parametrize("name", NOISES)
def test_noise_and_drift_alone_are_no_change(name):
    found = [
        level_changes(series(np.random.default_rng(seed), **NOISES[name]), [10, 20, 30]) for seed in range(60)
    ]
    assert sum(map(bool, found)) <= 2


def test_a_change_by_five_percent_is_found_at_its_run():
    hits = 0
    for seed in range(40):
        found = level_changes(series(np.random.default_rng(seed), scatter=0.02, steps=[(20, 0.0488)]))
        hits += [change.at for change in found] == [20]
    assert hits >= 36


def test_two_runs_are_enough_and_one_is_not():
    random = np.random.default_rng(3)
    known = series(random, scatter=0.01, steps=[(38, 0.05)])
    assert [change.at for change in level_changes(known)] == [38]
    assert level_changes(known.part(0, 39)) == []


def test_a_single_slow_run_is_no_change_wherever_it_is():
    for place in (0, 1, 17, 38, 39):
        known = series(np.random.default_rng(4), scatter=0.01)
        known.values[place] += 0.5
        assert level_changes(known) == []


def test_a_level_that_came_and_went_has_two_changes():
    known = series(np.random.default_rng(5), scatter=0.01, steps=[(15, 0.1), (20, -0.1)])
    assert [change.at for change in level_changes(known)] == [15, 20]


def test_a_marked_place_is_believed_sooner():
    plain = marked = 0
    for seed in range(40):
        known = series(np.random.default_rng(seed), steps=[(36, 0.035)])
        plain += [change.at for change in level_changes(known)] == [36]
        marked += [change.at for change in level_changes(known, [12, 36])] == [36]
    assert plain < marked


def test_marks_beside_each_other_are_judged_too():
    known = series(np.random.default_rng(7), scatter=0.01, steps=[(20, 0.1)])
    assert [change.at for change in level_changes_at(known, [*range(18, 23)])] == [20]
    assert [change.at for change in level_changes(known, [*range(18, 23)])] == [20]


def test_without_any_noise_every_change_is_exact():
    values = np.repeat([0.0, 0.02, -0.01, 0.0], 10)
    known = Series(values=values, variance=0.0, degrees=np.zeros(40, np.int64))
    found = level_changes(known)
    assert [change.at for change in found] == [10, 20, 30]
    assert max(change.p for change in found) <= 0.001


def test_few_runs_say_nothing():
    known = series(np.random.default_rng(6), runs=FEWEST - 1, scatter=0.001, steps=[(3, 0.5)])
    assert level_changes(known) == []


def test_what_drifts_is_distinguished_from_what_scatters():
    shares = {}
    for name in ("scatter", "drift"):
        known = [
            estimate_noise(series(np.random.default_rng(seed), **NOISES[name]), []) for seed in range(20)
        ]
        shares[name] = np.mean([each.share for each in known])
    assert shares["scatter"] < 0.2
    assert shares["drift"] > 0.9
    drifting = estimate_noise(series(np.random.default_rng(1), **NOISES["drift"]), [])
    assert drifting.error(2) > drifting.error(1) / np.sqrt(2), "neighbours have much in common"


def test_a_slower_level_is_found_sooner_than_a_faster_one():
    found = {
        size: sum(
            bool(level_changes(series(np.random.default_rng(seed), steps=[(38, size)]))) for seed in range(40)
        )
        for size in (0.0488, -0.0488)
    }
    assert found[0.0488] >= 36
    assert found[-0.0488] <= 30
