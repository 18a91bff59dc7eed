import json
from pathlib import Path

import pytest
from synthetic import Point, summary_of, write_run

from pscale.analysis import frames as module
from pscale.analysis.columns import FRAMES, frame, rows
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load, records, seeds_as_launches, shortened, steps
from pscale.config import Plan
from pscale.errors import ResultsError
from pscale.report.exports import csv_text, render_json
from pscale.report.markup import render_markdown
from pscale.report.page import render_page
from pscale.runs.store import read_table

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"


@pytest.fixture
def run(tmp_path):
    return write_run(
        tmp_path / "suite" / "run", [Point(ranks=1), Point(ranks=2)], repeats=2, steps=3, joined=False
    )


def test_a_run_is_read_with_small_keys_and_categories(run):
    found = load(run)
    assert len(found.cases) == 4
    for table in (found.phases, found.ends, found.seats, found.calls):
        assert str(table["case"].dtype) == "category"
        assert str(table["repeat"].dtype) == "int32"
    assert not found.pending


def test_sums_of_steps_and_calls_are_those_of_their_rows(run):
    """A straightforward sum of all rows that are stored, by the library that is made for it."""
    found, seat = load(run), ["case", "repeat", "rank"]
    rows = {table: read_table(run / "data", table).to_pandas() for table in ("steps", "calls")}
    times = ["compute_s", "transfer_s", "wait_s", "copy_s", "hidden_s", "wall_s"]
    assert_same(found.phases, rows["steps"].groupby([*seat, "phase"])[times].sum())
    assert_same(found.ends, rows["steps"].groupby(["case", "repeat", "step"])[["end_s"]].max())
    assert_same(found.seats, rows["steps"].groupby(seat)[["step"]].nunique().set_axis(["steps"], axis=1))
    sums = ["count", "bytes", "transfer_s", "wait_s"]
    assert_same(found.calls, rows["calls"].groupby(["case", "repeat", "axis", "verb"])[sums].sum())


def assert_same(found, expected):
    keys, columns = list(expected.index.names), list(expected.columns)
    texts = {name: str for name in keys if not name.startswith(("repeat", "rank", "step"))}
    table = found.astype(texts).set_index(keys)[columns].sort_index()
    assert list(table.index) == list(expected.index)
    assert table.to_numpy(float) == pytest.approx(expected.to_numpy(float), nan_ok=True)


def test_cases_that_differ_in_the_seed_alone_are_launches_of_one_case(tmp_path):
    points = [
        Point(
            ranks=ranks,
            compute_s=0.1 * seed,
            train={"seed": seed},
            series=f"dp · seed {seed}",
            label=f"{ranks} ranks · seed {seed}",
            losses=[3.0, seed],
            only_repeats=(0,) if seed == 3 else None,
        )
        for ranks in (1, 2)
        for seed in (1, 2, 3)
    ]
    first, *_, last = [point.case.id for point in points]
    expect = [{"metric": "efficiency", "at_least": 0.5, "cases": [last]}]
    run = load(write_run(tmp_path / "run", points, repeats=2, steps=3, expect=expect))
    found, by_seed = Findings(run, short=True), Findings(run)
    assert [(row.label, row.series, row.launches, row.pending) for row in found.rows("cases")] == [
        ("1 ranks", "dp", 5, 1),
        ("2 ranks", "dp", 5, 1),
    ]
    assert found.launches == by_seed.launches == 10
    assert found.launch_steps_s[first] == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3])
    assert found.case(first).losses == pytest.approx((3.0, 9 / 5))
    assert [row.label for row in found.rows("expectations")] == ["2 ranks"]
    for repeat, seed in ((0, 1), (1, 1), (2, 2), (3, 2), (4, 3)):
        whole = steps(found.source, first, repeat)
        assert whole["compute_s"].max() == pytest.approx(0.6 * 0.1 * seed)
        assert {*whole["repeat"]} == {repeat}
    assert len(steps(found.source, first)) == 5 * 3 * 5
    assert seeds_as_launches(by_seed.source).planned.keys() == found.source.planned.keys()


def test_launches_without_a_row_are_pending_and_half_written_parts_do_not_count(run):
    case = load(run).cases["case"][0]
    part = run / "data" / f"cases-{case}-1.parquet"
    part.rename(part.with_suffix(".tmp"))
    assert load(run).pending == {case: 1}


def test_a_run_without_any_row_is_all_pending(tmp_path):
    run = write_run(tmp_path / "run", [Point(ranks=1, only_repeats=())], repeats=3)
    assert load(run).pending.total() == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not written by pscale"),
        ('{"format": 99, "cases": []}', "upgrade pscale"),
        ('{"format": 1, "cases": [{}]}', "expected a name"),
    ],
)
def test_a_folder_that_is_no_run_says_what_it_is_instead(run, content, said):
    file = run / "run.json"
    file.write_text(content)
    with pytest.raises(ResultsError, match=said):
        load(run)


def test_a_missing_folder_and_a_run_without_data_say_what_to_do(run, tmp_path):
    with pytest.raises(ResultsError, match="no such folder; name a run"):
        load(tmp_path / "nothing")
    (run / "data").rename(run / "elsewhere")
    with pytest.raises(ResultsError, match="run the suite again"):
        load(run)


KINDS = {"text": "O", "texts": "O", "series": "O", "flag": "b", "count": "iu", "size": "iu"}


@pytest.mark.parametrize("run", ["weak", "pipeline", "endings", "communication"])
def test_every_frame_has_the_declared_columns_in_their_units(run):
    findings = Findings(load(GALLERY / run))
    for name, declared in FRAMES.items():
        table = getattr(findings, name)
        ends = {True: ("", "_low", "_high"), False: ("",)}
        columns = [f"{each}{end}" for each, of in declared.columns.items() for end in ends[of.bounded]]
        assert [column for column in table if column in columns] == columns, name
        assert name == "cases" or len(table.columns) == len(columns), name
        for column, of in declared.columns.items():
            assert table[column].dtype.kind in KINDS.get(of.unit, "f"), f"{name}.{column}"
            assert of.unit != "share" or not (table[column] < 0).any(), f"{name}.{column}"


def test_an_unknown_flag_stays_unknown_in_frames_rows_and_files():
    given = [{"case": "a", "firm": True}, {"case": "b", "firm": False}, {"case": "c"}]
    table = frame("verdicts", given, {})
    assert [each.firm for each in rows("verdicts", table)] == [True, False, None]
    assert [each["firm"] for each in records(table)] == [True, False, None]
    assert csv_text(table[["case", "firm"]]).split() == ["case,firm", "a,True", "b,False", "c,"]


def test_a_launch_that_begins_with_another_loss_than_the_serial_one_is_invalid_and_not_averaged_in(tmp_path):
    points = [
        Point(ranks=1, scaling="strong", losses=[3.0, 2.0]),
        Point(ranks=2, scaling="strong", losses=[3.0000001, 2.1]),
        Point(ranks=4, scaling="strong", losses=[3.01, 2.0]),
    ]
    summary = summary_of(tmp_path / "run", points)
    assert [point.status for point in summary.rows("cases")] == ["ok", "ok", "invalid"]
    (failure,) = summary.rows("failures")
    assert failure.repeats == (0, 1, 2)
    assert "its first loss is 3.01, but 3 on 1 rank" in failure.reason
    assert summary.rows("cases")[2].step_s is None


def test_cases_that_train_something_else_may_lose_something_else(tmp_path):
    points = [Point(ranks=ranks, losses=[3.0 + ranks]) for ranks in (1, 2)]  # weak: a larger batch
    assert summary_of(tmp_path / "run", points).complete


SHOWN = 4
OF_THE_RUN = {"wait", "failures", "ranking", "choices"}  # or of what is shown beside each other


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Series of sizes: `bb` fails on most ranks, `ccc` everywhere, and `b` is `a` in 16 bits."""
    points = [
        Point(ranks=ranks, series=series, status=status, noise=0.2, dtype=dtype, only_repeats=repeats)
        for series, ranks, status, dtype, repeats in (
            *(("a", ranks, "ok", "float32", None) for ranks in (1, 2, 4)),
            *(("bb", ranks, "ok", "float32", None) for ranks in (1, 2, 4)),
            ("bb", 8, "timeout", "float32", None),
            *(("ccc", ranks, "failed", "float32", None) for ranks in (1, 2)),
            *(("b", ranks, "ok", "bf16", (0,)) for ranks in (1, 2)),
        )
    ]
    expect = [
        {"metric": "efficiency", "at_least": 0.1, "cases": [points[place].case.id]} for place in (1, -1)
    ]
    folder = tmp_path_factory.mktemp("many") / "run"
    return load(write_run(folder, points, repeats=2, steps=4, expect=expect))


@pytest.fixture
def short(many, monkeypatch):
    monkeypatch.setattr(module, "MANY", 5)
    monkeypatch.setattr(module, "SHOWN", SHOWN)
    return Findings(many, short=True)


def test_a_run_of_few_cases_is_shown_whole(many):
    assert shortened(many) is many


def test_of_very_many_cases_the_first_are_shown_with_those_that_the_sentence_on_their_series_is_about(short):
    first = ["a 1 ranks", "a 2 ranks", "a 4 ranks", "bb 1 ranks"]
    assert [point.label for point in short.rows("cases")] == [*first, "bb 4 ranks", "bb 8 ranks"]
    assert "1 larger case has no result" in short.rows("verdicts")[1].scaling_text


def test_what_is_said_of_a_case_that_is_shown_is_what_is_said_of_it_in_the_whole_run(short, many):
    whole, cases = Findings(many), {point.case for point in short.rows("cases")}
    compared = 0
    for name in {*whole.names} - {*OF_THE_RUN}:
        value, mine = (each.rows(name) if name in FRAMES else getattr(each, name) for each in (whole, short))
        if not isinstance(value, tuple | list):
            continue
        of_cases = [finding for finding in value if getattr(finding, "case", None) in cases]
        assert [finding for finding in mine if getattr(finding, "case", "")] == of_cases, name
        compared += len(of_cases)
    assert compared > 50


def test_launches_and_failures_are_those_of_the_whole_run_and_where_the_rest_is_to_be_had_is_said(
    short, many
):
    assert short.launches == len(many.cases)
    assert (short.pending, short.unsuccessful) == (many.pending.total(), 6)
    assert short.pending > sum(point.pending for point in short.rows("cases"))
    assert {failure.label for failure in short.rows("failures")} == {
        "bb 8 ranks",
        "ccc 1 ranks",
        "ccc 2 ranks",
    }
    said = render_markdown(short)
    assert "the first 4 of 11 cases" in said
    assert "bb 2 ranks" not in said[: said.index("## Notes")]


def test_a_case_that_is_not_shown_is_not_set_beside_one_that_is(short, many):
    whole, shown = (json.loads(render_json(summary))["choices"] for summary in (Findings(many), short))
    assert [each["setting"] for each in whole] == ["float32", "bf16"] * 2
    assert shown == []
    assert render_page(short, {})


# Where the clocks of nodes are too far apart for a wait, it is shown as one with transfer


UNCLEAR = Point(ranks=4, transfer_s=0.010, late_s={3: 0.020}, clock_bound_s=2e-3)  # waits 15 ms on average
CLEAR = Point(ranks=4, series="clear", transfer_s=0.010, late_s={3: 0.020}, clock_bound_s=1.4e-3)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    ranks = {"clock_bound_s": 0.7e-3}
    points = [Point(ranks=1), UNCLEAR, CLEAR]
    points[2] = Point(**{**CLEAR.__dict__, "rank_row": ranks})
    return summary_of(tmp_path_factory.mktemp("nodes") / "run", points)


def of(point, found):
    return [time for time in found if time.case == point.case.id]


def test_wait_and_transfer_of_unclear_calls_are_one_everywhere(two_nodes):
    (call,) = of(UNCLEAR, two_nodes.rows("calls"))
    assert (call.wait_s, call.transfer_s, call.bytes_per_s) == (0, 0, None)
    assert call.wait_or_transfer_s == pytest.approx(0.025)
    (sync,) = [time for time in of(UNCLEAR, two_nodes.rows("phases")) if time.phase == "sync"]
    assert (sync.wait_s, sync.transfer_s) == (0, 0)
    assert sync.wait_or_transfer_s == pytest.approx(0.025)
    slowest, *others = of(UNCLEAR, two_nodes.rows("ranks"))
    assert slowest.wait_or_transfer_s == pytest.approx(0.010)
    assert others[0].wait_or_transfer_s == pytest.approx(0.030)
    (losses,) = of(UNCLEAR, two_nodes.rows("lost_time"))
    assert losses.transfer.value == losses.serialisation.value == 0
    assert losses.imbalance.value == pytest.approx(0.015 / 0.130)  # known from compute alone
    assert losses.wait_or_transfer.value == pytest.approx(0.010 / 0.130)
    assert two_nodes.wait.loc[two_nodes.wait["rank"] == 3, "wait_or_transfer_s"].tolist() == pytest.approx(
        [0.010] * 20
    )
    assert set(two_nodes.wait["wait_s"]) == {0}


def test_a_bound_of_less_than_a_tenth_of_the_wait_keeps_them_separate(two_nodes):
    (call,) = of(CLEAR, two_nodes.rows("calls"))
    assert call.wait_or_transfer_s == 0
    assert (call.wait_s, call.transfer_s) == pytest.approx((0.015, 0.010))
    assert all(time.wait_or_transfer_s == 0 for time in of(CLEAR, two_nodes.rows("phases")))
    assert [warning.case for warning in two_nodes.rows("warnings") if warning.kind == "clock"] == [
        UNCLEAR.case.id
    ]


def test_the_bubble_of_a_pipeline_is_unknown_where_clocks_do_not_tell_its_waits(tmp_path):
    stages = {"ranks": 4, "plan": Plan(dp=1, pp=4), "axis": "pp", "transfer_s": 0.010, "late_s": {3: 0.020}}
    points = [Point(**stages, series="clear"), Point(**stages, clock_bound_s=2e-3)]
    bubbles = summary_of(tmp_path / "run", points).of_case("bubbles")
    clear, unclear = (bubbles[point.case.id] for point in points)
    assert clear.measured == pytest.approx(0.015 / 0.130)
    assert unclear.measured is None


def test_the_report_states_the_bound_and_shows_the_sum_of_what_it_cannot_separate(two_nodes):
    text = render_markdown(two_nodes)
    assert "by at most 700 µs" in text
    assert (
        "Calls of all-reduce on dp wait 15 ms on average, but the clocks of the nodes agree only to 2 ms"
        in text
    )
    assert "|  | sync | 19.2% | 0 | 0 | 0 | 25 ms |" in text
    header, _, *rows = text[text.index("## Communication") :].splitlines()[2:6]
    assert "| transfer | wait | wait + transfer |" in header
    assert "| - | - | 25 ms |" in rows[0]
    assert "| 10 ms | 15 ms | - |" in rows[1]
