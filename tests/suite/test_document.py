import math

import pytest

from pscale.errors import SuiteError
from pscale.suite.document import LARGEST_BYTES, read_document


def read(tmp_path, text):
    path = tmp_path / "suite.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_document(path)


def test_scalars_are_read_as_editors_read_them(tmp_path):
    text = "a: [1, 1e-3, 010, yes, on, ~, true, .inf, 0x10, 1_000, 1:30, 2024-01-01, '12', 1.5, <<, '']"
    expected = [1, 1e-3, 10, "yes", "on", None, True, math.inf]
    expected += ["0x10", "1_000", "1:30", "2024-01-01", "12", 1.5, "<<", ""]
    assert read(tmp_path, text).values == {"a": expected}


def test_every_value_has_the_line_where_it_is_written(tmp_path):
    document = read(tmp_path, "a: 1\nb:\n  c: {d: 2}\n  e:\n  - 3\n  - f: 4\n")
    lines = {path: place.line for path, place in document.places.items()}
    assert lines[("a",)] == 1
    assert lines[("b",)] == 2
    assert lines[("b", "c", "d")] == 3
    assert lines[("b", "e", 0)] == 5
    assert lines[("b", "e", 1, "f")] == 6


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "found nothing"),
        ("# only a comment\n", 1, "found nothing"),
        ("- a\n- b\n", 1, "found a list"),
        ("just words", 1, "found a single value"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "not YAML"),
        ("a: 1\nb:\n\t- 2\n", 3, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "a: is given twice, first in line 1"),
        ("a:\n  b: 1\n  b: 2\n", 3, "a.b: is given twice, first in line 2"),
        ("a: 1\nb: \x07\n", 2, "character 0x7"),
        (b"a: 1\nb: \xff\n", 2, "byte 0xff is not UTF-8"),
        ("a: 1\n? [b]\n: c\n", 2, "field name must be text"),
        ("a: 1\nb: " + "9" * 5000, 2, "a number of 5000 characters"),
        ("a: 1\nb: !!int x", 2, "'x' is not of the kind"),
    ],
)
def test_what_is_not_a_suite_is_refused_with_its_line(tmp_path, text, line, expected):
    with pytest.raises(SuiteError) as caught:
        read(tmp_path, text)
    assert f"suite.yaml:{line}: " in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['touch {marker}']",
        "a: !!python/name:os.system",
        "!!python/object/new:type {}",
        "a: !!python/module:os",
        "a: !custom 1",
        "a: !!binary aGk=",
        "a: !!set {b}",
    ],
)
def test_a_file_cannot_make_anything_but_plain_values(tmp_path, text):
    marker = tmp_path / "marker"
    with pytest.raises(SuiteError, match=r"tag .* is not allowed"):
        read(tmp_path, text.replace("{marker}", str(marker)))
    assert not marker.exists()


def test_a_small_file_cannot_grow_without_bound(tmp_path):
    bomb = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    for text, expected in (
        (bomb, "aliases are not allowed"),
        ("a: &a [*a]", "aliases are not allowed"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("#" * (LARGEST_BYTES + 1), "too many for a suite"),
    ):
        with pytest.raises(SuiteError, match=expected):
            read(tmp_path, text)


def test_a_path_that_is_no_file_is_named(tmp_path):
    for path, expected in ((tmp_path, "is a folder"), (tmp_path / "none.yaml", "does not exist")):
        with pytest.raises(SuiteError) as caught:
            read_document(path)
        assert str(path) in str(caught.value)
        assert expected in str(caught.value)
