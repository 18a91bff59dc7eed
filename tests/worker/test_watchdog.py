"""For how long a rank may make no progress, and what it reports then."""

import json
import threading
from itertools import count
from types import SimpleNamespace

import pytest
from patience import LIMIT_S

from pscale.worker.watchdog import Watchdog, watchdog

RANK = SimpleNamespace(world=SimpleNamespace(rank=1, size=2, name="dp"), sizes={"dp": 2})


def recorder(*, step_s=None, step=3, progress=lambda: 0):
    """Return what a rank at a step has recorded."""
    return SimpleNamespace(
        median_step_s=lambda: step_s,
        place=lambda: (step, "sync"),
        progress=progress,
        last_call=lambda: {"step": 2, "axis": "dp", "verb": "all_reduce"},
    )


@pytest.mark.parametrize(
    ("recorded", "limit_s"),
    [
        (recorder(step_s=1.0), 60),
        (recorder(step_s=10.0), 200),
        (recorder(), 600),
        (recorder(step_s=10.0, step=None), 600),
    ],
    ids=["short steps", "long steps", "no step yet", "outside of steps"],
)
def test_a_rank_may_make_no_progress_for_a_minute_or_20_steps_and_longer_where_nothing_is_known(
    tmp_path, recorded, limit_s
):
    assert Watchdog(recorded, RANK, tmp_path, 60.0).limit_s() == limit_s


def hangs(over):
    over.wait(LIMIT_S)


def test_a_rank_that_hangs_leaves_its_last_call_and_its_stack(tmp_path):
    over = threading.Event()

    def tell():
        while not list(tmp_path.glob("hang-*.jsonl")):
            over.wait(0.01)
        over.set()

    telling = threading.Thread(target=tell)
    telling.start()
    with watchdog(recorder(step_s=0.001), RANK, tmp_path, 0.05):
        hangs(over)
    telling.join()
    (path,) = tmp_path.glob("hang-*.jsonl")
    report = json.loads(path.read_text())
    assert (report["rank"], report["ranks"], report["step"], report["phase"]) == (1, 2, 3, "sync")
    assert report["last_call"] == {"step": 2, "axis": "dp", "verb": "all_reduce"}
    assert any("hangs: over.wait(LIMIT_S)" in line for line in report["stack"])
    assert report["still_s"] >= 0


def test_a_rank_that_makes_progress_reports_nothing(tmp_path):
    steps = count()
    with watchdog(recorder(step_s=0.001, progress=lambda: next(steps)), RANK, tmp_path, 0.02):
        threading.Event().wait(0.2)
    assert not list(tmp_path.iterdir())
