"""Real runs, of which one takes longer for the same work and one does other work."""

import json
import os

import pytest

pytestmark = pytest.mark.slow

ONE = ("--set", "sweep={ranks: [1]}", "--set", "repeat=4", "--set", "train.steps=8")
LARGER = ("--set", "train.batch=64", "--set", "repeat=1")  # of the same label
SLEEP_S = "SLEEP_S"  # environment variable: for each sample
# Computing is sleep for the most part, so that cores that others use too change little.
SLEEPING = f"""
import os
import time
import pscale.nn.loss as loss
compute = loss.CrossEntropy.forward
def slow_to_compute(self, logits, *arguments):
    time.sleep(float(os.environ["{SLEEP_S}"]) * len(logits))
    return compute(self, logits, *arguments)
loss.CrossEntropy.forward = slow_to_compute
"""


def test_a_slower_run_is_found_so_and_one_of_other_work_is_not_compared(cli, tiny, monkeypatch):
    (cli.folder / "sitecustomize.py").write_text(SLEEPING)
    monkeypatch.setenv("PYTHONPATH", str(cli.folder), prepend=os.pathsep)
    monkeypatch.setenv(SLEEP_S, "2e-3")
    before, larger = cli.run(tiny, *ONE), cli.run(tiny, *ONE, *LARGER)
    monkeypatch.setenv(SLEEP_S, "16e-3")
    after = cli.run(tiny, *ONE)

    asked = ("--format", "json", "--fail-if", "slower:3%")
    done = cli.call("compare", before.folder, after.folder, *asked, code=1)
    (case,) = json.loads(done.stdout)["cases"]
    assert (case["answer"], case["matched_by"]) == ("slower", "id")
    assert case["a_launches"] == case["b_launches"] == 4
    assert case["ratio"] > 2

    document = json.loads(cli.call("compare", before.folder, larger.folder, *asked, code=6).stdout)
    assert document["cases"] == []
    assert "a step does different work: batch 8 and 64" in document["missing"][0]["reason"]
    assert {"name": "train.batch", "a": "8", "b": "64"} in document["changes"]
