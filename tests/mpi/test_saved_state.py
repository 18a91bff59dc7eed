"""Saved state under a real MPI: another plan goes on from it."""

import pytest
from whole_runs import TINY

from pscale.parallel.saved_state import find

SAVES = "train: {batch: 8, steps: 5, warmup: 0, lr: 1.0e-2, clip: 0.5, save: {every: 5, folder: states}}"
GOES_ON = "train: {batch: 8, steps: 5, warmup: 0, lr: 1.0e-2, clip: 0.5, load: half, load_by: %s}"


@pytest.mark.parametrize("load_by", ["read", "broadcast"])
def test_another_plan_goes_on_from_a_state_as_if_the_run_had_not_stopped(cli, load_by):
    train = next(line for line in TINY.splitlines() if line.startswith("train"))
    saves = TINY.replace(train, SAVES)
    one = cli.run(cli.suite(saves), "--set", "sweep.ranks=[2]", "--set", "plan.zero=1")
    (row,) = one.rows("cases")
    assert row["save_s"] > 0
    assert row["saved_bytes"] == 3 * 8 * row["parameters"]
    assert row["load_s"] is None
    find(cli.folder / "states").rename(cli.folder / "half")
    goes_on = TINY.replace(train, GOES_ON % load_by).replace("plan: {dp: ranks}", "plan: {tp: ranks}")
    rest = cli.run(cli.suite(goes_on), "--set", "sweep.ranks=[2]").rows("cases")
    unbroken = cli.run(cli.suite(TINY), "--set", "sweep.ranks=[1]").rows("cases")
    assert rest[0]["losses"] == pytest.approx(unbroken[0]["losses"][5:], rel=1e-12)
    assert row["losses"] == pytest.approx(unbroken[0]["losses"][:5], rel=1e-12)
    assert rest[0]["load_read_bytes"] >= row["saved_bytes"]
    assert (rest[0]["load_broadcast_bytes"] == row["saved_bytes"]) == (load_by == "broadcast")
    refused = cli.call("run", cli.suite(goes_on.replace("width: 32", "width: 64")), code=3).stderr
    assert "model.width 32 there, 64 here" in " ".join(refused.split()), "before anything starts"
