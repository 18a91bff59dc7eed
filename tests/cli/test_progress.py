"""What is known while launches run: the time that is left, the efficiency so far, the step under way."""

import io

import pytest
from rich.console import Console

from pscale.cli.progress import Known, LaunchProgress, about, showing_share
from pscale.config import Case, Train
from pscale.launch.runner import CaseLaunch
from pscale.runs.run_events import Ended
from pscale.runs.step_counter import StepCounter, counting


def case(ranks, scaling="weak"):
    return Case(
        suite="s", label=f"{ranks} ranks", ranks=ranks, scaling=scaling, train=Train(steps=8, warmup=2)
    )


def end(launch, wall_s=10.0, step_s=1.0, status="ok"):
    case, repeat = launch.key
    return Ended(case=case, repeat=repeat, status=status, reason="killed", wall_s=wall_s, step_s=step_s)


@pytest.fixture
def progress():
    """Return the progress of three launches each of one and of two ranks, and what it knows."""

    def make(*, width=80, counter=None, scaling="weak", clock=lambda: 0.0):
        cases = [case(1, scaling), case(2, scaling)]
        flops = {each.id: float(each.ranks) for each in cases}
        known = Known(flops=flops, costs={cases[0].id: 1.0, cases[1].id: 2.0})
        todo = [CaseLaunch(case=each, repeat=repeat, index=0) for repeat in range(3) for each in cases]
        console = Console(file=io.StringIO(), width=width)
        return LaunchProgress("weak", known, todo, console, counter, clock=clock), todo

    return make


def test_a_launch_under_way_moves_by_its_steps_and_tells_how_long_the_rest_takes(progress):
    now = 100.0
    with counting() as counter:
        seen, todo = progress(counter=counter, clock=lambda: now)
        seen.started(todo[0])
        assert seen.look()["words"] == "0/6 · starting · 9 s left"
        for _ in range(5):
            StepCounter.open(str(counter.path)).add()
        now += 4.0
        look = seen.look()
    assert look["completed"] / look["total"] == pytest.approx(0.5 / 9)
    assert look["words"] == "0/6 · step 5/10 · 68 s left", "4 s, and costs of 2 + 1 + 2 + 1 + 2 at 8 s each"


def test_while_the_record_of_a_launch_is_analysed_its_share_and_the_rest_are_told(progress):
    now = 100.0
    seen, todo = progress(clock=lambda: now)
    seen.started(todo[0])
    seen.analysed(0.1)
    now += 6.0
    seen.analysed(0.25)
    assert "analysing its record, 25%, 18 s left" in seen.look()["words"]
    seen.ended(todo[0], end(todo[0]))
    seen.started(todo[1])
    assert "analysing" not in seen.look()["words"]


def test_launches_that_have_ended_tell_how_long_others_take(progress):
    seen, todo = progress()
    seen.ended(todo[0], end(todo[0], wall_s=10.0))
    seen.started(todo[1])
    assert "80 s left" in seen.look()["words"], "20 + 10 + 20 + 10 + 20"
    seen.ended(todo[1], end(todo[1], wall_s=12.0))
    seen.started(todo[2])
    assert "44 s left" in seen.look()["words"], "10 + 12 + 10 + 12"


@pytest.mark.parametrize(("scaling", "expected"), [("weak", "efficiency 50%"), ("strong", "efficiency 25%")])
def test_the_efficiency_so_far_is_that_of_the_report(progress, scaling, expected):
    seen, todo = progress(scaling=scaling)
    seen.ended(todo[0], end(todo[0], step_s=1.0))
    assert "efficiency" not in seen.look()["words"]
    seen.ended(todo[1], end(todo[1], step_s=2.0))
    assert seen.look()["words"].endswith(expected)


def test_a_failed_launch_is_no_step_time(progress):
    seen, todo = progress()
    seen.ended(todo[0], end(todo[0], step_s=1.0))
    seen.ended(todo[1], end(todo[1], step_s=2.0, status="failed"))
    assert "efficiency" not in seen.look()["words"]


def test_a_count_that_is_not_on_this_host_is_none(tmp_path):
    assert StepCounter.open(str(tmp_path / "none")) is None
    assert StepCounter.open("") is None
    with counting() as counter:
        path = counter.path
    assert not path.exists()


def test_a_time_that_is_left_has_the_unit_that_suits_it():
    assert [about(seconds) for seconds in (4.4, 99, 150, 7300)] == [
        "4 s left",
        "99 s left",
        "2 min left",
        "2.0 h left",
    ]


@pytest.mark.parametrize(("terminal", "expected"), [(True, ["reading", "25%", "0:0"]), (False, [])])
def test_the_share_of_a_work_is_shown_with_a_forecast_on_a_terminal_alone(terminal, expected):
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, _environ={})
    with showing_share("reading", console) as progressed:
        for share in (0.1, 0.2, 0.25):
            progressed(share)
    said = console.file.getvalue()
    assert all(text in said for text in expected)
    assert bool(said) == terminal
