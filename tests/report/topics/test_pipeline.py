from dataclasses import replace

import pytest
from page_reader import read
from pictures import fitting
from synthetic import Point, write_run

from pscale.analysis.columns import row
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.timeline import MOST_RANKS, timeline
from pscale.config import Plan
from pscale.report import drawing
from pscale.report.exports import csv_tables
from pscale.report.page import inline_figures, render_page
from pscale.report.topics.steps import timeline_figure as figure
from pscale.runs.store import write_part

MS = 1e-3
STEP_MS = 100.0


def events(ranks, steps, slow_step=None):
    """Return notes of steps of 100 ms, one of them twice as long: forward, a wait in it, backward, sync."""
    rows, began = [], 0.0
    for step in range(steps):
        factor = 2 if step == slow_step else 1
        for rank in range(ranks):
            for kind, label, enter, leave, wait in (
                ("call", "all_reduce", 10, 40, 20),
                ("call", "all_reduce", 40, 40.01, 0),
                ("phase", "forward 0", 0, 50, 0),
                ("injected", "", 55, 60, 0),
                ("phase", "weight 1.2", 50, 80, 0),
                ("phase", "sync", 80, 99, 0),
                ("step", "", 0, 100 - rank, 0),
            ):
                phase = {"weight 1.2": "backward", "sync": "sync"}.get(label, "forward")
                times = {"enter_s": enter, "leave_s": leave}
                row = {
                    "rank": rank,
                    "step": step,
                    "kind": kind,
                    "label": label,
                    "phase": phase,
                    "request": -1,
                }
                row |= {"axis": "pp", "verb": "all_reduce", "group": 0, "partner": -1, "bytes": 8}
                rows.append(row | {name: (began + at * factor) * MS for name, at in times.items()})
                rows[-1]["wait_s"] = wait * factor * MS
        began += STEP_MS * factor
    return rows


def run_of(folder, traced, bare=(), slow_step=None):
    """Write a run in which the launches of some points, in the order of the suite, were traced."""
    path = write_run(folder, [*traced, *bare], repeats=2, steps=5)
    for point in traced:
        for repeat in range(2):
            rows = events(point.ranks, 5, slow_step)
            key = {"case": point.case.id, "repeat": repeat}
            write_part(path / "data", "events", point.case.id, repeat, [key | row for row in rows])
    return load(path)


def piped(ranks, schedule="1f1b", **more):
    return Point(
        ranks=ranks, plan=Plan(dp=1, pp=ranks, schedule=schedule), label=f"{schedule} {ranks}", **more
    )


def test_pipelines_on_most_ranks_are_shown_each_plan_once_and_a_typical_step_of_each(tmp_path):
    kinds = [Point(ranks=8), piped(2), piped(4), piped(4, "gpipe"), replace(piped(4), series="other")]
    run = run_of(tmp_path / "run", kinds, bare=[piped(4, "zero-bubble")])
    steps = Findings(run).by_case("timeline").values()
    assert [step[0].label for step in steps] == ["1f1b 4", "gpipe 4"]
    for step in steps:
        assert {(span.repeat, span.stages) for span in step} == {(0, 4)}
        assert {span.rank for span in step} == {0, 1, 2, 3}


def test_a_launch_that_is_slow_at_first_is_shown_later(tmp_path):
    point = replace(piped(2), spikes_s={0: 1.0})
    spans = timeline(run_of(tmp_path / "run", [point], slow_step=0))
    ((step, length_s),) = {(span.step, span.length_s) for span in spans}
    assert step > 0
    assert length_s == pytest.approx(STEP_MS * MS)


def test_spans_are_timed_from_the_beginning_of_their_step_and_what_nobody_could_see_is_left_out(tmp_path):
    spans = timeline(run_of(tmp_path / "run", [piped(4)]))
    of_rank_1 = [span for span in spans if span.rank == 1]
    told = [(span.kind, span.micro, span.part, span.start_s * 1e3, span.stop_s * 1e3) for span in of_rank_1]
    assert [each[:3] for each in told] == [
        ("wait", None, 0),
        ("exchange", None, 0),
        ("forward", 0, 0),
        ("injected", None, 0),
        ("weight", 1, 2),
        ("sync", None, 0),
    ]
    assert [each[3:] for each in told] == [
        pytest.approx(times) for times in ((10, 30), (30, 40), (0, 50), (55, 60), (50, 80), (80, 99))
    ]


def test_of_very_many_ranks_some_are_shown(tmp_path):
    spans = timeline(run_of(tmp_path / "run", [piped(3 * MOST_RANKS)]))
    assert {span.rank for span in spans} == set(range(0, 3 * MOST_RANKS, 3))


def test_a_run_without_notes_has_nothing_to_show(tmp_path):
    summary = Findings(run_of(tmp_path / "run", [], bare=[Point(ranks=2)]))
    assert summary.timeline.empty
    assert figure(summary) is None
    assert not any("pscale trace" in note for note in summary.notes)


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    return Findings(run_of(tmp_path_factory.mktemp("traced") / "run", [piped(4), piped(4, "gpipe")]))


def test_bars_lie_where_the_spans_say_and_tell_their_micro_batch(summary):
    with drawing.styled():
        picture = figure(summary)
    axes = picture.axes[0]
    spans = [span for span in summary.rows("timeline") if span.label == "1f1b 4" and span.rank == 0]
    drawn = [path.get_extents() for each in axes.collections for path in each.get_paths()]
    first_row = sorted((box.x0, box.x1) for box in drawn if -0.5 < (box.y0 + box.y1) / 2 < 0.5)
    known = sorted((span.start_s, span.stop_s) for span in spans)
    assert [pytest.approx(found) for found in first_row] == known
    numbers = [text for text in axes.texts if text.get_position()[1] == 0]
    assert [(text.get_text(), text.get_position()[0]) for text in numbers] == [
        ("0", pytest.approx(0.040)),  # in the middle of what is left after the wait
        ("1", pytest.approx(0.065)),
    ]
    assert {text.get_text() for text in picture.legends[0].get_texts()} == {
        *("forward", "weight gradients, deferred", "sync", "wait", "in a call (transfer)", "injected delay")
    }


@pytest.mark.parametrize("ranks", [2, 64])
def test_labels_neither_overlap_nor_leave_the_picture(summary, ranks):
    first, other = summary.by_case("timeline").values()
    same = other[0]._asdict() | {"repeat": 0, "step": 3, "stages": 2, "length_s": 2.0, "part": 0}
    crowded = [
        row(
            "timeline",
            **same | {"rank": rank, "kind": kind, "micro": micro, "start_s": start, "stop_s": start + 0.06},
        )
        for rank in range(ranks)
        for micro in range(16)
        for kind, start in (("forward", 0.12 * micro), ("backward", 0.12 * micro + 0.06))
    ]
    with drawing.styled():
        assert fitting(figure(summary.replaced(timeline=[*first, *crowded])))


def test_the_report_of_a_traced_run_says_that_there_is_more_to_see(summary):
    assert any("pscale trace" in note for note in summary.notes)


def test_the_data_of_the_picture_can_be_had_as_a_table(summary):
    with drawing.styled():
        drawn = {"timeline": drawing.place(figure(summary))}
    page = read(render_page(summary, inline_figures(drawn)))
    (folded,) = [
        each for each in page.all("details") if "What every rank did" in each.all("summary")[0].words
    ]
    ranks = sum(len({span.rank for span in step}) for step in summary.by_case("timeline").values())
    assert len(folded.all("tbody")[0].all("tr")) == ranks
    table = csv_tables(summary)["timeline"].splitlines()
    assert table[0] == "case,label,repeat,step,stages,length_s,rank,kind,micro,part,start_s,stop_s"
    assert len(table) - 1 == len(summary.timeline)
