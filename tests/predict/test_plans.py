"""Every plan is found, every plan that is found runs, and the fastest are found without predicting all."""

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Placed
from types import SimpleNamespace as Points

import numpy as np
import pytest
from patience import THOROUGH
from plans import TEXT, counted_calls, predicted_calls
from training.test_offload import GPT

from pscale.analysis.frames import load
from pscale.analysis.stats import Estimate
from pscale.config import Plan
from pscale.errors import UsageError
from pscale.predict import search as search_module
from pscale.predict.advice import advised, agreement, losses
from pscale.predict.engine import Interval, Prediction, predict
from pscale.predict.plans import leaner, least_bytes, plans
from pscale.predict.profile import Profile
from pscale.predict.search import DRAWS, Memory, search
from pscale.suite.derive import derived, plan_lines, work_of
from pscale.suite.expand import expand
from pscale.suite.load import load_suite
from pscale.training.prediction import fullest_rank
from pscale.training.prediction import predict as predict_memory

ROOT = Path(__file__).parents[2]
TINY = replace(TEXT, model=replace(TEXT.model, layers=4, heads=8))
MOE = replace(TINY, model=replace(TINY.model, kind="moe", experts=4, top_k=2))
SMALL = replace(TINY, ranks=4, train=replace(TEXT.train, batch=2))
EVERYTHING = Memory(fits=lambda _: True)
MACHINE = {"cores": 8, "memory_gib": 16, "nodes": 1, "cores_per_node": 8}


def suite(name, *overrides):
    return load_suite(ROOT / "suites" / f"{name}.yaml", overrides)


def divided(case):
    """Return how a case divides its work, without options of axes that it does not have."""
    plan = case.plan if case.plan.pp > 1 else replace(case.plan, schedule="1f1b")
    return plan if plan.cp > 1 else replace(plan, context="ring"), case.train.micro_batches


def test_every_plan_of_the_suite_of_strategies_is_found():
    cases = expand(suite("strategies"), MACHINE).cases
    _, work = work_of(suite("strategies"), 4, MACHINE)
    assert {divided(case) for case in cases} <= {divided(case) for case in plans(work)}


def test_plans_of_every_axis_are_found_and_all_have_the_ranks_and_the_batch():
    work = replace(MOE, ranks=8, train=replace(MOE.train, batch=8))
    found = list(plans(work))
    of_each = {divided(case): case for case in found}
    assert len(of_each) == len(found) > 200
    assert {(case.ranks, case.plan.ranks, case.train.batch) for case in found} == {(8, 8, 8)}
    for plan, micro_batches in (
        (Plan(dp=2, ep=4), 1),
        (Plan(dp=8, zero=3, shard=2), 1),
        (Plan(cp=4, context="unified", ulysses=2, dp=2), 1),
        (Plan(tp=2, sp=True, ep=2, dp=2), 1),
        (Plan(pp=2, schedule="zero-bubble", dp=4), 2),
    ):
        assert (plan, micro_batches) in of_each


@pytest.mark.parametrize("name", ["strategies", "weak", "linear", "block", "matrix"])
def test_a_suite_of_any_hundred_plans_has_these_cases_and_its_lines_make_each(name, tmp_path):
    _, work = work_of(suite(name), 8, MACHINE)
    found = list(plans(replace(work, scaling="throughput")))
    some = random.Random(1).sample(found, min(100, len(found)))
    file = tmp_path / "suite.yaml"
    file.write_text(derived(suite(name), "advice", "Advice", some))
    assert [case.id for case in expand(load_suite(file), MACHINE).cases] == [case.id for case in some]
    head = file.read_text().partition("sweep:")[0]
    for case in some[:10]:
        lines = plan_lines(case).splitlines()
        train = lines[0].removeprefix("train: {micro_batches: ").rstrip("}") if len(lines) > 1 else "1"
        file.write_text(f"{head}\n{lines[-1]}\n")
        (again,) = expand(load_suite(file, [f"train.micro_batches={train}"]), MACHINE).cases
        assert (again.plan, again.train) == (case.plan, case.train)


def test_a_sweep_of_other_fields_is_no_one_work_until_one_is_chosen():
    with pytest.raises(UsageError, match=r"--only 'batch == 2'"):
        work_of(suite("crossing"), 2, MACHINE)
    assert work_of(suite("crossing"), 2, MACHINE, only="batch == 4")[1].train.batch == 4


def test_the_suite_of_the_best_plans_measures_the_work_that_was_chosen_from_the_sweep(tmp_path):
    swept = {"model.width": [64, 128], "data.hints.cb_nodes": [1], "train.lr": [0.1, 0.2]}
    file, out = tmp_path / "swept.yaml", tmp_path / "advice.yaml"
    file.write_text(
        "name: swept\nscaling: throughput\nranks: 2\nplan: {dp: rest}\ntrain: {batch: 8}\n"
        "model: {kind: gpt, layers: 2, width: 32, heads: 4, sequence: 64, vocabulary: 256}\n"
        f"data: {{kind: text, source: python-stdlib, loading: mpi-io}}\nsweep: {json.dumps(swept)}\n"
    )
    chosen, work = work_of(load_suite(file), 2, MACHINE, "model.width == 128 and train.lr == 0.2")
    assert (work.model.width, work.train.lr, work.data.hints) == (128, 0.2, {"cb_nodes": "1"})
    out.write_text(derived(chosen, "advice", "Advice", [work]))
    (case,) = expand(load_suite(out), MACHINE).cases
    assert case.id == work.id


@pytest.mark.slow
@pytest.mark.parametrize("work", [TINY, MOE], ids=["gpt", "moe"])
def test_any_plans_run_and_call_what_was_predicted(work, tmp_path):
    found = list(plans(replace(work, ranks=8, train=replace(work.train, batch=8))))
    for case in random.Random(2).sample(found, max(10, round(50 * THOROUGH))):
        counted = counted_calls(replace(case), case.plan, tmp_path)
        assert counted == predicted_calls(case, case.plan), case.plan


def test_leaner_forms_need_less_memory_up_to_the_leanest():
    def needed(case):
        return predict_memory(case, fullest_rank(case)).total_bytes

    for plan, micro_batches in ((Plan(dp=2), 1), (Plan(pp=2), 2)):
        case = replace(GPT, ranks=2, plan=plan, train=replace(GPT.train, micro_batches=micro_batches))
        chain = [case]
        while found := list(leaner(chain[-1])):
            chain += found
        assert chain[-1].plan.checkpoint == "full"
        sizes = [needed(each) for each in chain]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] < sizes[0]


@pytest.fixture(scope="module")
def profile():
    return Profile.of_run(load(ROOT / "reports" / "gallery" / "communication"))


@pytest.fixture(scope="module")
def brute(profile):
    """Every plan of a small work, by its predicted step."""
    found = [predict(case, profile, draws=DRAWS) for case in plans(SMALL)]
    return sorted(found, key=lambda each: each.step_s.value)


@pytest.mark.slow
def test_the_search_finds_the_plans_that_are_fastest_of_all(profile, brute):
    found = search(SMALL, profile, EVERYTHING, 5)
    assert [each.case for each in found.found] == [each.case for each in brute[:5]]
    assert found.predicted < found.plans == len(brute)


@pytest.mark.slow
def test_plans_that_do_not_fit_are_left_out_and_leaner_forms_take_their_place(profile, brute):
    first = brute[0].case

    def fits(case):
        return case.plan.zero != first.plan.zero or case.plan.checkpoint == "full"

    found = search(SMALL, profile, Memory(fits=fits), 5)
    assert first in found.too_large
    assert all(fits(each.case) for each in found.found)


def test_an_interrupted_search_returns_the_best_of_what_was_predicted(profile, monkeypatch):
    monkeypatch.setattr(search_module, "_TELLING_S", -1.0)
    told = []

    def tell(*counts):
        told.append(counts)
        if counts[0] == 3:
            raise KeyboardInterrupt

    found = search(SMALL, profile, EVERYTHING, 5, tell)
    steps_s = [each.step_s.value for each in found.found]
    assert found.ended
    assert len(steps_s) == found.predicted == 3
    assert steps_s == sorted(steps_s)
    assert [predicted for predicted, _ in told] == sorted(predicted for predicted, _ in told)


def test_a_search_tells_how_many_plans_are_left_and_none_in_the_end(profile, monkeypatch):
    monkeypatch.setattr(search_module, "_TELLING_S", -1.0)
    told = []
    found = search(SMALL, profile, EVERYTHING, 1, lambda *counts: told.append(counts))
    assert told[0] == (0, found.plans)
    assert told[-1] == (found.predicted, 0)


def test_a_search_runs_a_fifth_of_its_plans_dry_at_most(profile, monkeypatch):
    ran, rank_program = [], search_module.rank_program
    monkeypatch.setattr(search_module, "rank_program", lambda *a: ran.append(a) or rank_program(*a))
    work = replace(TINY, ranks=8, train=replace(TINY.train, batch=16))
    found = search(work, profile, EVERYTHING, 5)
    assert found.plans > 1000
    assert len(ran) < found.plans / 5


def made(case, step_s, **losses_s):
    low_high = {"low": step_s * 0.9, "high": step_s * 1.1}
    return Prediction(
        case=case,
        step_s=Interval(value=step_s, **low_high),
        draws=np.array([step_s]),
        losses=losses_s,
        transfers={"all_reduce dp": 0.01, "send pp": 0.002},
        waits={},
        timeline=None,
        notes=(),
        checked_ranks=0,
    )


def test_losses_are_said_relative_to_the_least_computing_the_largest_first():
    found = made(GPT, 1.3, compute=1.1, transfer=0.03, bubble=0.14, jitter=0.004)
    words = "+14%: bubble; +10%: more or slower compute; +3%: communication not hidden (all-reduce dp)"
    assert losses(found, 1.0) == words
    other = made(replace(GPT, label="b"), 1.5, compute=1.0, transfer=0.5)
    third = made(replace(GPT, label="c"), 1.4, compute=1.0)
    assert [each.place for each in advised([found, third, other])] == [1, 1, 1]
    assert [each.place for each in advised([found, made(GPT, 2.0, compute=1.0)])] == [1, 2]


def test_agreement_says_regret_order_and_error_of_what_was_measured():
    cases = [replace(GPT, train=replace(GPT.train, batch=2 * count)) for count in (1, 2, 3)]
    found = [made(case, 1.0 + place) for place, case in enumerate(cases)]
    steps_s = (1.1, 1.0, 3.0)
    points = {
        case.id: Points(step_s=Estimate(value=step_s)) for case, step_s in zip(cases, steps_s, strict=True)
    }
    places = [
        Placed(case=cases[1].id, place=1, answer="", ratio=Estimate(value=1.0)),
        Placed(case=cases[0].id, place=2, answer="slower", ratio=Estimate(value=1.1)),
        Placed(
            case=cases[2].id,
            place=3,
            answer="undecided",
            ratio=Estimate(value=3.0, low=0.9, high=9.0),
            rounds_to_decide=2,
            decide_s=120.0,
        ),
    ]
    said = agreement(found, points, places)
    assert [row.case for row in said.rows] == [cases[1], cases[0], cases[2]]
    assert [row.predicted_place for row in said.rows] == [2, 1, 3]
    assert said.rows[0].error == pytest.approx(1.0)
    assert said.sentences == (
        "Regret 10.0%: the plan that was predicted fastest takes so much longer",
        "1 of 3 plans may be as fast as the fastest; 2 more rounds (about 2 min) would decide",
        "Rank correlation of predicted and measured steps (Spearman): 0.50",
        "Mean error of the predicted steps: 36.4%",
    )


@pytest.mark.parametrize("work", [TINY, MOE], ids=["dense", "mixture"])
def test_no_plan_needs_less_memory_than_its_least(work):
    work = replace(work, ranks=8, train=replace(work.train, batch=16))
    alone = predict_memory(replace(work, ranks=1, plan=Plan())).memory_bytes
    found = list(plans(work))
    for case in random.Random(3).sample(found, round(60 * THOROUGH)):
        for form in (case, replace(case, plan=replace(case.plan, checkpoint="full"))):
            needed_bytes = predict_memory(form, fullest_rank(form)).total_bytes
            assert 0 < least_bytes(form, alone) <= needed_bytes, form.plan


def test_of_plans_that_cannot_fit_nothing_is_run_dry(profile, monkeypatch):
    ran = []
    monkeypatch.setattr(search_module, "rank_program", lambda *a: ran.append(a))
    never = Memory(fits=lambda _: True, least_bytes=lambda _: 2.0, limit_bytes=1.0)
    found = search(SMALL, profile, never, 5)
    assert ran == []
    assert (found.found, found.predicted, found.stopped) == ((), 0, False)
    assert {each.plan.checkpoint for each in found.too_large} == {"none", "selective", "full"}


def test_a_search_stops_where_many_plans_and_those_that_need_least_do_not_fit(profile, monkeypatch):
    monkeypatch.setattr(search_module, "_MANY", 5)
    tried = []
    needs = {"none": 3.0, "selective": 2.0, "full": 1.0}

    def fits(case):
        tried.append(case)
        return case.plan.checkpoint == "full" and one_fits

    for one_fits in (False, True):
        tried.clear()
        memory = Memory(fits=fits, least_bytes=lambda case: needs[case.plan.checkpoint])
        found = search(SMALL, profile, memory, 2)
        assert found.stopped is not one_fits
        assert [each.case.plan.checkpoint for each in found.found] == ["full"] * 2 * one_fits
        assert one_fits or {each.plan.checkpoint for each in tried[5:]} == {"full"}
