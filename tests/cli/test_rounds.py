"""`repeat: auto`: which launches are made, until when, and what a killed run does about it."""

import io
import random as chance
from dataclasses import replace

import numpy as np
import pytest
from noop_runs import make_journal, note_end
from rich.console import Console

from pscale.cli.costs import expected_s, memory_fits
from pscale.cli.launches import Rounds
from pscale.cli.progress import Known, LaunchProgress
from pscale.config import Case, Inject, Jitter, Launch, Plan, Train
from pscale.launch import machine as machine_here
from pscale.launch.runner import plan_launches
from pscale.runs.journal import newest_unfinished
from pscale.runs.run_events import Enough
from pscale.runs.store import write_part

LEAST, MOST, SEED, WALL_S = 6, 14, 3, 2.0


def case(label, ranks=1, series="", scaling="weak", **known):
    train = Train(seed=sum(map(ord, label)), batch=8)  # cases have to differ
    plan = Plan(dp=ranks)
    return Case(
        suite="s", label=label, ranks=ranks, series=series, scaling=scaling, plan=plan, train=train, **known
    )


SIZES = [case("one", 1), case("two", 2), case("four", 4)]
VARIANTS = [case("quiet", scaling="throughput"), case("noisy", scaling="throughput")]


class Machine:
    """Runs launches that take no time, of steps whose scatter is given by case, beside a drift of 20 %."""

    def __init__(self, scatter, bad=(), die_after=10**9):
        self.scatter, self.bad, self.left = scatter, bad, die_after

    def step_s(self, label, repeat):
        drift = np.random.default_rng([9, repeat]).normal()
        own = np.random.default_rng([SEED, repeat, *label.encode()]).normal()
        return float(np.exp(0.2 * drift * (self.scatter[label] < 1) + self.scatter[label] % 1 * own))

    def go_on(self, journal, cases, own=None):
        """Do what is left of a run; return whether it came to its end."""
        rounds = Rounds(journal, own)
        for launch in plan_launches(cases, journal.document["auto"]["most"], SEED):
            if launch.key in journal.finished() or not rounds.wanted(launch):
                continue
            if own is not None and launch.case.id not in own:
                continue
            self.left -= 1
            if self.left < 0:
                return False
            label = launch.case.label
            status = "failed" if (label, launch.repeat) in self.bad else "ok"
            row = {"status": status, "step_s": self.step_s(label, launch.repeat), "wall_s": WALL_S}
            write_part(journal.data, "cases", *launch.key, [row])
            note_end(journal, launch.key, status, "", WALL_S)
        rounds.close()
        return True


def journal_of(folder, cases, *, precision=0.03, budget_s=None):
    auto = {"precision": precision, "most": MOST, "least": LEAST, "budget_s": budget_s}
    return make_journal(folder, cases, LEAST, SEED, auto=auto)


def launches_of(journal, cases):
    finished = journal.finished()
    return {case.label: sorted(repeat for name, repeat in finished if name == case.id) for case in cases}


MORE = range(LEAST + 1, MOST + 1)
FOUR_FAILS = [("four", repeat) for repeat in range(MOST)] + [("two", 0), ("two", 3)]


@pytest.mark.parametrize(
    ("scatter", "bad", "budget_s", "expected"),
    [
        pytest.param((0.002, 0.005, 0.03), (), None, [MORE, [LEAST], MORE], id="the largest size first"),
        pytest.param((0.002, 0.06, 0.005), (), None, [MORE, MORE, [LEAST]], id="then the others"),
        pytest.param((1.002, 1.06), (), None, [[LEAST], MORE], id="step times without a base"),
        pytest.param((0.5, 0.5, 0.5), (), None, [[MOST], [LEAST], [MOST]], id="never known"),
        pytest.param((0.002,) * 3, FOUR_FAILS, None, [MORE, [LEAST + 2], [3]], id="failures are given up"),
        pytest.param((0.1,) * 3, (), 1.0, [[1], [1], [1]], id="less than a round"),
        pytest.param((0.1,) * 3, (), 9 * WALL_S, [[3], [3], [3]], id="whole rounds"),
        pytest.param((0.1,) * 3, (), 14 * WALL_S, [[5], [4], [5]], id="the rest for the largest size"),
    ],
)
def test_cases_are_launched_until_what_the_report_says_first_is_known(
    tmp_path, scatter, bad, budget_s, expected
):
    cases = SIZES if len(scatter) == len(SIZES) else VARIANTS
    journal = journal_of(tmp_path, cases, budget_s=budget_s)
    machine = Machine(dict(zip([each.label for each in cases], scatter, strict=True)), bad)
    assert machine.go_on(journal, cases)
    made = launches_of(journal, cases)
    counts = [len(repeats) for repeats in made.values()]
    assert all(count in wanted for count, wanted in zip(counts, expected, strict=True)), counts
    if cases is SIZES:
        largest = "two" if bad else max(made, key=lambda label: (len(made[label]), label != "one"))
        assert made["one"] == made[largest], "the base is launched beside the case that needs it"
    assert journal.is_finished()
    before = journal.events()
    assert machine.go_on(journal, cases), "a finished run has nothing left to do"
    assert journal.events() == before


def test_when_the_largest_size_is_known_the_others_go_on(tmp_path):
    journal = journal_of(tmp_path, SIZES, precision=0.02)
    assert Machine({"one": 0.002, "two": 0.03, "four": 0.02}).go_on(journal, SIZES)
    made = launches_of(journal, SIZES)
    assert set(made["one"]) > set(made["two"]), "rounds of the largest size alone"
    assert max(made["four"]) < max(made["two"])


@pytest.mark.parametrize("budget_s", [None, 50.0])
def test_a_run_that_is_killed_again_and_again_makes_the_launches_of_one_that_is_not(tmp_path, budget_s):
    scatter = {"one": 0.002, "two": 0.05, "four": 0.03}
    whole, broken = (journal_of(tmp_path / name, SIZES, budget_s=budget_s) for name in ("whole", "broken"))
    Machine(scatter).go_on(whole, SIZES)
    chance.seed(4)
    kills = 0
    while not Machine(scatter, die_after=chance.randrange(5)).go_on(broken, SIZES):
        assert not broken.is_finished()
        found = newest_unfinished(tmp_path / "broken", "s", broken.document)
        assert found is not None
        kills += 1
    assert kills > 3
    assert broken.finished() == whole.finished()
    assert broken.enough() == whole.enough() == {case.id for case in SIZES}
    assert sum(isinstance(event, Enough) for event in broken.events()) == len(SIZES)


def test_jobs_that_have_some_of_the_cases_decide_alone(tmp_path):
    journal = journal_of(tmp_path, SIZES)
    machine = Machine({"one": 1.002, "two": 1.06, "four": 1.005})
    for own in SIZES:
        assert machine.go_on(journal, SIZES, own={own.id})
    made = launches_of(journal, SIZES)
    assert len(made["one"]) == len(made["four"]) == LEAST < len(made["two"])
    assert journal.is_finished()


def test_a_round_waits_for_launches_of_another_job(tmp_path):
    journal = journal_of(tmp_path, SIZES)
    first, second = (
        next(launch for launch in plan_launches(SIZES, 2, SEED) if launch.repeat == repeat)
        for repeat in (0, 1)
    )
    rounds = Rounds(journal)
    assert rounds.wanted(first)
    assert not rounds.wanted(second)


def test_the_time_left_shrinks_to_nothing_and_is_never_more_than_the_budget(tmp_path):
    journal = journal_of(tmp_path, SIZES, budget_s=60.0)
    machine = Machine({"one": 0.002, "two": 0.005, "four": 0.03})
    known = Known(flops={}, costs={each.id: WALL_S for each in SIZES})

    def told():
        console = Console(file=io.StringIO())
        return LaunchProgress("s", known, [], console, None, Rounds(journal)).expected

    seen = [told()]
    while not (machine := Machine(machine.scatter, die_after=6)).go_on(journal, SIZES):
        seen.append(told())
    assert seen[:2] == ["about 36 s", "about 24 s"], "six rounds, four rounds"
    assert sum(Rounds(journal_of(tmp_path / "short", SIZES, budget_s=20.0)).left().values()) == 18
    short = journal_of(tmp_path / "other", SIZES, budget_s=20.0)
    Machine(machine.scatter, die_after=4).go_on(short, SIZES)
    assert sum(Rounds(short).left().values()) == 2 + 3, "what the budget leaves: this round and one more"
    assert max(int(words.split()[1]) for words in seen) <= 60
    assert told() == "about 0 s"


def test_launches_are_expected_to_take_as_long_as_in_the_newest_run_that_has_them(tmp_path):
    here = machine_here.inspect()
    fits = list(memory_fits(VARIANTS, here).values())
    guess = expected_s(fits, here, tmp_path / "none")
    assert guess[VARIANTS[0].id] > 1.0
    for wall_s, summary in ((4.0, here.summary()), (9.0, here.summary() | {"cpu_model": "another"})):
        document = {"provenance": {"machine": summary}}
        journal = make_journal(tmp_path, VARIANTS, 1, SEED, **document)
        note_end(journal, (VARIANTS[0].id, 0), "ok", "", wall_s)
        note_end(journal, (VARIANTS[0].id, 1), "failed", "", 100.0)
    assert expected_s(fits, here, tmp_path / "s") == guess | {VARIANTS[0].id: 4.0}


@pytest.mark.parametrize(
    ("changed", "longer_s"),
    [
        ({"inject": Inject(delay_s=2.0)}, 20.0),
        ({"inject": Inject(delay_s=2.0, every=5)}, 4.0),
        ({"jitter": Jitter(mean_s=2.0)}, 20.0),
        ({"jitter": Jitter(mean_s=2.0), "launch": Launch(time_limit_s=7.0)}, None),
        ({"inject": Inject(delay_s=99.0), "launch": Launch(hang_after_s=5.5)}, None),
    ],
    ids=["a delay", "a delay now and then", "jitter", "a limit", "a hang"],
)
def test_what_is_made_slow_is_expected_to_take_longer_and_not_longer_than_it_may(tmp_path, changed, longer_s):
    here = machine_here.inspect()
    usual = replace(VARIANTS[0], train=Train(steps=10))
    slow = replace(usual, **changed)
    known = expected_s(list(memory_fits([usual, slow], here).values()), here, tmp_path)
    expected = known[usual.id] + longer_s if longer_s else 7.0
    assert known[slow.id] == pytest.approx(expected)


def test_launches_that_have_only_failed_are_expected_to_take_as_long_again(tmp_path):
    here = machine_here.inspect()
    fits = list(memory_fits(VARIANTS, here).values())
    first, other = (case.id for case in VARIANTS[:2])
    for ends in (
        ((first, "ok", 3.0),),
        ((first, "failed", 40.0), (other, "hung", 70.0), (other, "vanished", 1.0)),
    ):
        journal = make_journal(tmp_path, VARIANTS, 2, SEED, provenance={"machine": here.summary()})
        for repeat, (case, status, wall_s) in enumerate(ends):
            note_end(journal, (case, repeat), status, "", wall_s)
    found = expected_s(fits, here, tmp_path / "s")
    assert (found[first], found[other]) == (3.0, 70.0)


def test_first_launches_that_do_not_count_are_made_of_every_case_and_decide_nothing(tmp_path):
    auto = {"precision": 0.5, "least": 8, "most": 16, "budget_s": 0.0, "uncounted": 2}
    cases = [replace(each, launch=Launch(warmup=2)) for each in SIZES]
    journal = make_journal(tmp_path, cases, auto=auto)
    launches = []
    rounds = Rounds(journal)
    for launch in plan_launches(cases, 16, SEED):
        if rounds.wanted(launch):
            launches.append((launch.repeat, launch.case.well(launch.repeat)))
            row = {"status": launch.case.well(launch.repeat), "step_s": 1.0, "wall_s": WALL_S}
            write_part(journal.data, "cases", *launch.key, [row])
            note_end(journal, launch.key, row["status"], "", WALL_S)
    assert launches == [(0, "warm-up")] * 3 + [(1, "warm-up")] * 3 + [(2, "ok")] * 3, "the budget is spent"
