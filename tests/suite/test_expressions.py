import math
import warnings

import numpy as np
import pytest

from pscale.config.expressions import condition, evaluate, names_in
from pscale.errors import UsageError

NAMES = {
    "ranks": 4,
    "threads": 1,
    "cores": 2.0,
    "model": {"width": 256, "kind": "gpt"},
    "train.batch": 8,
    "clip": None,
    "efficiency": np.float64(0.5),
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512 * sqrt(ranks)", 1024.0),
        ("-ranks // 3 + 7 % 4 - 2 ** 3", -7),
        ("model.width / 2", 128.0),
        ("train.batch * ranks", 32),
        ("min(ranks, cores) + max(1, 2, 3)", 5),
        ("round(2.567, 1) + ceil(0.1) + floor(0.9) + int(2.9) + abs(-1) + log2(8)", 9.6),
        ("ranks if threads == 1 else 0", 4),
        ("ceil(64 * cbrt(27)) + cbrt(-27) + isqrt(36 / 2)", 192 - 3 + 4),
        ("cbrt(64) + isqrt(17) + ceil_div(9, ranks) + max(ranks)", 4 + 4 + 3 + 4),
    ],
)
@pytest.mark.figure
def test_arithmetic_over_plain_nested_and_dotted_names(text, value):
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ranks * threads > cores", True),
        ("1 < ranks < 4", False),
        ("ranks in [1, 2, 4] and threads not in (2, 4)", True),
        ("not ranks == 4 or model.kind == 'block'", False),
        ("model.kind in ['gpt', 'block']", True),
        ("clip == none", True),
        ("true and ranks != 3", True),
        ("efficiency >= 0.5", True),
    ],
)
def test_conditions(text, value):
    assert condition(text, NAMES) is value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ranks * treads > cores", "unknown name 'treads'; did you mean 'threads'?"),
        ("widht + 1", "unknown name 'widht'; did you mean 'model.width'?"),
        ("model.widht", "unknown name 'model.widht'; did you mean 'model.width'?"),
        ("quux", "known are clip, cores, efficiency, model.kind"),
        ("model + 1", "'model' is a group; name one of model.width, model.kind"),
        ("sqrt + 1", "write sqrt(…)"),
    ],
)
def test_an_unknown_name_is_named_with_the_nearest_valid_one(text, expected):
    with pytest.raises(UsageError) as caught:
        evaluate(text, NAMES)
    assert expected in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "open('/etc/passwd')",
        "().__class__.__bases__[0].__subclasses__()",
        "ranks.__class__",
        "model.kind.upper",
        "model.kind.format(1)",
        "model['width']",
        "[x for x in [1, 2]]",
        "(lambda: 1)()",
        "(x := 1)",
        "f'{ranks}'",
        "{1: 2}",
        "max(*[1, 2])",
        "max(1, 2, key=abs)",
        "round(5, ndigits=-1)",
        "import os",
        "ranks; ranks",
        "ranks = 2",
        "ranks & 1",
        "1 << 100000",
        "1j",
        "b'x'",
        "...",
        "",
        "\x00",
    ],
)
def test_anything_but_arithmetic_is_refused(text):
    with pytest.raises(UsageError):
        evaluate(text, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "9 ** 9 ** 9",
        "0.5 ** -100000",
        "round(5, -1000000000)",
        "'a' * 10 ** 9",
        "'%1000000000d' % 1",
        "'a' + 'b'",
        "[0] * 10 ** 9",
        "*".join(["2 ** 1000"] * 40),
        "1 + " * 200 + "1",
        "(" * 240 + "1" + ")" * 240,
    ],
)
def test_numbers_texts_and_depth_are_bounded(text):
    with pytest.raises(UsageError):
        evaluate(text, NAMES)


@pytest.mark.parametrize(
    "text", ["1 / 0", "sqrt(-1)", "(-8) ** 0.5", "1e308 * 10", "log2(0)", "int(1e999)", "isqrt(-1)"]
)
def test_a_value_that_is_no_finite_real_number_is_refused(text):
    with pytest.raises(UsageError):
        evaluate(text, NAMES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max()", "max takes at least one value, not none"),
        ("ceil_div(3)", "ceil_div takes two values, not 1"),
        ("sqrt(1, 2)", "sqrt takes one value, not 2"),
        ("isqrt(2.5)", "isqrt(2.5) has no value"),
        ("sqrt(-1)", "sqrt(-1) has no value"),
        ("max('a')", "'a' is not a number"),
    ],
)
@pytest.mark.figure
def test_a_function_that_is_called_wrongly_says_what_it_takes(text, message):
    with pytest.raises(UsageError) as error:
        evaluate(text, NAMES)
    assert str(error.value) == f"expression {text!r}: {message}"


def test_a_comparison_of_a_number_with_a_text_is_refused_rather_than_false():
    for text in ("ranks == '4'", "'4' in [ranks]", "model.kind == 4", "model.kind < 4"):
        with pytest.raises(UsageError, match="a number with a text"):
            evaluate(text, NAMES)


def test_a_condition_must_be_true_or_false():
    with pytest.raises(UsageError, match="neither true nor false; compare it"):
        condition("ranks % 2", NAMES)


def test_a_name_that_is_not_a_number_may_be_compared():
    assert not condition("efficiency < 0.8", {"efficiency": math.nan})


def test_the_compiler_gives_no_warnings_of_its_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UsageError):
            evaluate("1 is 1", NAMES)


def test_names_in_an_expression_are_whole_and_without_functions():
    assert names_in("512 * sqrt(ranks) + model.width") == {"ranks", "model.width"}
    assert names_in("not an expression") == set()
