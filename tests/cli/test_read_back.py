"""Whatever suite `pscale show` accepts, its run is one that every command can read: drawn by Hypothesis."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from noop_runs import make_launcher

ANSWERS = {  # of commands that read a run: the codes that say what is in it
    ("status", "RUN"): {0, 1},
    ("report", "RUN", "--no-figures"): {0},
    ("check", "RUN"): {0, 1, 6},
    ("export", "RUN", "--format", "extrap", "--output", "out"): {0, 5},
    ("list", "--reports", "FOLDER"): {0},
    ("report", "LATER", "--format", "json"): {0},
    ("compare", "RUN", "LATER"): {0, 1, 6},
    ("history", "add", "LATER"): {0},
}
BY_NAME = {
    "env",
    "figures",
    "params",
    "sha256",
    "packages",
    "environment",
}  # groups whose names are not of fields
# Starts the program of one rank, behind all options of a launcher.
STARTS_ONE = 'while [ "$1" != -n ]; do shift; done; shift 2; exec "$@"\n'
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
files = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), max_size=12)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,7}", fullmatch=True)
numbers = (
    st.integers()
    | st.sampled_from([2**53 + 1, -(2**63), 2**64, 10**30])
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = numbers | st.booleans() | texts


@st.composite
def suites(draw):
    """Draw a suite of a workload: names, texts and numbers are whatever YAML can hold."""
    params = draw(st.dictionaries(names, values, min_size=1, max_size=3))
    units = draw(st.dictionaries(names, texts, max_size=2))
    swept = draw(st.sampled_from(sorted(params)))
    return {
        "name": draw(st.from_regex("[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)),
        "title": draw(texts),
        "scaling": draw(st.sampled_from(["weak", "strong", "throughput"])),
        "workload": {
            "command": " ".join(["echo", "1.5", *(f"{{{name}}}" for name in params)]),
            "params": params,
            "figures": {name: {"regex": r"(\d[\d.]*)", "unit": unit} for name, unit in units.items()},
        },
        "launch": {
            "launcher": "./mpiexec",
            "scheduler": "none",
            "env": draw(st.dictionaries(names, texts, max_size=1)),
        },
        "sweep": {f"workload.params.{swept}": draw(st.lists(values, min_size=1, max_size=3, unique_by=repr))},
        "expect": [{"metric": name, "at_least": draw(numbers)} for name in units],
        "repeat": 1,
    }


@pytest.mark.figure
@seed(1)
@settings(
    max_examples=6,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(document=suites(), later=values, folder=files.map("runs{}".format))
def test_whatever_suite_is_shown_makes_a_run_that_every_command_reads(
    pscale, tmp_path, document, later, folder
):
    for left in tmp_path.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    make_launcher(tmp_path / "mpiexec", STARTS_ONE)
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    code, _, err = pscale("show", "suite.yaml")
    assert code in {0, 2, 3}, err
    if code:
        return
    code, out, err = pscale("run", "suite.yaml", "--reports", folder, "--no-report")
    assert code in {0, 1}, out + err
    (run,) = (tmp_path / folder).glob("*/*")
    copy = Path(shutil.copytree(run, run.with_name("later")))
    file = copy / "run.json"
    file.write_text(json.dumps(with_more_fields(json.loads(file.read_text()), later)))
    for words, answers in ANSWERS.items():
        code, out, err = pscale(
            *({"RUN": run, "LATER": copy, "FOLDER": folder}.get(word, word) for word in words)
        )
        assert code in answers, f"{words}: {out}{err}"


def with_more_fields(value, later):
    """Return a document with a field more in every group."""
    if isinstance(value, list):
        return [with_more_fields(each, later) for each in value]
    if not isinstance(value, dict):
        return value
    grown = {name: each if name in BY_NAME else with_more_fields(each, later) for name, each in value.items()}
    return grown | {"later": later}
