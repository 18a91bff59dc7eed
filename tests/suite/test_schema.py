"""What follows from the declaration of a field: validation, and the schema that editors use."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from pydantic import ValidationError

from pscale.config.choices import Bytes, InSuite, Number, PositiveInt, Seconds, Word
from pscale.suite.document import Formula
from pscale.suite.fields import documentation, fields_of
from pscale.suite.schema import editor_schema, model_of, validate


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A group within a group."""

    word: Word = "a"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A group that is declared here alone."""

    kind: Literal["one", "two"] = "one"
    """Which."""
    count: PositiveInt = 3
    """How many
    there are."""
    room_bytes: Annotated[Bytes, InSuite(kinds=("one",), default=4096)] = 0
    wait_s: Seconds | None = None
    level: Annotated[int, Number(ge=0, words=(("none", 0), ("most", "=ranks")), computed=False)] = 1
    inner: Inner = Inner()
    words: tuple[Word, ...] = ()


def test_a_declaration_says_all_about_a_field():
    assert list(fields_of(Sample, "one")) == ["kind", "count", "room", "wait", "level", "inner", "words"]
    assert "room" not in fields_of(Sample, "two")
    assert documentation(Sample) == {"kind": "Which.", "count": "How many there are."}
    validated = model_of(Sample, "one").model_validate(
        {"kind": "one", "count": "=2 * ranks", "wait": "1m30s", "level": "most", "words": ["b"]}
    )
    assert validated.model_dump() == {
        "kind": "one",
        "count": Formula("=2 * ranks"),
        "room": 4096,
        "wait": 90.0,
        "level": Formula("=ranks"),
        "inner": {"word": "a"},
        "words": ["b"],
    }


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("count", 0, "greater than or equal to 1"),
        ("count", "3", "valid integer"),
        ("room", "4mb", "expected a size such as"),
        ("wait", 0, "greater than 0"),
        ("level", "=1", "expected a whole number, none or most, got '=1'"),
        ("inner", {"word": "a b"}, "expected one word without quotes"),
        ("words", ["a", "$"], "expected one word without quotes"),
        ("nothing", 1, "Extra inputs are not permitted"),
        ("kind", "three", "Input should be 'one'"),
    ],
)
def test_a_value_that_a_declaration_does_not_allow_is_refused(field, value, expected):
    with pytest.raises(ValidationError, match=expected):
        model_of(Sample, "one").model_validate({"kind": "one", field: value})


def test_a_field_in_units_is_named_without_them_in_a_suite():
    fields = validate(
        {"name": "a", "scaling": "weak", "launch": {"time_limit": "2m", "memory_limit": "1KiB"}}
    )
    assert (fields["launch"]["time_limit"], fields["launch"]["memory_limit"]) == (120.0, 1024)


def test_an_editor_knows_every_field_and_no_other():
    schema = editor_schema()
    assert schema["additionalProperties"] is False
    groups = schema["$defs"]
    assert all(group["additionalProperties"] is False for group in groups.values())
    sweep = groups["Sweep"]["properties"]
    assert {"ranks", "model.width", "width", "zip", "cases"} <= sweep.keys()
    assert "kind" not in sweep, "model or data?"


def test_an_editor_lets_numbers_be_expressions_and_quantities():
    groups = editor_schema()["$defs"]
    for group, field, pattern in (
        ("ModelGpt", "width", "^="),
        ("Plan", "bucket", "iB"),
        ("Launch", "time_limit", "[smhd]"),
        ("Plan", "dp", "ranks"),
    ):
        number, text = groups[group]["properties"][field]["anyOf"]
        assert number["type"] in ("integer", "number")
        assert pattern in text["pattern"]


def test_an_editor_accepts_a_file_that_only_extends():
    schema = editor_schema()
    assert schema["required"] == ["name"]
    assert {"required": ["extends"]} in schema["anyOf"]
    assert not schema["$defs"]["ModelGpt"]["required"]


def test_an_editor_shows_the_documentation_of_fields():
    schema = editor_schema()
    assert schema["properties"]["ranks"]["description"] == "MPI processes."
    assert "replicas" in schema["$defs"]["Plan"]["properties"]["dp"]["description"]
    assert "heads" in schema["$defs"]["ModelGpt"]["properties"]["heads"]["description"]
