"""What is said first of many series: nothing of what was not measured, and nothing twice."""

from dataclasses import replace

import pytest
from synthetic import Point, write_run

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.messages import of_series
from pscale.config import Workload
from pscale.config.workload import Figure
from pscale.report.blocks import Headlines, Listing
from pscale.report.topics.headline import TOPIC

TIMED = Workload(command="solver", step_time="t", figures={"t": Figure(regex="(.*)", unit="s")})


def many(folder, **settings):
    points = [
        Point(
            ranks=ranks,
            series="s" * series,
            compute_s=0.1 * ranks**0.1,
            row={"step_s": 0.1 * ranks**0.1},
            **settings,
        )
        for series in range(1, 7)
        for ranks in (1, 2)
    ]
    return load(write_run(folder, points, repeats=3, steps=3))


def without_breakdown(run):
    """Return a run whose programs told the times of their launches alone."""
    empty = {
        name: getattr(run, name).iloc[:0]
        for name in ("phases", "seats", "ends", "waited", "caused_waits", "calls")
    }
    return replace(run, **empty)


def blocks(summary):
    """Return the head of the page, and its other blocks."""
    head, *others = TOPIC.section(summary, {}).blocks
    assert isinstance(head, Headlines)
    return head, others


@pytest.mark.figure
def test_of_series_whose_losses_were_not_measured_none_is_named_and_the_advice_to_measure_comes_once(
    tmp_path,
):
    summary = Findings(without_breakdown(many(tmp_path / "run", workload=TIMED)))
    (overview, of_all) = blocks(summary)[0].lines
    assert overview[1].startswith("Efficiencies of 6 series at their largest size range from 93.3%")
    assert "with a median of" in overview[1]
    assert of_all[0] == "every series"
    assert of_all[1].startswith(
        "The main loss is unknown, because steps have no breakdown. To see it, record"
    )
    assert sum("no breakdown" in line.text for line in summary.headlines) == 1
    assert len(summary.headlines) == 7


@pytest.mark.figure
def test_what_the_losses_of_several_series_mean_comes_once(tmp_path):
    known = Findings(many(tmp_path / "run")).rows("verdicts")
    own = [
        each._replace(loss_text=f"{7 + place}% of the step.", meaning="Cores wait.")
        for place, each in enumerate(known)
    ]
    *lines, of_all = of_series([*own[:-1], own[-1]._replace(meaning="None waits.")])
    assert of_all.text.startswith("Where the main loss is slower compute: Cores wait. Advice: ")
    assert [line.text.endswith("% of the step.") for line in lines] == [True] * 5 + [False]
    assert lines[-1].text.endswith("None waits.")


@pytest.mark.figure
def test_losses_that_were_measured_are_counted_beside_series_without(tmp_path):
    summary = Findings(many(tmp_path / "run"))
    assert blocks(summary)[0].lines[0][1].endswith("Most often the main loss is slower compute: in 6 of 6.")
    lost = tuple(
        each
        for each in summary.rows("lost_time")
        if each.case not in {v.case for v in summary.rows("verdicts")[:2]}
    )
    some = summary.replaced(lost_time=lost)
    del some.__dict__["verdicts"]
    assert blocks(some)[0].lines[0][1].endswith("Most often the main loss is slower compute: in 4 of 4.")
    tables = {each.table.title: each.table for each in blocks(some)[1] if isinstance(each, Listing)}
    assert [row[1][4] for row in tables["Every series"].rows] == [None] * 2 + ["slower compute"] * 4
