"""What follows from the declaration of a field: validation, and the schema that editors use."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from pscale.config.choices import Bytes, Formula, Group, InSuite, Number, PositiveInt, Seconds
from pscale.config.launch import Word
from pscale.suite.fields import documentation, fields_of, fields_of_any_kind
from pscale.suite.file import File
from pscale.suite.load import resolved, values_of
from pscale.suite.problems import read_group
from pscale.suite.schema import editor_schema


@dataclass(frozen=True, kw_only=True)
class Inner(Group):
    """A group within a group."""

    word: Word = "a"


@dataclass(frozen=True, kw_only=True)
class Sample(Group):
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
    said = {"kind": "one", "count": "=2 * ranks", "wait": "1m30s", "level": "most", "words": ["b"]}
    assert values_of(read_group(said, Sample), said) == {
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
        ("count", 0, "expected at least 1, got 0"),
        ("count", "3", "expected a whole number, got '3'; without quotes it is a number"),
        ("room", "4mb", "expected a size such as"),
        ("wait", 0, "expected more than 0, got 0"),
        ("level", "=1", "expected a whole number, none or most, got '=1'"),
        ("inner", {"word": "a b"}, "expected one word without quotes"),
        ("words", ["a", "$"], "expected one word without quotes"),
        ("nothing", 1, "the file has no such field"),
        ("kind", "three", "unknown kind 'three'"),
    ],
)
def test_a_value_that_a_declaration_does_not_allow_is_refused(field, value, expected):
    (problem,) = read_group({"kind": "one", field: value}, Sample)
    assert problem.path[0] == field
    assert expected in problem.message


def test_a_field_in_units_is_named_without_them_in_a_suite():
    fields, _ = resolved(
        {"name": "a", "scaling": "weak", "launch": {"time_limit": "2m", "memory_limit": "1KiB"}}
    )
    assert (fields["launch"]["time_limit"], fields["launch"]["memory_limit"]) == (120.0, 1024)


def test_every_group_of_a_suite_is_read_strictly():
    def groups(top):
        for field in fields_of_any_kind(top).values():
            if field.group:
                yield field.group
                yield from groups(field.group)

    assert [group for group in groups(File) if not issubclass(group, Group)] == []


def test_an_editor_knows_every_field_with_its_forms_and_documentation_and_no_other():
    schema = editor_schema()
    groups = schema["$defs"]
    assert all(group["additionalProperties"] is False for group in (schema, *groups.values()))
    sweep = groups["Sweep"]["properties"]
    assert {"ranks", "model.width", "width", "zip", "cases"} <= sweep.keys()
    assert "kind" not in sweep, "model or data?"
    for group, field, pattern in (
        *(("ModelGpt", "width", "^="), ("Plan", "bucket", "iB"), ("Plan", "dp", "ranks")),
        ("Launch", "time_limit", "[smhd]"),
    ):
        number, text = groups[group]["properties"][field]["anyOf"]
        assert number["type"] in ("integer", "number")
        assert pattern in text["pattern"]
    assert schema["properties"]["ranks"]["description"] == "MPI processes."
    assert "heads" in groups["ModelGpt"]["properties"]["heads"]["description"]


def test_an_editor_accepts_a_file_that_only_extends():
    schema = editor_schema()
    assert schema["required"] == ["name"]
    assert {"required": ["extends"]} in schema["anyOf"]
    assert "required" not in schema["$defs"]["ModelGpt"]
