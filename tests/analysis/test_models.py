"""Models of whole runs: what is fitted, what is refused, and which phase hurts first."""

import math
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis import text
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load, overlay
from pscale.analysis.predictions import agreement, models
from pscale.analysis.stats import Estimate
from pscale.config import Workload
from pscale.config.workload import Figure
from pscale.report.topics.predictions import tables

pytestmark = pytest.mark.slow

SIZES = (1, 2, 4, 8, 16)


def weak(ranks, **settings):
    return Point(ranks=ranks, transfer_s=0.005 * math.log2(ranks), launch_noise=0.005, **settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "run"
    summary_of(folder, [weak(ranks) for ranks in SIZES], steps=6)
    return load(folder)


def only(summary):
    (model,) = summary.rows("models")
    return model


def laws(summary):
    return {law.part: law for law in summary.rows("laws")}


def ahead(summary, *, curve=False):
    return [row for row in summary.rows("law_predictions") if row.part == "step" and row.curve == curve]


def test_a_series_has_a_law_for_the_step_each_phase_and_each_kind_of_time(run):
    summary = Findings(run)
    assert (only(summary).unit, only(summary).sizes) == ("ranks", SIZES)
    parts = ("data", "forward", "backward", "sync", "update", "compute", "transfer")
    assert [*laws(summary)] == ["step", *parts]
    assert [row.size for row in ahead(summary)] == [32, 64]
    last = ahead(summary)[1]
    assert last.time_s.value == pytest.approx(0.130, rel=0.05)
    assert last.time_s.low < 0.130 < last.time_s.high
    assert last.efficiency.low < last.efficiency.value < last.efficiency.high
    sync = laws(summary)["sync"]
    assert (sync.terms, sync.coefficients_s) == (("{}·log₂ p",), pytest.approx((0.005,), rel=1e-6))
    assert sync.formula == "5 ms·log₂ p"


def test_the_phase_that_grows_hurts_first(run):
    model = only(Findings(run, predict=[64]))
    assert model.first == "sync"
    assert model.first_share == pytest.approx(30 / 130, rel=0.03)
    assert model.first_measured_share == pytest.approx(20 / 120, rel=0.03)


def test_beyond_four_times_the_largest_size_there_is_a_mark_and_no_interval(run):
    near, far = ahead(Findings(run, predict=[64, 65]))
    assert (near.beyond, far.beyond) == (False, True)
    assert near.time_s.low is not None
    assert (far.time_s.low, far.efficiency.low) == (None, None)
    assert max(row.size for row in ahead(Findings(run, predict=[1000]), curve=True)) == 64


@pytest.mark.figure
def test_a_law_that_misses_by_more_than_launches_scatter_says_so_and_its_interval_is_as_wide(tmp_path):
    times = {1: 0.1, 2: 0.1, 4: 0.1, 8: 0.15, 16: 0.1, 32: 0.15}
    points = [Point(ranks=ranks, compute_s=time_s, launch_noise=0.01) for ranks, time_s in times.items()]
    summary = summary_of(tmp_path / "run", points, repeats=4, steps=3)
    step = laws(summary)["step"]
    assert not step.fits
    assert (step.misfit > 0.15, 0.005 < step.scatter < 0.02) == (True, True)
    for each in ahead(summary):
        assert each.time_s.high - each.time_s.low > 2 * step.misfit * each.time_s.value
    (caption,) = [table.caption for table in tables(summary)]
    missed, scatter = text.percent(step.misfit), text.percent(step.scatter)
    assert caption.startswith(
        f"Does not fit: step, whose law misses by {missed} of the step while launches vary by {scatter}; "
    )


def test_laws_that_fit_and_launches_that_are_single_are_not_said_to_miss(run, tmp_path):
    assert all(law.fits for law in laws(Findings(run)).values())
    wild = [Point(ranks=ranks, compute_s=0.1 + 0.05 * (ranks % 3)) for ranks in SIZES]
    step = laws(summary_of(tmp_path / "run", wild, repeats=1, steps=3))["step"]
    assert (step.scatter, step.fits) == (None, True)


def test_without_need_nothing_is_fitted(run):
    assert Findings(run, predict=None).models.empty


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([weak(ranks) for ranks in (1, 2)], "2 sizes measured; a law needs at least 5"),
        ([weak(1)], "1 size measured"),
        ([replace(weak(ranks), status="failed") for ranks in SIZES], "0 sizes measured"),
        (
            [
                weak(ranks, threads=threads)
                for ranks, threads in ((1, 1), (2, 1), (1, 2), (4, 1), (8, 1), (16, 1))
            ],
            "several cases have the same size",
        ),
    ],
    ids=["two sizes", "one size", "all failed", "same size twice"],
)
def test_what_no_law_can_be_fitted_to_is_refused_with_the_reason(tmp_path, points, words):
    summary = summary_of(tmp_path / "run", points, steps=4, repeats=1)
    assert words in only(summary).refusal
    assert summary.laws.empty
    assert summary.law_predictions.empty


def test_one_launch_of_each_and_equal_times_give_a_constant(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=ranks) for ranks in SIZES], repeats=1, steps=4)
    step = laws(summary)["step"]
    assert (step.terms, step.coefficients_s) == (("{}",), pytest.approx((0.1,)))
    assert step.r_squared is None
    assert only(summary).first == "none"
    last = ahead(summary)[-1].time_s
    assert (last.low, last.high) == pytest.approx((last.value, last.value))


@pytest.mark.parametrize(("repeats", "noise"), [(1, 0.0), (3, 0.0), (3, 1.5)])
@pytest.mark.parametrize("scaling", ["strong", "weak"])
@pytest.mark.figure
def test_a_report_of_alike_or_wild_launches_has_laws_and_writes_no_warning(tmp_path, scaling, repeats, noise):
    settings = {"scaling": scaling, "launch_noise": noise}
    points = [Point(ranks=ranks, compute_s=0.1 * ranks, **settings) for ranks in SIZES]
    folder = write_run(tmp_path / "run", points, repeats=repeats, steps=6)
    assert all(law.contention.high >= 0 for law in Findings(load(folder)).rows("named_laws")[1:])
    done = subprocess.run(
        [sys.executable, "-m", "pscale", "report", folder], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def rows(run, points, **options):
    found = models(run, points, {}, pd.DataFrame(), **{"asked": (), "sharing": set(), **options})
    return [row["refusal"] for row in found["models"]]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_times_that_are_no_times_are_no_sizes(run, value):
    points = Findings(run, predict=None).rows("cases")
    (refusal,) = rows(run, [point._replace(step_s=Estimate(value=value)) for point in points])
    assert "0 sizes measured" in refusal


def test_ranks_that_share_cores_and_cases_that_compare_no_sizes_have_no_law(run):
    points = Findings(run, predict=None).rows("cases")
    (refusal,) = rows(run, points, sharing={points[0].case})
    assert "share cores" in refusal
    assert rows(run, [point._replace(scaling="throughput") for point in points]) == []


def test_many_series_are_not_all_modelled(tmp_path, monkeypatch):
    monkeypatch.setattr("pscale.analysis.predictions.MOST_SERIES", 1)
    points = [Point(ranks=ranks, series=series) for series in ("a", "bb") for ranks in range(1, 6)]
    found = summary_of(tmp_path / "run", points, repeats=1, steps=2).rows("models")
    assert [model.refusal for model in found] == ["", "only the first 1 series are modelled"]


def test_predictions_agree_where_their_intervals_meet_and_say_nothing_where_neither_has_one():
    near, far = Estimate(value=1.0, low=0.9, high=1.1), Estimate(value=1.3, low=1.2, high=1.4)
    assert (agreement(near, far), agreement(far, near)) == ("disagree", "disagree")
    assert agreement(near, replace(far, low=1.1)) == "agree"
    assert agreement(near, Estimate(value=1.05)) == "agree"
    assert agreement(Estimate(value=1.2), near) == "disagree"
    assert agreement(Estimate(value=1.0), Estimate(value=1.0)) == ""


def solver(n, ranks=1, k=1):
    """Return a case of a program that takes 0.1 s + 0.002 s n log2 n, on one rank."""
    times = {"t": Figure(regex="(.*)", unit="s")}
    workload = Workload(
        command="solver {n} {m}", params={"n": n, "m": n**2, "k": k}, step_time="t", figures=times
    )
    return Point(
        ranks=ranks,
        scaling="throughput",
        series=str(ranks),
        label=f"n {n} · {ranks} ranks" + (f" · k {k}" if k > 1 else ""),
        workload=workload,
        compute_s=(0.1 + 0.002 * n * math.log2(n)) / ranks,
        launch_noise=0.003,
    )


@pytest.mark.figure
def test_the_law_over_a_swept_number_is_the_one_that_was_put_in(tmp_path):
    points = [solver(n, ranks) for ranks in (1, 2) for n in (8, 16, 32, 64, 128, 256)]
    summary = summary_of(tmp_path / "run", points, steps=3)
    found = summary.rows("models")
    assert [(model.unit, model.series) for model in found] == [("n", "1 ranks"), ("n", "2 ranks")]
    steps = [law for law in summary.rows("laws") if law.part == "step"]
    for ranks, (model, step) in enumerate(zip(found, steps, strict=True), 1):
        assert model.sizes == (8, 16, 32, 64, 128, 256)
        assert (model.first, step.terms) == ("", ("{}", "{}·p log₂ p"))
        assert step.coefficients_s == pytest.approx((0.1 / ranks, 0.002 / ranks), rel=0.03)
    assert [row.size for row in ahead(summary)] == [512, 1024] * 2
    assert summary.law_predictions[["efficiency", "cores"]].isna().all(axis=None)
    assert summary.named_laws.empty
    titles = [table.title for table in tables(summary)]
    assert titles == [f"Model (p: n; at 512 and 1,024): {ranks} ranks" for ranks in (1, 2)]
    assert [model.asked for model in Findings(summary.source, predict=[64]).rows("models")] == [(), ()]


def test_numbers_beyond_any_machine_word_have_a_law_as_far_as_it_can_be_computed(tmp_path):
    def at(n, place):
        return replace(solver(8), workload=replace(solver(n).workload, params={"n": str(n)}), label=f"n {n}",
                       compute_s=0.1 * (1 + 2**place))  # fmt: skip

    step = laws(summary_of(tmp_path / "a", [at(2 ** (62 + place), place) for place in range(6)]))["step"]
    assert step.terms == ("{}", "{}·p")
    assert step.coefficients_s[1] == pytest.approx(0.1 / 2**62, rel=0.02)
    assert summary_of(tmp_path / "b", [at(10 ** (300 + place), place) for place in range(6)]).models.empty


def test_a_swept_number_has_no_law_with_four_values_or_where_other_settings_differ_or_series_are_enough(
    tmp_path, monkeypatch
):
    def found(name, points):
        return len(summary_of(tmp_path / name, points, repeats=1, steps=2).models)

    assert found("four", [solver(n) for n in (8, 16, 32, 64)]) == 0
    other = [solver(n, k=k) for n, k in ((8, 1), (16, 1), (32, 1), (8, 2), (64, 2), (128, 2))]
    assert found("other", other) == 0
    two = [load(write_run(tmp_path / f"{n}", [solver(n), solver(2 * n), solver(4 * n)])) for n in (8, 64)]
    assert Findings(overlay(two, tmp_path / "two")).models.empty
    five = load(write_run(tmp_path / "five", [solver(n) for n in (8, 16, 32, 64, 128)]))
    assert len(Findings(five).models) == 1
    bare = [case | {"model": {"kind": "collectives"}} for case in five.document["cases"]]
    assert rows(replace(five, document=five.document | {"cases": bare}), Findings(five).rows("cases")) == []
    monkeypatch.setattr("pscale.analysis.predictions.MOST_SERIES", 1)
    assert found("many", [solver(n, ranks) for ranks in (1, 2) for n in (8, 16, 32, 64, 128)]) == 1
