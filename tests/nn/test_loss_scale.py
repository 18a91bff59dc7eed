from pscale.nn.loss_scale import LARGEST, SMALLEST, LossScale


def scales(rule, overflows):
    found = []
    for overflowed in overflows:
        rule.update(overflowed=overflowed)
        found.append(rule.value)
    return found


def test_a_scale_grows_after_as_many_good_steps_in_a_row_and_backs_off_at_once():
    good, bad = False, True
    steps = [good, good, good, good, bad, good, good, bad, bad, good, good, good, good]
    expected = [8, 8, 16, 16, 8, 8, 8, 4, 2, 2, 2, 4, 4]
    assert scales(LossScale(8.0, interval=3), steps) == expected


def test_a_scale_stops_growing_before_its_inverse_vanishes_and_never_by_itself_shrinks():
    assert scales(LossScale(LARGEST / 2, interval=1), [False] * 3) == [LARGEST] * 3
    assert scales(LossScale(4 * LARGEST, interval=1), [False, True]) == [4 * LARGEST, 2 * LARGEST]


def test_a_scale_never_becomes_zero():
    assert scales(LossScale(2 * SMALLEST, interval=1), [True] * 3) == [SMALLEST] * 3


def test_a_scale_that_is_given_stays():
    assert scales(LossScale(1000.0), [False, True, True]) == [1000.0] * 3
