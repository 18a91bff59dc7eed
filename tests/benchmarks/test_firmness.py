"""The designs of launches that the benchmark of firmness compares."""

import firmness
import numpy as np
import pytest


def machine(seed, noise):
    random = np.random.default_rng(seed)
    return firmness.Machine(random, noise(random)), random


def test_designs_take_the_same_time_and_many_short_rounds_know_more_than_few_long_ones():
    widths = {}
    for name, design in firmness.DESIGNS.items():
        known, took_s = [], []
        for seed in range(30):
            here, random = machine(seed, firmness.NOISES["quiet"])
            known.append(design.estimate(design.measure(here, random)))
            took_s.append(here.now_s)
        assert np.mean(took_s) == pytest.approx(81, abs=5)
        assert np.mean([one.low <= 1 <= one.high for one in known]) >= 0.8
        widths[name] = np.median([one.half_width for one in known])
    assert widths["10 rounds of 8 steps"] < widths["3 rounds of 40 steps"] / 2
    assert widths["3 rounds of 40 steps"] < widths["3 rounds of 40 steps, medians"] / 2


def test_noise_that_was_recorded_has_a_level_of_one_and_is_not_white():
    logs = firmness.recorded(np.random.default_rng(1))
    assert np.median(logs) == pytest.approx(0, abs=0.05)
    assert np.corrcoef(logs[1:], logs[:-1])[0, 1] > 0.5
