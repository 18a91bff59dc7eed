"""Under a real MPI: the parallel run is the serial run, and makes the calls that were predicted."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from whole_runs import TINY, Cli

from pscale.data.synthetic import WEIGHTS
from pscale.training.dry_run import step_calls
from pscale.training.prediction import predict

SUITES = Path(__file__).parents[2] / "suites"


def difference(found, expected):
    return float(np.abs(np.subtract(found, expected)).max() / np.abs(expected).max())


def test_the_linear_problem_is_solved_alike_on_1_2_4_and_8_ranks(cli):
    options = ("--set", "repeat=1", "--set", "timing.gemm_peak=false", "--set", "timing.overhead_steps=0")
    rows = cli.run(SUITES / "linear.yaml", *options).rows("cases")
    assert sorted(row["ranks"] for row in rows) == [1, 2, 4, 8]
    serial = next(row for row in rows if row["ranks"] == 1)
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        assert np.abs(np.subtract(row["weights"], WEIGHTS)).max() < 1e-3
        assert difference(row["weights"], serial["weights"]) < 1e-12
        assert difference(row["losses"], serial["losses"]) < 1e-12


@pytest.fixture(scope="module")
def reductions(tmp_path_factory):
    cli = Cli(tmp_path_factory.mktemp("reductions"))
    sweep = "sweep: {ranks: [1, 4], plan.reduction: [bucketed, all-reduce, gather-broadcast]}"
    sweep += "\nexclude: [\"ranks == 1 and plan.reduction != 'bucketed'\"]"  # alone they are one
    text = TINY.replace("sweep: {ranks: [1, 2, 4]}", sweep).replace("dp: ranks", "dp: ranks, bucket: 20KiB")
    return cli.run(cli.suite(text))


def test_every_exchange_of_gradients_gives_the_losses_of_the_serial_run(reductions):
    rows = list(reductions.cases.values())
    assert len(rows) == 4
    serial = next(row for row in rows if row["ranks"] == 1)
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        assert difference(row["losses"], serial["losses"]) < 1e-12
        assert row["replica_spread"] <= 1e-15


def test_the_calls_and_bytes_of_every_step_are_those_predicted(reductions):
    counted = Counter()
    for row in reductions.rows("calls"):
        key = (row["case"], row["rank"], row["step"], row["verb"])
        counted[key] += np.array([row["count"], row["bytes"]])
    predicted = Counter()
    for case in reductions.planned():
        for rank in range(case.ranks):
            for call in step_calls(case, rank):
                for step in range(case.train.steps):
                    key = (case.id, rank, step, call.verb)
                    predicted[key] += np.array([call.count, call.step_bytes])
    assert {key: tuple(value) for key, value in counted.items()} == {
        key: tuple(value) for key, value in predicted.items()
    }


def test_every_rank_holds_the_memory_that_is_predicted(reductions):
    planned = {case.id: case for case in reductions.planned()}
    for row in reductions.rows("ranks"):
        predicted = predict(planned[row["case"]], row["rank"]).memory_bytes
        assert {kind: row[f"{kind}_bytes"] for kind in predicted} == predicted


def test_the_kinds_of_time_of_every_phase_add_up_to_its_wall_time(reductions):
    rows = reductions.rows("steps")
    for row in rows:
        parts = row["compute_s"] + row["transfer_s"] + row["wait_s"] + row["copy_s"]
        assert parts == pytest.approx(row["wall_s"], abs=1e-9)
        assert min(row[name] for name in ("compute_s", "transfer_s", "wait_s", "hidden_s")) >= -1e-9
    walls = Counter()
    for row in rows:
        walls[row["case"], row["rank"]] += row["wall_s"]
    for rank in reductions.rows("ranks"):
        whole = walls[rank["case"], rank["rank"]] + rank["unaccounted_s"]
        assert whole == pytest.approx(rank["wall_s"], abs=1e-9)
        assert rank["unaccounted_s"] >= 0


def test_a_run_evaluates_between_its_steps_as_on_one_rank_and_reports_the_loss(cli):
    suite = TINY.replace("clip: 0.5", "clip: 0.5, evaluate: {every: 4, batches: 2}")
    one, two = cli.run(cli.suite(suite), "--set", "sweep.ranks=[1, 2]", report=True).rows("cases")
    assert one["validation_steps"] == two["validation_steps"] == [4, 8]
    assert one["validation_losses"] == pytest.approx(two["validation_losses"], rel=1e-12)
    assert one["validation_losses"][1] < one["validation_losses"][0]
    assert one["evaluate_s"] > 0
    assert "## Time to a validation loss" in (cli.newest().folder / "report.md").read_text()


def test_verify_finds_a_reduction_that_is_missing(cli, tiny, sitecustomize):
    sitecustomize(
        "import pscale.parallel.reduction as reduction\n"
        "def forget(self): self._pending.clear()\n"
        "reduction.Bucketed.ready = lambda self, unit: None\n"
        "reduction.Bucketed.finish = forget\n"
    )
    (verdict,) = cli.verify(tiny, "--only", "ranks == 2", code=1)
    assert not verdict["passed"]
    assert "gradient" in verdict["reason"]  # calls are counted by the program that makes them
