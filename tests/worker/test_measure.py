"""What recording costs is found from steps with and without it in turns."""

from types import SimpleNamespace

import pytest

from pscale.worker import measure
from pscale.worker.recorder import Recorder


def test_steps_with_and_without_recording_take_turns_and_neither_always_comes_first(monkeypatch):
    recorder, now, seen = Recorder(["dp"]), [0.0], []

    def step(index):
        seen.append((index, recorder.enabled, len(recorder)))
        recorder.call("dp", "all_reduce", 8, 0, 1)
        now[0] += 1.02 if recorder.enabled else 1.0  # seconds
        now[0] += 5 * (index == 13)  # which a median does not mind

    monkeypatch.setattr(measure, "perf_counter", lambda: now[0])
    trainer = SimpleNamespace(recorder=recorder, step=step)
    assert measure.recording_ratio(trainer, 10, 4) == pytest.approx(1.02)
    turns = [False, True, True, False] * 2
    assert seen == [(10 + place, enabled, 0) for place, enabled in enumerate(turns)]
    assert not recorder.enabled
    assert measure.recording_ratio(trainer, 18, 0) is None
