import pytest
from synthetic import Point, summary_of

from pscale.report import shortened as module
from pscale.report.markdown import render_markdown
from pscale.report.page import render_page
from pscale.report.shortened import shortened

SHOWN = 4


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Nine cases of three series, the last of which has failed."""
    points = [
        Point(ranks=ranks, series=series, status="failed" if series == "ccc" else "ok", noise=0.2)
        for series in ("a", "bb", "ccc")
        for ranks in (1, 2, 4)
    ]
    return summary_of(tmp_path_factory.mktemp("many") / "run", points, repeats=1, steps=4)


def test_a_run_of_few_cases_is_shown_whole(many):
    assert shortened(many) is many


def test_of_very_many_cases_the_first_are_shown_and_where_all_are_is_said(many, monkeypatch):
    monkeypatch.setattr(module, "MANY", 5)
    monkeypatch.setattr(module, "SHOWN", SHOWN)
    short = shortened(many)
    cases = {point.case for point in short.points}
    shown = ["a 1 ranks", "a 2 ranks", "a 4 ranks", "bb 1 ranks"]
    assert [point.label for point in short.points] == [*shown, "bb 4 ranks"], "the verdict is on the largest"
    assert [verdict.series for verdict in short.verdicts] == ["a", "bb"]
    for name in ("trees", "phases", "calls", "losses", "remarks"):
        assert {found.case for found in getattr(short, name)} <= cases | {""}
    assert {failure.label for failure in short.failures} == {"ccc 1 ranks", "ccc 2 ranks", "ccc 4 ranks"}
    page = render_markdown(short)
    assert "the first 4 of 9 cases" in page
    assert "bb 2 ranks" not in page[: page.index("## Notes")]
    assert render_page(short, {})
