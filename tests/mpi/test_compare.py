"""Two real runs, of which one has more to do."""

import json
import os
import subprocess

from whole_runs import LIMIT_S

ONE = ("--set", "sweep={ranks: [1]}", "--set", "repeat=4", "--set", "train.steps=8")
LARGER = ("--set", "train.batch=64")  # of the same label
# Computing is sleep for the most part, so that cores that others use too change little.
SLEEPING = """
import time
import pscale.nn.loss as loss
compute = loss.CrossEntropy.forward
def slow_to_compute(self, logits, *arguments):
    time.sleep(2e-3 * len(logits))
    return compute(self, logits, *arguments)
loss.CrossEntropy.forward = slow_to_compute
"""


def compare(cli, *arguments):
    done = subprocess.run(
        cli.command("compare", *arguments), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert "Traceback" not in done.stderr
    return done


def test_a_run_with_more_work_is_found_slower_and_what_changed_is_named(cli, tiny, monkeypatch):
    (cli.folder / "sitecustomize.py").write_text(SLEEPING)
    monkeypatch.setenv("PYTHONPATH", str(cli.folder), prepend=os.pathsep)
    before = cli.run(tiny, *ONE)
    after = cli.run(tiny, *ONE, *LARGER)
    done = compare(cli, before.folder, after.folder, "--format", "json", "--fail-if", "slower:3%")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    (case,) = document["cases"]
    assert (case["answer"], case["matched_by"]) == ("slower", "label")
    assert case["a_launches"] == case["b_launches"] == 4
    assert case["ratio"]["value"] > 2
    assert {"name": "train.batch", "a": "8", "b": "64"} in document["changes"]
    assert any("The work of a step differs" in note for note in document["notes"])
    assert compare(cli, before.folder, before.folder, "--fail-if", "slower").returncode == 0
