"""Known laws, found again: exactly from exact times, and closely from noisy ones."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pscale.analysis.columns import row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.predictions import (
    Bootstrap,
    Observed,
    Space,
    fit,
    laws,
    likely,
    machine_of,
    named_laws,
    score,
    score_in,
)
from pscale.report.markup import render_markdown
from pscale.runs import predictions
from pscale.runs.predictions import Predicted

SIX, EIGHT = 2.0 ** np.arange(6), 2.0 ** np.arange(8)


def usl(size):
    return 10 / size * (1 + 0.02 * (size - 1) + 0.001 * size * (size - 1))


LAWS = {
    "amdahl": ("strong", SIX, lambda size: 1 + 64 / size),
    "inverse alone": ("strong", SIX, lambda size: 64 / size),
    "log": ("weak", SIX, lambda size: 1 + 0.1 * np.log2(size)),
    "p log p": ("weak", SIX, lambda size: 1 + 0.01 * size * np.log2(size)),
    "square root": ("weak", SIX, lambda size: 1 + 0.2 * size**0.5),
    "ring": ("weak", SIX, lambda size: 1 + 0.3 * (1 - 1 / size)),
    "two terms": ("strong", EIGHT, lambda size: 1 + 64 / size + 0.5 * np.log2(size)),
    "usl": ("strong", EIGHT, usl),
    "constant": ("weak", SIX, np.ones_like),
}


def observed(sizes, launches):
    times = np.array([np.median(of_size) for of_size in launches])
    return Observed(sizes=sizes, times=times, scale=times, launches=launches)


def measured(law, sizes, launches, random, noise=0.01):
    return [law(size) * np.exp(noise * random.normal(size=launches)) for size in sizes]


def choose(space, times, *scatter):
    return fit(space, times, likely(times.shape[1], *scatter))


def chosen(scaling, sizes, times):
    return choose(Space(laws(scaling), sizes, times), times[None])


@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_found_from_exact_times_and_predicts_larger_sizes(name):
    scaling, sizes, law = LAWS[name]
    choice = chosen(scaling, sizes, law(sizes))
    far = 4 * sizes[-1:]
    assert choice.at(far)[0] == pytest.approx(law(far), rel=1e-6)
    assert choice.errors[0] < 1e-6


def test_one_plus_64_over_p_is_amdahls_law_with_its_coefficients():
    choice = chosen("strong", SIX, 1 + 64 / SIX)
    assert choice.law().name("strong") == "amdahl"
    assert choice.coefficients[0] == pytest.approx([1, 64, 0], abs=1e-9)


@pytest.mark.parametrize("name", ["amdahl", "log", "p log p", "ring", "constant"])
def test_noise_of_a_percent_leaves_predictions_close(name):
    scaling, sizes, law = LAWS[name]
    random = np.random.default_rng(7)
    noisy = law(sizes) * np.exp(0.01 * random.normal(size=(60, len(sizes))))
    projected = choose(Space(laws(scaling), sizes, law(sizes)), noisy).at(2 * sizes[-1:])[:, 0]
    assert np.median(projected) == pytest.approx(law(2 * sizes[-1]), rel=0.03)
    assert np.quantile(np.abs(projected / law(2 * sizes[-1]) - 1), 0.8) < 0.08
    assert (projected > 0).all()


def test_no_coefficient_is_negative_and_no_prediction_either():
    random = np.random.default_rng(3)
    times = random.uniform(0.1, 10, (200, 6))
    choice = choose(Space(laws("strong"), SIX, np.ones(6)), times)
    assert (choice.coefficients >= 0).all()
    assert (choice.at(np.array([1.0, 1e3, 1e6])) >= 0).all()


def test_leave_one_out_errors_are_those_of_fits_without_the_size():
    times = np.array([65.1, 32.7, 17.2, 8.9, 5.1, 3.0])
    choice = chosen("strong", SIX, times)
    missed = []
    for left in range(6):
        kept = np.delete(np.arange(6), left)
        columns = np.stack([term.value(SIX) for term in choice.law().terms], axis=1) / times[:, None]
        found = np.linalg.lstsq(columns[kept], np.ones(5), rcond=None)[0]
        missed.append(columns[left] @ found - 1)
    assert choice.errors[0] == pytest.approx(np.sqrt(np.mean(np.square(missed))))


def test_each_of_many_series_gets_the_law_that_it_gets_alone():
    times = np.stack([1 + 64 / SIX, 3 * np.ones(6), 1 + np.log2(SIX)])
    space = Space(laws("strong"), SIX, np.ones(6))
    together = choose(space, times)
    for draw, own in enumerate(times):
        alone = choose(space, own[None])
        assert together.law(draw) is alone.law()
        assert together.coefficients[draw] == pytest.approx(alone.coefficients[0])


def named(scaling, sizes, law):
    seen = observed(sizes, [np.array([law(size)] * 2) for size in sizes])
    space = Space(laws(scaling), sizes, seen.scale)
    bootstrap = Bootstrap(seen, choose(space, seen.times[None]), (1,))
    return {law["law"]: law for law in named_laws(scaling, seen, bootstrap.times)}


def test_the_serial_fraction_the_contention_and_the_peak_are_named():
    amdahl = named("strong", SIX, lambda size: 1 + 64 / size)["amdahl"]
    assert amdahl["serial_fraction"].value == pytest.approx(1 / 65)
    law = named("strong", EIGHT, usl)["usl"]
    assert (law["contention"].value, law["coherency"].value) == pytest.approx((0.02, 0.001))
    assert law["peak"] == pytest.approx((0.98 / 0.001) ** 0.5)
    weak = named("weak", SIX, lambda size: 2 / (0.8 + 0.2 / size))["gustafson"]
    assert weak["serial_fraction"].value == pytest.approx(0.2)
    weak = named("weak", SIX, lambda size: size * usl(size))["usl"]
    assert (weak["contention"].value, weak["coherency"].value) == pytest.approx((0.02, 0.001))
    assert named("weak", SIX, np.ones_like)["usl"]["peak"] is None
    assert named("", SIX, np.ones_like) == {}


@pytest.mark.parametrize(("name", "launches"), [("amdahl", 3), ("log", 1)])
def test_the_interval_holds_a_measurement_at_four_times_the_largest_size(name, launches):
    scaling, sizes, law = LAWS[name]
    random, held, trials = np.random.default_rng(11), 0, 25
    there = 4 * sizes[-1:]
    for trial in range(trials):
        seen = observed(sizes, measured(law, sizes, launches, random))
        space = Space(laws(scaling), sizes, seen.scale)
        choice = choose(space, seen.times[None])
        (found,) = Bootstrap(seen, choice, (trial,)).at(space, choice, there, choice.at(there)[0])
        held += found.low <= np.median(measured(law, there, launches, random)[0]) <= found.high
    assert held >= 0.85 * trials


@pytest.mark.figure
def test_known_scatter_of_launches_decides_how_many_terms_a_law_has():
    def parameters(launches, law, noise=0.01):
        found = []
        for seed in range(20):
            seen = observed(SIX, measured(law, SIX, launches, np.random.default_rng([seed, launches]), noise))
            choice = choose(Space(laws("strong"), SIX, seen.scale), seen.times[None], seen.scatter)
            found.append(choice.law().parameters)
        return found

    def three(size):
        return 1 + 64 / size + 0.5 * np.log2(size)

    assert np.mean(parameters(1, three)) < 2.2  # nothing is known of the scatter
    assert np.mean(parameters(5, three)) > 2.9
    assert np.mean(parameters(5, three, noise=0.2)) < 2.5  # the same times are as likely with two
    assert np.mean(parameters(5, LAWS["amdahl"][2])) < 2.3
    assert np.mean(parameters(5, np.ones_like)) < 1.3


def test_draws_are_the_same_for_the_same_seed():
    seen = observed(SIX, measured(LAWS["amdahl"][2], SIX, 3, np.random.default_rng(1)))
    space = Space(laws("strong"), SIX, seen.scale)
    choice = choose(space, seen.times[None])
    drawn = [
        Bootstrap(seen, choice, seed).at(space, choice, SIX, choice.at(SIX)[0]) for seed in [(1,), (1,), (2,)]
    ]
    assert drawn[0] == drawn[1] != drawn[2]


# Predictions count if they were made before the launches, as they were made then


GALLERY = Path(__file__).parents[2] / "reports" / "gallery"


@pytest.fixture
def run(tmp_path):
    shutil.copytree(GALLERY / "pipeline", tmp_path / "pipeline" / "run")
    return load(tmp_path / "pipeline" / "run")


def made(run, *, before_s, step_s=0.1, width=2.0):
    row = run.cases.iloc[0]
    return Predicted(
        case=str(row["case"]),
        label="any",
        ranks=int(row["ranks"]),
        made_unix_s=float(run.cases["started_unix_s"].min()) - before_s,
        step_s=step_s,
        low_s=step_s / width,
        high_s=step_s * width,
        losses_s={"compute": 0.7 * step_s, "bubble": 0.2 * step_s, "jitter": 0.1 * step_s},
        quantiles_s=[step_s],
        checked_ranks=2,
        notes=[],
        inputs={},
    )


def test_the_last_prediction_before_the_first_launch_is_beside_what_was_measured(run):
    folder = run.path.parent
    assert Findings(run).predicted.empty
    predictions.add(folder, [made(run, before_s=20, step_s=1.0), made(run, before_s=10)])
    predictions.add(folder, [made(run, before_s=-1000, step_s=5.0)])  # after all launches had begun
    findings = Findings(run)
    (found,) = findings.rows("predicted")
    steps_s = run.cases.loc[run.cases["case"] == found.case, "step_s"]
    assert found.predicted_s == 0.1
    assert found.measured_s == pytest.approx(steps_s.median())
    assert found.error == pytest.approx(0.1 / steps_s.median() - 1)
    assert found.inside == found.launches == len(steps_s)
    kinds = {time.kind: time for time in findings.rows("predicted_kinds")}
    assert kinds["wait"].predicted_s == pytest.approx(0.03)
    assert kinds["compute"].measured_s > kinds["wait"].measured_s > 0


def test_kinds_that_the_clocks_do_not_tell_are_unknown_beside_their_prediction(run):
    predictions.add(run.path.parent, [made(run, before_s=10)])
    findings = Findings(replace(run, phases=run.phases.assign(wait_or_transfer_s=1e-3)))
    measured_s = {time.kind: time.measured_s for time in findings.rows("predicted_kinds")}
    assert measured_s["wait"] is None
    assert measured_s["compute"] > 0
    assert "30 ms → unknown" in render_markdown(findings)


def test_a_report_reads_the_record_once(run, monkeypatch):
    predictions.add(run.path.parent, [made(run, before_s=10)])
    reads = []
    monkeypatch.setattr("pscale.analysis.predictions.read", lambda folder: reads.append(folder) or [])
    render_markdown(Findings(run))
    assert len(reads) == 1


def test_a_report_has_both_and_the_score(run):
    predictions.add(run.path.parent, [made(run, before_s=10)])
    summary = Findings(run)
    (found,) = summary.rows("prediction_score")
    said = render_markdown(summary)
    assert "Predicted beside measured" in said
    score_row = f"| {found.cases} | {found.mean_error:.1%} | {found.largest_error:.1%} |"
    assert f"{score_row} {found.inside} of {found.launches} |" in said


def test_the_score_sums_launches_and_has_the_mean_and_the_largest_error_whatever_their_signs():
    held = {"launches": 3, "inside": 2}
    rows = [row("predicted", error=-0.3, ranks=2, **held), row("predicted", error=0.1, ranks=8, **held)]
    (found,) = score(rows)
    assert found == {
        "cases": 2,
        "largest_ranks": 8,
        "mean_error": pytest.approx(0.2),
        "largest_error": 0.3,
        "launches": 6,
        "inside": 4,
    }
    assert not [*score([])]


def test_the_score_counts_runs_of_the_same_machine_alone(run, tmp_path):
    predictions.add(run.path.parent, [made(run, before_s=10, width=1.001)])
    found = score_in(tmp_path, machine_of(run))
    assert (found.cases, found.inside) == (1, 0)
    assert score_in(tmp_path, ("elsewhere", "another")) is None


def test_a_prediction_that_was_changed_afterwards_does_not_count(run):
    file = predictions.add(run.path.parent, [made(run, before_s=10)])
    document = json.loads(file.read_text())
    document["predictions"][0]["made_unix_s"] -= 1
    file.write_text(json.dumps(document))
    assert Findings(run).predicted.empty


def test_the_measured_time_is_that_of_launches_that_ended_well(run):
    predictions.add(run.path.parent, [made(run, before_s=10)])
    cases = run.cases.copy()
    cases.loc[cases.index[0], "status"] = "failed"
    (found,) = Findings(replace(run, cases=cases)).rows("predicted")
    assert found.launches == len(cases[cases["case"] == found.case]) - 1
