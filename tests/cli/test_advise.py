"""`pscale advise` without measuring: what it prints and writes, and what it refuses."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pscale.cli.app import application
from pscale.errors import PscaleError
from pscale.runs.predictions import read
from pscale.suite.expand import expand
from pscale.suite.load import load_suite

ROOT = Path(__file__).parents[2]
SUITE = """
name: small
scaling: strong
model: {kind: gpt, layers: 2, width: 64, heads: 2, sequence: 32, vocabulary: 256}
data: {kind: synthetic}
train: {batch: 2, steps: 5}
sweep: {ranks: [1, 2], reduction: [bucketed, all-reduce]}
"""


@pytest.fixture
def advise(tmp_path):
    """What runs the command on the small suite."""
    (tmp_path / "small.yaml").write_text(SUITE)

    def call(words, run=ROOT / "reports" / "gallery" / "communication"):
        typed = ["advise", tmp_path / "small.yaml", "--from", run, "--reports", tmp_path / "reports"]
        result = CliRunner().invoke(application(), [*map(str, typed), *shlex.split(words)])
        if isinstance(result.exception, PscaleError):
            return str(result.exception)
        assert result.exit_code in (0, 2), result.exception
        return result.output

    return call


def test_it_ends_with_the_plan_to_paste_and_keeps_the_suite_and_the_predictions(advise, tmp_path):
    out = advise("--ranks 2 --measure 0 --any-machine --memory 4GiB")
    folder = tmp_path / "reports" / "small-advice"
    assert f"predicted, not measured; to measure them: pscale run {folder / 'suite.yaml'}" in out.replace(
        "\n", " "
    )
    last = out.splitlines()[-1]
    assert last.startswith("plan: {dp: ")
    cases = expand(load_suite(folder / "suite.yaml"), {"cores": 2, "memory_gib": 1, "nodes": 1}).cases
    assert {case.train.batch for case in cases} == {2}
    assert last.startswith(f"plan: {{dp: {cases[0].plan.dp}")
    assert {each.case for each in read(folder)} == {case.id for case in cases}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ranks 2 --any-machine", "give it with --measure 0"),
        (
            "--ranks 7 --measure 0 --any-machine",
            "no plan divides batch 2, 2 layers and 2 heads by it; --ranks",
        ),
        ("--ranks 2 --measure 0 --any-machine --memory 1KiB", "fits in 1 KiB: the leanest, "),
        ("--ranks 2 --measure 0 --any-machine --memory 1KiB", "; raise --memory, or use more ranks"),
        ("--ranks 2 --measure 0 --any-machine --memory lots", "--memory: expected a size such as"),
        ("--ranks 2 --measure 1 --any-machine --memory 99999999GiB", "more than the"),
        ("--ranks 0", "--ranks"),
    ],
)
def test_what_it_refuses(advise, words, said):
    assert said in advise(words)


def test_it_refuses_a_run_of_another_machine(advise, tmp_path):
    run = shutil.copytree(ROOT / "reports" / "gallery" / "communication", tmp_path / "run")
    document = json.loads((run / "run.json").read_text())
    document["provenance"]["machine"]["cpu_model"] = "Another CPU"
    (run / "run.json").write_text(json.dumps(document))
    said = advise("--ranks 2 --measure 0", run)
    assert "run.json: provenance.machine.cpu_model: it was measured on Another CPU" in said
