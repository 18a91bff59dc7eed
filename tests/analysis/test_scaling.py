from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Workload
from pscale.report.brief import Answer, card


def by_ranks(summary):
    return {point.ranks: point for point in summary.rows("cases")}


def test_weak_efficiency_is_the_base_time_over_the_time(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=1), Point(ranks=4, transfer_s=0.025)])
    four = by_ranks(summary)[4]
    assert four.step_s.value == pytest.approx(0.125)
    assert four.efficiency.value == pytest.approx(0.8)
    assert four.speedup.value == pytest.approx(3.2)
    assert (four.efficiency.low, four.efficiency.high) == pytest.approx((0.8, 0.8))
    assert four.samples_per_s.value == pytest.approx(16 / 0.125)
    assert four.tokens_per_s.value == pytest.approx(16 * 256 / 0.125)
    assert four.gflops == pytest.approx(16 / 0.125)
    assert four.peak_fraction == pytest.approx(16 * 1.2 / 0.125 / 400)


def test_a_case_that_trains_on_no_samples_has_no_batch(tmp_path):
    run = summary_of(tmp_path / "run", [Point(ranks=1)]).source
    (planned,) = run.document["cases"]
    cases = run.cases.assign(batch=float("nan"))
    found = Findings(replace(run, document={**run.document, "cases": [planned | {"train": {}}]}, cases=cases))
    assert [case.batch for case in found.rows("cases")] == [None]


def test_a_launch_whose_work_is_unknown_leaves_the_efficiency_in_lists_as_it_is(tmp_path):
    points = [Point(ranks=1), Point(ranks=4, transfer_s=0.025)]
    folder = write_run(tmp_path / "run", points, repeats=2, joined=True)
    file = folder / "data" / "cases.parquet"
    rows = pq.read_table(file)
    place, known = rows.schema.get_field_index("model_flops"), rows.select(["case", "repeat", "model_flops"])
    left = [
        each["model_flops"] if each["case"] == points[0].case.id or each["repeat"] else None
        for each in known.to_pylist()
    ]
    pq.write_table(rows.set_column(place, rows.schema.field(place), pa.array(left, pa.float64())), file)
    assert card(folder).value == pytest.approx(0.8)


def test_strong_efficiency_is_the_base_core_time_over_the_core_time(tmp_path):
    points = [
        Point(ranks=ranks, scaling="strong", compute_s=0.8 / ranks, transfer_s=0.05 if ranks == 8 else 0)
        for ranks in (2, 4, 8)
    ]
    found = by_ranks(summary_of(tmp_path / "run", points))
    assert found[2].base
    assert found[4].efficiency.value == pytest.approx(1.0)
    assert found[8].efficiency.value == pytest.approx(0.4 * 2 / (0.15 * 8))
    assert found[8].speedup.value == pytest.approx(0.4 / 0.15)


def test_the_base_is_the_case_that_the_suite_names(tmp_path):
    points = [Point(ranks=1, compute_s=0.05), Point(ranks=2, base=True), Point(ranks=4, transfer_s=0.1)]
    found = by_ranks(summary_of(tmp_path / "run", points))
    assert [found[ranks].base for ranks in (1, 2, 4)] == [False, True, False]
    assert found[1].efficiency.value == pytest.approx(2.0)
    assert found[4].efficiency.value == pytest.approx(0.5)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.figure
def test_a_base_that_failed_leaves_its_series_without_efficiency_and_the_ten_lines_say_so(tmp_path, named):
    points = [Point(ranks=1, base=named, status="failed", reason="died"), Point(ranks=2), Point(ranks=4)]
    summary = summary_of(tmp_path / "run", points)
    assert [point.efficiency for point in summary.rows("cases")] == [None, None, None]
    assert by_ranks(summary)[4].step_s.value == pytest.approx(0.1)
    assert "base case (dp 1 ranks: failed) was not measured" in summary.rows("verdicts")[0].scaling_text
    (line,) = Answer.of(summary).lines
    assert (line.size, line.figure, line.judged) == (
        "4 ranks",
        "160 samples/s",
        "no efficiency: 1 rank failed",
    )
    assert card(tmp_path / "run").metric == "samples_per_s"


@pytest.mark.figure
def test_a_base_that_this_machine_has_no_memory_for_is_replaced_and_the_ten_lines_name_the_other(tmp_path):
    points = [
        Point(ranks=1, status="skipped", reason="memory"),
        Point(ranks=2),
        Point(ranks=4, transfer_s=0.1),
    ]
    summary = summary_of(tmp_path / "run", points)
    assert by_ranks(summary)[4].efficiency.value == pytest.approx(0.5)
    assert Answer.of(summary).lines[0].figure == "50.0% ± 0.0% of 2 ranks"
    assert card(tmp_path / "run").value == pytest.approx(0.5)


@pytest.mark.figure
def test_the_ten_lines_say_that_the_largest_size_failed(tmp_path):
    points = [Point(ranks=1), Point(ranks=2), Point(ranks=4, status="failed", reason="died")]
    assert Answer.of(summary_of(tmp_path / "run", points)).lines[0].size == "2 ranks (4 ranks failed)"


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.figure
def test_efficiency_is_stated_work_per_core_second_and_rounded_sizes_without_it_are_warned_of(
    tmp_path, stated
):
    sizes = {1: 10, 2: 13, 4: 16}  # of a cube, which should have ranks * 10 ** 3 cells
    points = [
        Point(
            ranks=ranks,
            workload=Workload(command="solver", params={"n": n}, work=float(n**3) if stated else None),
            row={"step_s": n**3 / ranks * 1e-4, "model_flops": None},
        )
        for ranks, n in sizes.items()
    ]
    summary = summary_of(tmp_path / "run", points)
    known = [point.efficiency.value for point in summary.rows("cases")]
    expected = [1.0, 1.0, 1.0] if stated else [1.0, 2000 / 2197, 4000 / 4096]
    assert known == pytest.approx(expected)
    assert [
        warning.text for warning in summary.rows("warnings") if warning.kind == "work"
    ] == [] or not stated
    assert stated or any("n differs between sizes" in warning.text for warning in summary.rows("warnings"))
    assert card(tmp_path / "run").value == pytest.approx(expected[-1])


def test_series_have_bases_of_their_own(tmp_path):
    points = [
        Point(series=series, ranks=ranks, compute_s=time)
        for series, time in (("a", 0.1), ("bb", 0.3))
        for ranks in (1, 2)
    ]
    summary = summary_of(tmp_path / "run", points)
    assert [point.efficiency.value for point in summary.rows("cases")] == pytest.approx([1, 1, 1, 1])
    assert [verdict.series for verdict in summary.rows("verdicts")] == ["a", "bb"]


def test_throughput_has_rates_and_no_efficiency(tmp_path):
    summary = summary_of(tmp_path / "run", [Point(ranks=ranks, scaling="throughput") for ranks in (1, 2)])
    assert [point.efficiency for point in summary.rows("cases")] == [None, None]
    assert not any(point.base for point in summary.rows("cases"))
    assert summary.rows("verdicts")[0].scaling_text == "At 2 ranks it trains 640 samples/s."


def test_launches_that_did_not_end_well_are_listed_and_never_averaged_in(tmp_path):
    points = [
        Point(ranks=1),
        Point(ranks=2, bad_repeats=(1,), reason="lost a node"),
        Point(ranks=4, status="invalid", reason="ranks share a core"),
        Point(ranks=8, only_repeats=()),
    ]
    summary = summary_of(tmp_path / "run", points)
    found = by_ranks(summary)
    assert [found[ranks].status for ranks in (1, 2, 4, 8)] == ["ok", "ok", "invalid", "pending"]
    assert (found[2].launches, found[2].failed, found[2].pending) == (2, 1, 0)
    assert found[8].pending == 3
    assert found[4].step_s is None
    assert [(failure.status, failure.reason, failure.repeats) for failure in summary.rows("failures")] == [
        ("failed", "lost a node", (1,)),
        ("invalid", "ranks share a core", (0, 1, 2)),
    ]
    assert not summary.passed


@pytest.mark.parametrize("repeat", [0, 1])
def test_the_figures_of_an_invalid_launch_count_nowhere(tmp_path, repeat):
    points = [Point(ranks=1), Point(ranks=2, transfer_s=0.1, bad_repeats=(repeat,), bad_status="invalid")]
    summary = summary_of(tmp_path / "run", points, repeats=2)
    two = by_ranks(summary)[2]
    assert two.efficiency.value == pytest.approx(0.5)
    assert (two.gflops, two.startup_s) == pytest.approx((8 / 0.2, 0.5))
    assert [*summary.of_case("efficiency").values()][1].parallel.value == pytest.approx(0.5)
    assert sum(time.compute_s for time in summary.rows("phases") if time.case == two.case) == pytest.approx(
        0.1
    )
    assert set(summary.wait["repeat"]) == {1 - repeat}


def test_strong_efficiency_needs_no_count_of_flops(tmp_path):
    row = {"model_flops": None}
    points = [Point(ranks=r, scaling="strong", compute_s=0.8 / r, row=row) for r in (1, 4)]
    assert by_ranks(summary_of(tmp_path / "run", points))[4].efficiency.value == pytest.approx(1.0)


def test_single_launches_have_no_interval_and_the_report_says_why(tmp_path):
    summary = summary_of(
        tmp_path / "run", [Point(ranks=1, noise=0.01), Point(ranks=2, noise=0.01)], repeats=1
    )
    assert by_ranks(summary)[2].efficiency.value == pytest.approx(1, rel=0.05)
    assert by_ranks(summary)[2].efficiency.low is None
    assert any("one launch" in note and "repeat: 3" in note for note in summary.notes)


def test_a_launch_without_rows_of_steps_counts_with_the_step_time_it_states(tmp_path):
    folder = tmp_path / "run"
    summary_of(folder, [Point(ranks=1), Point(ranks=2)], repeats=1)
    for part in (folder / "data").glob("steps-*.parquet"):
        part.unlink()
    two = by_ranks(Findings(load(folder)))[2]
    assert two.efficiency.value == pytest.approx(1.0)
    assert two.efficiency.low is None
