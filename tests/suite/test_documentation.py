"""The reference of the suite file: tables follow from the declarations, examples and errors are true."""

import re
import shlex
import shutil
import subprocess
from dataclasses import MISSING
from pathlib import Path

import pytest

from pscale.cli.manual import default_text, with_tables
from pscale.config import expressions
from pscale.config.metrics import LONGEST
from pscale.errors import PscaleError
from pscale.suite.document import LONGEST_TEXT, read_value
from pscale.suite.expand import expand
from pscale.suite.fields import fields_of, group_at, kinds_of
from pscale.suite.file import Sweep
from pscale.suite.load import load_suite, values_of
from pscale.suite.problems import read_group

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "suites.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
YAML_BLOCKS = [text for language, text in BLOCKS if language == "yaml"]
FOUR_CORES = {"cores": 4.0, "memory_gib": 16.0, "nodes": 1.0}
GROUPS = [
    *(
        "model",
        "data",
        "train",
        "train.evaluate",
        "train.save",
        "plan",
        "plan.matrix",
        "precision",
        "timing",
        "launch",
        "launch.omp",
    ),
    *("require", "inject", "jitter", "ghost"),
    *("workload", "workload.figures", "workload.success", "workload.files", "expect"),
]


def declared():
    """Return every field that has a default in a suite, with its group and kind."""
    for group in ["", *GROUPS]:
        found = group_at(tuple(filter(None, group.split("."))))
        for kind in kinds_of(found):
            for name, field in fields_of(found, kind).items():
                yield pytest.param(found, kind, name, field, id=".".join(filter(None, (group, kind, name))))


def test_the_tables_of_the_document_are_those_of_the_declarations():
    assert with_tables(DOCUMENT) == DOCUMENT, "write them again: make manual"
    assert re.findall(r"<!-- fields: (\S+) -->", DOCUMENT) == GROUPS
    assert re.findall(r"<!-- (?:fields|metrics) -->", DOCUMENT) == ["<!-- fields -->", "<!-- metrics -->"]
    assert all(f"| `{name}` |" in DOCUMENT for name in Sweep.model_fields)


@pytest.mark.parametrize(("group", "kind", "name", "field"), [*declared()])
def test_the_default_of_a_field_is_documented_as_a_suite_would_write_it(group, kind, name, field):
    written = default_text(field)
    if field.default is None:
        assert written == "null"
    elif field.default is not MISSING and name != "kind":
        required = {each: value for each, value in REQUIRED.items() if each in fields_of(group, kind)}
        required |= {"kind": kind} if kind else {}
        said = required | {name: read_value(written, "")}
        values, usual = (values_of(read_group(each, group), each) for each in (said, required))
        assert values == usual | ({"dp": "=rest"} if name == "dp" else {})


REQUIRED = {
    "name": "a",
    "scaling": "weak",
    "metric": "step_s",
    "at_least": 1.0,
    "command": "./a.out",
    "regex": "(.*)",
}


def test_a_field_of_each_sort_is_documented_with_its_type():
    lines = [line.split(" | ") for line in DOCUMENT.splitlines() if line.startswith("| `")]
    row = {cells[0]: cells[1] for cells in lines}
    assert row["| `batch`"] == "whole number ≥ 1"
    assert row["| `bucket`"] == "size ≥ 1"
    assert row["| `hang_after`"] == "time > 0 or null"
    assert row["| `dp`"] == "whole number ≥ 1, or `ranks`, or `rest`"
    assert row["| `seed`"] == "whole number ≥ 0, ≤ 4,294,967,295"
    assert row["| `sp`"] == "true or false"
    assert row["| `bind`"] == "`core`, `socket`, `numa`, `none`"


def test_the_functions_of_expressions_and_limits_are_documented():
    (functions,) = re.findall(r"\*\*Functions\*\*: `([^`]*)`", DOCUMENT)
    assert functions.split() == list(expressions.FUNCTIONS)
    assert f"at most {expressions.LONGEST} characters" in DOCUMENT
    assert f"at most {expressions.DEEPEST} operations" in DOCUMENT
    assert f"a text has at most {LONGEST_TEXT:,} characters, a time or size at most {LONGEST}" in DOCUMENT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to a folder that has the first example and the suites that are shipped."""
    for path in (ROOT / "suites").glob("*.yaml"):
        shutil.copy(path, tmp_path)
    (tmp_path / "width.yaml").write_text(YAML_BLOCKS[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
