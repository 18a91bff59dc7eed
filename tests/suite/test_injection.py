"""Delays that a suite injects: what they make of the cases, and what is refused."""

import pytest

from pscale.config import Inject, Jitter
from pscale.config.case import stored_words
from pscale.errors import SuiteError
from pscale.suite.expand import expand

SWEEP = "sweep:\n  ranks: [1, 2, 4]\n  threads: [1]"
MACHINE = {"cores": 4.0, "memory_gib": 16.0, "nodes": 1.0}


def injecting(text, sweep="sweep: {ranks: [4]}"):
    return SWEEP, f"{text}\n{sweep}"


def test_a_case_injecting_says_so_in_label_series_and_id(cases):
    (healthy,) = cases((SWEEP, "sweep: {ranks: [4]}"))
    (delayed,) = cases(injecting("inject: {rank: 1, phase: forward, delay: 10ms, every: 2}"))
    assert delayed.inject == Inject(rank=1, phase="forward", delay_s=0.01, every=2)
    assert delayed.label == "4 ranks · injected 10 ms in forward of rank 1, one step of 2"
    assert delayed.series == "injected 10 ms in forward of rank 1, one step of 2"
    assert (healthy.injected, healthy.label, healthy.series) == ("", "4 ranks", "")
    assert delayed.id != healthy.id


def test_jitter_is_of_all_ranks_or_of_those_that_are_named(cases):
    (some,) = cases(injecting("jitter: {distribution: normal, mean: 1.5ms, ranks: [2, 0]}"))
    assert some.jitter == Jitter(distribution="normal", mean_s=0.0015, ranks=(0, 2))
    assert some.label == "4 ranks · injected normal jitter of 1.5 ms in backward of ranks 0, 2"
    (everyone,) = cases(injecting("jitter: {mean: 1ms, phase: update}"))
    assert everyone.injected == "exponential jitter of 1 ms in update of all ranks"


def test_a_sweep_over_the_delay_has_a_healthy_case_of_the_same_id_as_ever(cases):
    (plain,) = cases((SWEEP, "sweep: {ranks: [2]}"))
    healthy, delayed = cases(injecting("inject: {rank: 1}", "sweep: {ranks: [2], inject.delay: [0ms, 10ms]}"))
    assert healthy.id == plain.id
    assert (healthy.label, healthy.series) == ("2 ranks", "healthy")
    assert delayed.label == "2 ranks · injected 10 ms in backward of rank 1"


def test_the_command_line_injects_into_any_suite_by_full_names_alone(suite):
    loaded = suite((SWEEP, "sweep: {ranks: [2]}"), overrides=["inject.delay=10ms", "inject.rank=1"])
    (case,) = expand(loaded, MACHINE).cases
    assert case.injected == "10 ms in backward of rank 1"
    with pytest.raises(SuiteError, match=r"did you mean 'inject\.delay'"):
        suite(overrides=["delay=10ms"])


def test_what_was_stored_is_read_in_the_same_words_and_old_cases_are_healthy():
    stored = {"jitter": {"mean_s": 0.001, "ranks": [1]}, "inject": {"delay_s": 0.0}}
    assert stored_words(stored) == "exponential jitter of 1 ms in backward of rank 1"
    assert stored_words({}) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inject: {rank: 4, delay: 1s}", "inject.rank: .*there is no rank 4, the case has ranks 0 to 3"),
        ("inject: {delay: 10ms, every: 11}", "inject.every: .*more than the 10 measured steps"),
        ("inject: {phase: forwards, delay: 1ms}", "did you mean 'forward'"),
        ("inject: {delay: -1}", "inject.delay: expected at least 0, got -1"),
        ("inject: {delay: 10 ns s}", "inject.delay: expected a time such as 10us"),
        ("jitter: {mean: 1ms, ranks: [0, 9]}", "jitter.ranks: .*there is no rank 9"),
        ("jitter: {mean: 1ms, ranks: [-1]}", "jitter.ranks"),
        ("jitter: {mean: 1ms, distribution: gamma}", "'gamma' is not possible"),
    ],
)
def test_a_delay_that_cannot_take_place_is_refused(cases, text, message):
    with pytest.raises(SuiteError, match=message):
        cases(injecting(text))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("repeat: 2", "precision: bf16"), "precision: .*sums of bf16 are computed"),
        (("repeat: 2", "timing: {pace: true}"), "timing.pace: .*ghosts compute nothing"),
        (("bucket: 4MiB", "offload: both"), "plan.offload: .*ghost computing moves nothing to files"),
        (("-stdlib", "-stdlib, loading: files, prefetch: true"), "data.prefetch: .*ghosts read no samples"),
        (("steps: 10", "save: {every: 2}"), "train.save: .*ghosts learn nothing.*; leave train.save out"),
        (("steps: 10", "evaluate: {every: 2}"), "train.evaluate: .*ghosts learn nothing"),
    ],
)
def test_what_ghosts_cannot_do_is_refused(cases, change, message):
    with pytest.raises(SuiteError, match=message):
        cases(change, injecting("ghost: {gflops: 1}"))


def test_a_stage_without_data_cannot_be_delayed_in_reading_it(cases):
    change = ("layers: 2", "layers: 4"), ("plan: {dp: ranks, bucket: 4MiB}", "plan: {pp: ranks}")
    for text in ("inject: {rank: 2, phase: data, delay: 1ms}", "jitter: {phase: data, mean: 1ms}"):
        with pytest.raises(SuiteError, match=r"reads? no data"):
            cases(*change, injecting(text))
    assert len(cases(*change, injecting("inject: {rank: 3, phase: data, delay: 1ms}"))) == 1
