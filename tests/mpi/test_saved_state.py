"""Saved state under a real MPI: another plan goes on from it."""

import pytest
from whole_runs import TINY

from pscale.parallel.saved_state import find

ZERO = ("--set", "plan.zero=1")
SAVES = "train: {batch: 8, steps: 5, warmup: 0, lr: 1.0e-2, clip: 0.5, save: {every: 5, folder: states}}"
GOES_ON = "train: {batch: 8, steps: 5, warmup: 0, lr: 1.0e-2, clip: 0.5, load: half}"


def test_another_plan_goes_on_from_a_state_as_if_the_run_had_not_stopped(cli):
    train = next(line for line in TINY.splitlines() if line.startswith("train"))
    (row,) = cli.run(cli.suite(TINY.replace(train, SAVES)), "--set", "sweep.ranks=[2]", *ZERO).rows("cases")
    assert row["save_s"] > 0
    assert row["saved_bytes"] == 3 * 8 * row["parameters"]
    assert row["load_s"] is None
    find(cli.folder / "states").rename(cli.folder / "half")
    (unbroken,) = cli.run(cli.suite(TINY), "--set", "sweep.ranks=[1]").rows("cases")
    assert row["losses"] == pytest.approx(unbroken["losses"][:5], rel=1e-12)
    goes_on = TINY.replace(train, GOES_ON).replace("plan: {dp: ranks}", "plan: {tp: ranks}")
    rest = cli.run(cli.suite(goes_on), "--set", "sweep={ranks: [2], train.load_by: [read, broadcast]}")
    sent = []
    for loaded in rest.rows("cases"):
        assert loaded["losses"] == pytest.approx(unbroken["losses"][5:], rel=1e-12)
        assert loaded["load_read_bytes"] >= row["saved_bytes"]
        sent.append(loaded["load_broadcast_bytes"] == row["saved_bytes"])
    assert sorted(sent) == [False, True]
    refused = cli.call("run", cli.suite(goes_on.replace("width: 32", "width: 64")), code=3).stderr
    assert "model.width 32 there, 64 here" in " ".join(refused.split()), "before anything starts"
