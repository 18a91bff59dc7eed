"""Predictions are written down before anything is measured, and the page has the figures of the files."""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import validate
import validate_suites

from pscale.predict.engine import Interval
from pscale.predict.profile import CallKey, CallTimes, Distribution
from pscale.simulator.network import moved_bytes, rounds
from pscale.suite.expand import expand
from pscale.suite.load import load_suite

MACHINE = {"cores": 2.0, "memory_gib": 16.0, "nodes": 1.0}


def prediction(value):
    return SimpleNamespace(step_s=Interval(value=value, low=0.9 * value, high=1.1 * value), notes=())


def run(**steps_s):
    rows = [{"case": case, "status": "ok", "step_s": step_s} for case, step_s in steps_s.items()]
    planned = {case: {"label": f"the {case}", "ranks": 4} for case in steps_s}
    return SimpleNamespace(cases=pd.DataFrame(rows), planned=planned)


def test_a_prediction_is_scored_by_its_label():
    found = validate.scored(run(a=1.0, b=2.0), {"the a": prediction(1.05), "the b": prediction(2.5)})
    assert [each.error for each in found] == pytest.approx([0.05, 0.25])
    assert [each.holds for each in found] == [True, False]
    assert [each.ranks for each in found] == [4, 4]


def test_what_is_frozen_is_the_file_that_was_there_before_the_measurement(tmp_path, monkeypatch):
    lab, order = validate.Lab(tmp_path, quick=True), []
    plan = validate_suites.PLANS[0]
    monkeypatch.setattr(validate, "PLANS", (plan,))
    monkeypatch.setattr(validate.Profile, "of_run", lambda _: None)
    monkeypatch.setattr(validate, "predict", lambda case, _: prediction(case.ranks))

    def measure(_, text):
        order.append([path.name for path in tmp_path.glob("frozen-*")])
        return run(x=8.4) if "[8]" in text else run(x=1.0)

    monkeypatch.setattr(validate.Lab, "run", measure)
    monkeypatch.setattr(validate, "label_of", lambda *_: lab.cases(plan_text)[0].label)
    plan_text = plan.suite((8,), jitter_s=0.0, steps=10, repeats=1)
    content = validate.perform("sizes", lab)
    assert order == [[], ["frozen-sizes-dp.json"]]
    frozen = (tmp_path / "frozen-sizes-dp.json").read_bytes()
    assert content["frozen"] == {"dp": hashlib.sha256(frozen).hexdigest()}
    (case,) = content["cases"]
    assert (case["predicted_s"], case["measured_s"], case["holds"]) == (8, pytest.approx(8.4), True)
    assert json.loads(frozen)["predictions"][0]["value"] == 8


def test_the_table_names_the_largest_miss_and_counts_held_out_cases(tmp_path):
    cases = [
        validate.Scored(
            case="a", ranks=16, predicted_s=p, low_s=0.9, high_s=1.1, measured_s=1.0, launches=1, notes=()
        ).row()
        for p in (1.01, 1.2)
    ]
    cases[1]["case"], cases[1]["holds"] = "b", False
    content = {"experiment": "sizes", "quick": False, "cases": cases, "frozen": {}}
    (tmp_path / "sizes.json").write_text(json.dumps(content))
    table = validate.table(tmp_path)
    assert "| sizes | 2 | **10.5%** (goal 2.5%) | **20.0%** (goal 6.0%): b | 1 of 2 |" in table
    assert "Of 2 held-out cases 50% lie in their 90 % interval." in table
    assert "| networks | not measured |" in table


def test_the_order_of_plans_says_what_the_first_choice_and_the_best_of_five_cost():
    names, predicted, measured = "abcdef", (1, 2, 3, 4, 5, 6), (1.1, 1.5, 1.4, 1.05, 2.0, 1.0)
    rows = [
        {"case": name, "predicted_s": one, "measured_s": two}
        for name, one, two in zip(names, predicted, measured, strict=True)
    ]
    (said,) = validate._also({"cases": rows, "plans": 7})
    assert said == (
        "6 of 7 plans run; regret of the first choice 10.0% (goal 3%), of the best of 5 5.0% (goal 0%); "
        "Spearman -0.26 (goal 0.95)"
    )


def test_the_page_has_the_kept_figures():
    text = validate.DOCUMENT.read_text(encoding="utf-8")
    assert validate.in_document(text, validate.KEPT) == text, "write it again: make validate"


def test_what_links_cost_is_told_apart_from_what_the_host_does_with_bytes():
    latency_s, on_wire, host_s_per_byte = 1e-3, 1.05, 2e-9

    def took(key, rate):
        moved = moved_bytes(key.verb, key.size, key.bytes)
        moved = moved if moved > validate.BURST else 0  # less passes at once
        wire_s = moved * on_wire / (rate * validate.MBIT_BYTES)
        return Distribution.of(
            np.array([rounds(key.verb, key.size) * latency_s + wire_s + moved * host_s_per_byte])
        )

    keys = [CallKey("all_reduce", "call", size, count) for size in (2, 4) for count in (8, 10_000, 4_000_000)]
    profiles = {
        rate: SimpleNamespace(
            calls={key: CallTimes(last=took(key, rate), late=None, together=0.0) for key in keys}
        )
        for rate in validate.MEASURED
    }
    assert validate._fitted(profiles) == pytest.approx((latency_s, on_wire, host_s_per_byte), rel=1e-6)


@pytest.mark.parametrize("plan", validate_suites.PLANS, ids=lambda plan: plan.name)
def test_ghosts_run_on_every_size_of_the_experiment(plan, tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text(plan.suite((2, 4, 8, 16, 32), jitter_s=0.01, steps=2, repeats=1))
    cases = expand(load_suite(path), MACHINE).cases
    assert [case.ranks for case in cases] == [2, 4, 8, 16, 32]


@pytest.mark.parametrize("name", validate_suites.SHAPED)
def test_every_shape_of_the_experiment_is_a_case_of_its_size(name, tmp_path):
    path = tmp_path / "suite.yaml"
    changes = [validate_suites.UNCHANGED, *validate_suites.CHANGED]
    path.write_text(validate_suites.shaped(name, changes, steps=2, repeats=1))
    cases = expand(load_suite(path), MACHINE).cases
    assert len({case.label for case in cases}) == len(changes)
    sizes = [{**vars(case.model), **vars(case.train)} for case in cases]
    for size, (fields, times) in zip(sizes, changes, strict=True):
        changed = {field for field in validate_suites.TRACED if size[field] != sizes[0][field]}
        assert changed == set(fields)
        assert {size[field] / sizes[0][field] for field in fields} <= {times}
    of_batch = {case.train.batch for case in cases}
    assert of_batch == {size * validate_suites.TRACED["batch"] for size in (1, 4, 16)}
    assert {case.model.vocabulary for case in cases} == {256, 1024, 4096}


def test_shapes_are_judged_by_how_far_their_work_is_from_what_was_traced():
    rows = [
        {"case": f"{kind}: batch × 4", "error": error, "far": far, "holds": far > 2}
        for kind, error, far in (("dense", 0.1, 2.0), ("tp", -0.2, 4.0), ("pp", 0.9, 16.0))
    ]
    probed = [{**row, "error": row["error"] / 10, "holds": True} for row in rows]
    content = {"cases": rows, "probed": probed, "pace": {"dense": 0.9, "tp": 1.25, "pp": 1.0}}
    near, beyond, goal, probes, again = validate._by_distance(content)
    assert near == "within 4 times the FLOPs 15.0% on average (goal 10%)"
    assert (beyond, goal) == ("beyond 90.0%", "goal of the intervals 90% to 98%")
    assert probes == (
        "with `--probe` 4.0% on average (goal 2%), 9.0% at most (goal 6%), 3 of 3 in their intervals"
    )
    assert again == "what was traced took 11.7% more or less when measured again"
    assert validate.by_change(content).splitlines() == [
        "| larger | dense | tp | pp |",
        "|---|---|---|---|",
        "| batch × 4 | **+10%** · +1% | -20% · -2% | +90% · +9% |",
    ]
