"""The reference of the suite file, held to the schema and to what the program says."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel, TypeAdapter

from pscale import expressions
from pscale.errors import PscaleError
from pscale.metrics import Metric, units
from pscale.suite import expand, load_suite, quantities
from pscale.suite.document import read_value
from pscale.suite.schema.file import File
from pscale.suite.schema.launch import Omp, Option, Word, WordOrNothing
from pscale.suite.schema.plan import Matrix

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "suites.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
YAML_BLOCKS = [text for language, text in BLOCKS if language == "yaml"]
FOUR_CORES = {"cores": 4.0, "memory_gib": 16.0, "nodes": 1.0}
TYPES = {
    "whole number ≥ 1": quantities.Count,
    "whole number ≥ 0": quantities.CountOrNone,
    "whole number ≥ 0, or `none`": quantities.Gpus,
    "whole number, 1 or 2": quantities.OneOrTwo,
    "degree ≥ 1": quantities.Degree,
    "seed ≥ 0": quantities.Seed,
    "number > 0": quantities.Positive,
    "number ≥ 0": quantities.NotNegative,
    "number ≥ 0, < 1": quantities.Fraction,
    "number, 0 to 1": quantities.Share,
    "number > 0, to 1": quantities.SomeShare,
    "size ≥ 1": quantities.Bytes,
    "`none`, `selective`, `full`, `every-2`, `every-3`, …": quantities.Checkpoint,
    "whole number, 1 to 1000, or `auto`": quantities.Repeat,
    "`auto`, `none`, `dynamic`, or a number above 0, to 2²⁴": quantities.LossScale,
    "number > 0, to 2²⁴": quantities.Scale,
    "time > 0": quantities.Seconds,
    "time ≥ 0": quantities.SecondsOrNone,
    "number": float,
    "text": str,
    "true or false": bool,
    "list of texts": list[str],
    "word or nothing": WordOrNothing,
    "folder or nothing": quantities.Folder,
    "list of words": list[Word],
    "list of options": list[Option],
}
OTHER_TYPES = {
    *("text", "group", "group or null", "list of groups", "list of groups or null"),
    *(
        "list of ranks",
        "lists of equal length",
        "texts by name",
        "whole number, 1 to 1000",
        "number > 0, < 1",
        "number or null",
        "a metric",
    ),
}


def quoted(text):
    return re.findall("`([^`]+)`", text)


def rows(first):
    """Return heading and cells by column for the rows of all tables whose first column is called `first`."""
    found, heading, columns = [], "", []
    for line in DOCUMENT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            heading, columns = (line if re.match("##+ ", line) else heading), []
        elif not columns:
            columns = cells
        elif columns[0] == first and set(line) != set("|-"):
            found.append((heading, dict(zip(columns, cells, strict=True))))
    return found


def documented():
    """Return the row of every field that the document names, by group, kind and name."""
    found = {}
    for heading, row in rows("field"):
        group = row.get("group") or "".join(quoted(heading))
        for name in quoted(row["field"]):
            for kind in row.get("kinds", "").split(", "):
                assert (group, kind, name) not in found, "documented twice"
                found[group, kind, name] = row
    return found


def models(annotation):
    """Return the classes that a field of the file may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models(part)]


def schema():
    """Return field and type of all that the schema has, by group, kind and name."""
    groups = {"": [File]} | {name: models(hint) for name, hint in get_type_hints(File).items()}
    groups |= {"launch.omp": [Omp], "plan.matrix": [Matrix]}
    found = {}
    for group, classes in groups.items():
        for model in classes:
            hints = get_type_hints(model, include_extras=True)
            (kind,) = get_args(hints["kind"]) if "kind" in hints else ("",)
            for name, field in model.model_fields.items():
                found[group, kind, name] = field, hints[name]
    return found


FIELDS = schema()


def test_the_fields_of_the_document_are_those_of_the_schema():
    assert documented().keys() == FIELDS.keys()
    groups = {group for group, _, _ in FIELDS}
    top = {
        "",
        "model",
        "data",
        "train",
        "plan",
        "precision",
        "timing",
        "launch",
        "require",
        "inject",
        "jitter",
        "sweep",
        "expect",
    }
    assert groups == top | {"launch.omp", "plan.matrix"}


@pytest.mark.parametrize("place", FIELDS, ids=lambda place: ".".join(filter(None, place)))
def test_the_default_of_a_field_is_documented(place):
    (field, hint), text = FIELDS[place], documented()[place]["default"]
    if field.is_required():
        assert text == "required"
        return
    (value,) = quoted(text)
    default = field.get_default(call_default_factory=True)
    assert TypeAdapter(hint).validate_python(read_value(value, text)) == default


@pytest.mark.parametrize("place", FIELDS, ids=lambda place: ".".join(filter(None, place)))
def test_the_type_of_a_field_is_documented(place):
    (_, hint), text = FIELDS[place], documented()[place]["type"]
    group, _, name = place
    plain = text.removesuffix(" or null")
    if name == "kind":  # all kinds share one row
        assert quoted(text) == [kind for other, kind, last in FIELDS if (other, last) == (group, name)]
    elif any(get_origin(part) is Literal for part in (hint, *get_args(hint))) and name != "metric":
        choice, *null = get_args(hint) if plain != text else (hint,)
        assert quoted(plain) == [str(value) for value in get_args(choice)]
        assert null in ([], [NoneType])
    elif plain in TYPES and name != "name":  # which has a rule of its own
        assert hint == (TYPES[plain] if plain == text else TYPES[plain] | None)
    else:
        assert text in OTHER_TYPES


def test_the_metrics_and_functions_are_documented():
    metrics = {name: row["units"] for _, row in rows("metric") for name in quoted(row["metric"])}
    assert sorted(metrics) == sorted(get_args(Metric))
    assert metrics == {name: ", ".join(units(name)) for name in metrics}
    (functions,) = re.findall(r"\*\*Functions\*\*: `([^`]*)`", DOCUMENT)
    assert functions.split() == list(expressions._FUNCTIONS)
    assert f"at most {expressions.LONGEST} characters" in DOCUMENT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to a folder that has the first example and the suites that are shipped."""
    for path in (ROOT / "suites").glob("*.yaml"):
        shutil.copy(path, tmp_path)
    (tmp_path / "width.yaml").write_text(YAML_BLOCKS[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", YAML_BLOCKS, ids=lambda text: text.splitlines()[0])
def test_every_example_expands_on_four_cores(folder, text):
    path = folder / "example.yaml"
    path.write_text(text if "name:" in text else f"name: example\nscaling: strong\n{text}", encoding="utf-8")
    assert len(expand(load_suite(path), FOUR_CORES).cases) > 1


def test_the_errors_are_printed_as_documented(folder):
    (session,) = [text for language, text in BLOCKS if language == "console"]
    answers = 0
    for command, answer in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", session, re.MULTILINE):
        if not answer:
            subprocess.run(command, shell=True, cwd=folder, check=True)
            continue
        _pscale, _show, path, *options = shlex.split(command)
        values = dict(zip(options[::2], options[1::2], strict=True))
        overrides = [values["--set"]] if "--set" in values else []
        with pytest.raises(PscaleError) as caught:
            expand(load_suite(Path(path), overrides), FOUR_CORES, values.get("--only"))
        assert f"pscale: {caught.value}\n" == answer
        answers += 1
    assert answers == 2
