import json

import pytest
from synthetic import Point, write_run

from pscale.analysis import frames as module
from pscale.analysis.columns import FRAMES
from pscale.analysis.contrasts import CHOICES
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load, shortened
from pscale.report.exports import render_json
from pscale.report.markdown import render_markdown
from pscale.report.page import render_page

SHOWN = 4
OF_THE_RUN = {"wait", "failures", "ranking", *CHOICES}  # or of what is shown beside each other


@pytest.fixture(scope="module")
def run(tmp_path_factory):
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
def short(run, monkeypatch):
    monkeypatch.setattr(module, "MANY", 5)
    monkeypatch.setattr(module, "SHOWN", SHOWN)
    return Findings(run, short=True)


def test_a_run_of_few_cases_is_shown_whole(run):
    assert shortened(run) is run


def test_of_very_many_cases_the_first_are_shown_with_those_that_the_sentence_on_their_series_is_about(short):
    first = ["a 1 ranks", "a 2 ranks", "a 4 ranks", "bb 1 ranks"]
    assert [point.label for point in short.rows("cases")] == [*first, "bb 4 ranks", "bb 8 ranks"]
    assert "1 larger case has no result" in short.rows("verdicts")[1].scaling_text


def test_what_is_said_of_a_case_that_is_shown_is_what_is_said_of_it_in_the_whole_run(short, run):
    whole, cases = Findings(run), {point.case for point in short.rows("cases")}
    compared = 0
    for name in {*whole.names} - {*OF_THE_RUN}:
        value, mine = (each.rows(name) if name in FRAMES else getattr(each, name) for each in (whole, short))
        if not isinstance(value, tuple | list):
            continue
        of_cases = [finding for finding in value if getattr(finding, "case", None) in cases]
        assert [finding for finding in mine if getattr(finding, "case", "")] == of_cases, name
        compared += len(of_cases)
    assert compared > 50


def test_launches_and_failures_are_those_of_the_whole_run_and_where_the_rest_is_to_be_had_is_said(short, run):
    assert short.launches == len(run.cases)
    assert (short.pending, short.unsuccessful) == (run.pending.total(), 6)
    assert short.pending > sum(point.pending for point in short.rows("cases"))
    assert {failure.label for failure in short.rows("failures")} == {
        "bb 8 ranks",
        "ccc 1 ranks",
        "ccc 2 ranks",
    }
    said = render_markdown(short)
    assert "the first 4 of 11 cases" in said
    assert "bb 2 ranks" not in said[: said.index("## Notes")]


def test_a_case_that_is_not_shown_is_not_set_beside_one_that_is(short, run):
    whole, shown = (json.loads(render_json(summary))["precision"] for summary in (Findings(run), short))
    assert [each["precision"] for each in whole] == ["float32", "bf16"] * 2
    assert shown == []
    assert render_page(short, {})
