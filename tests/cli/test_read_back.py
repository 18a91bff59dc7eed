"""Whatever suite `pscale show` accepts, its run is one that every command can read: drawn by Hypothesis."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
import yaml
from compositions import compositions, repaired, text_of
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from noop_runs import WRITES_RESULT, make_launcher
from patience import THOROUGH

ANSWERS = {  # of commands that read a run: the codes that say what is in it
    ("status", "RUN"): {0, 1},
    ("report", "RUN", "--no-figures"): {0},
    ("check", "RUN"): {0, 1, 6},
    ("export", "RUN", "--format", "extrap", "--output", "out"): {0, 5},
    ("list", "--reports", "FOLDER"): {0},
    ("status", "LATER"): {0, 1},
    ("report", "LATER", "--format", "json"): {0},
    ("check", "LATER"): {0, 1, 6},
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
    "hints",
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


names_of_suites = st.from_regex("[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)


@st.composite
def trainings(draw):
    """Draw a suite of the trainer, of any options; its launches compute nothing."""
    with TemporaryDirectory() as folder:
        _, values, _ = repaired(draw(compositions()), folder)
    document = yaml.safe_load(text_of(values))
    swept = {"train.seed": draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3, unique=True))}
    return {
        **document,
        "name": draw(names_of_suites),
        "title": draw(texts),
        "launch": {**document["launch"], "launcher": "./mpiexec", "scheduler": "none"},
        "timing": {"gemm_peak": False, "overhead_steps": 0},
        "sweep": swept,
        "expect": [{"metric": "step_s", "at_most": draw(numbers)}],
        "repeat": 1,
    }


@st.composite
def workloads(draw):
    """Draw a suite of a workload: names, texts and numbers are whatever YAML can hold."""
    params = draw(st.dictionaries(names, values, min_size=1, max_size=3))
    units = draw(st.dictionaries(names, texts, max_size=2))
    swept = draw(st.sampled_from(sorted(params)))
    return {
        "name": draw(names_of_suites),
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
@pytest.mark.slow
@pytest.mark.parametrize(
    ("suites", "script"),
    [
        pytest.param(workloads(), STARTS_ONE, id="workload"),
        pytest.param(trainings(), WRITES_RESULT, id="training"),
    ],
)
def test_whatever_suite_is_shown_makes_a_run_that_every_command_reads(pscale, tmp_path, suites, script):
    shown = []

    @seed(1)
    @settings(
        max_examples=max(3, round(12 * THOROUGH)),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(document=suites, later=values, folder=files.map("runs{}".format))
    def check(document, later, folder):
        for left in tmp_path.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        make_launcher(tmp_path / "mpiexec", script)
        (tmp_path / "suite.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        code, _, err = pscale("show", "suite.yaml")
        assert code in {0, 2, 3}, err
        if code == 0:
            shown.append(document)
            check_run(pscale, tmp_path, folder, later)

    check()
    assert shown


def check_run(pscale, where, folder, later):
    """Run the suite, and have every command read the run, and a copy as a later version would write it."""
    code, out, err = pscale("run", "suite.yaml", "--reports", folder, "--no-report")
    assert code in {0, 1}, out + err
    (run,) = (where / folder).glob("*/*")
    copy = Path(shutil.copytree(run, run.with_name("later")))
    add_fields(copy, later)
    for words, answers in ANSWERS.items():
        code, out, err = pscale(
            *({"RUN": run, "LATER": copy, "FOLDER": folder}.get(word, word) for word in words)
        )
        assert code in answers, f"{words}: {out}{err}"


def add_fields(run, later):
    """Add a field to every group of every document of a run, and a column to every table."""
    documents = [*run.rglob("*.json"), *run.glob("*.jsonl")]
    tables = [*run.glob("data/*.parquet")]
    assert {file.name for file in documents} >= {"run.json", "case.json", "journal.jsonl"}
    assert tables
    for file in documents:
        texts = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        file.write_text(
            "".join(f"{json.dumps(with_more_fields(json.loads(text), later))}\n" for text in texts)
        )
    for file in tables:
        table = pq.read_table(file)
        pq.write_table(table.append_column("later", [[str(later)] * len(table)]), file)


def with_more_fields(value, later):
    """Return a document with a field more in every group."""
    if isinstance(value, list):
        return [with_more_fields(each, later) for each in value]
    if not isinstance(value, dict):
        return value
    grown = {name: each if name in BY_NAME else with_more_fields(each, later) for name, each in value.items()}
    return grown | {"later": later}
