"""Numbers of 16 bits are converted by the compiled kernels as NumPy converts them, to the last bit."""

import numpy as np
import pytest

from pscale.nn import dtypes

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def between(halves):
    """Return all numbers, the middles between neighbours, and the numbers of float32 beside both."""
    wide = np.sort(halves[np.isfinite(halves)].astype(np.float32))
    middle = wide[:-1] / 2 + wide[1:] / 2
    exact = np.concatenate([wide, middle, np.float32([65519.996, 65520, 1e5, np.inf, 1e-40, 1e-30])])
    with np.errstate(over="ignore"):
        near = [exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))]
    return np.concatenate([*near, *(-each for each in near)])


def converted(x, dtype):
    out = np.empty(x.shape, dtype)
    dtypes.convert(x, out)
    return out


def test_every_number_of_fp16_and_all_that_lies_around_a_rounding_is_converted_to_the_bit():
    assert dtypes._kernels() is not None, "compiled"
    wide, expected = converted(HALVES, np.float32), HALVES.astype(np.float32)
    known = ~np.isnan(expected)
    assert (wide.view(np.uint32)[known] == expected.view(np.uint32)[known]).all()
    assert np.isnan(wide[~known]).all()
    x = between(HALVES)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    assert (converted(x, np.float16).view(np.uint16) == expected.view(np.uint16)).all()
    assert np.isnan(converted(np.full(200, np.nan, np.float32), np.float16)).all()


@pytest.mark.parametrize("cut", [np.s_[::2], np.s_[:1], np.s_[:, :40]])
def test_numbers_that_are_few_or_do_not_lie_side_by_side_are_converted_alike(cut):
    x = np.linspace(-3, 3, 40_000, dtype=np.float32).reshape(-1, 80)[cut]
    np.testing.assert_array_equal(converted(x, np.float16), x.astype(np.float16))
