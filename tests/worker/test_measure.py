"""What recording costs is found from steps with and without it in turns; pauses are in no time of a step."""

from types import SimpleNamespace

import numpy as np
import pytest

from pscale.worker import measure
from pscale.worker.measure import PauseRemoval
from pscale.worker.recorder import Recorder
from pscale.worker.usage import Usage, without

BEGUN, LENGTHS = np.array([100, 300, 700]), np.array([50, 100, 10])


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


def test_steps_follow_each_other_once_the_pauses_are_out_of_time():
    cut = PauseRemoval(begun_ns=BEGUN, lengths_ns=LENGTHS)
    assert cut(np.array([90, 100, 150, 300, 400, 600, 700, 710, 720])).tolist() == [
        *(90, 100, 100),
        *(250, 250, 450),
        *(550, 550, 560),
    ]
    assert cut.at(700) == 550


def test_what_a_rank_pauses_longer_than_all_others_stays_and_time_never_goes_back():
    cut = PauseRemoval(begun_ns=BEGUN, lengths_ns=LENGTHS)  # this one went on at 155 after the first pause
    assert cut.at(155) - cut.at(100) == 5
    assert (np.diff(cut(np.arange(1000))) >= 0).all()


def test_what_pauses_used_counts_in_no_account_of_the_steps():
    before, after, last = used(1.0, 3), used(1.5, 4), used(4.0, 9)
    left = without(last, before, after)
    assert left.counts == {"cpu_s": 3.5, "involuntary_context_switches": 8, "steal_s": None}
    assert (left.thread_cpu_s, left.state) == ({"7": 3.5}, {"load_average": 9})


def used(cpu_s, switches):
    counts = {"cpu_s": cpu_s, "involuntary_context_switches": switches, "steal_s": None}
    threads = {"thread_cpu_s": {"7": cpu_s}, "thread_cpus": {"7": "0"}}
    return Usage(counts=counts, **threads, state={"load_average": switches})
