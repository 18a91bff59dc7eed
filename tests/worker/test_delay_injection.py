"""A delay is waited for by exactly its length, by those it should be, and the report names rank and phase.

Ranks are threads on simulated clocks here, on which time passes by being read, spun and waited: the proof is
exact and does not depend on the machine. `tests/mpi/test_verdicts.py` stops a real rank.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from thread_mesh import Simulated, run_ranks

from pscale.analysis import messages
from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.config import Case, Data, Inject, Jitter, Model, Plan, Timing, Train, to_dict
from pscale.mesh import grid
from pscale.parallel.ranks import GROUPS
from pscale.runs.schema import PHASES
from pscale.runs.store import launch_row, read_table, write_part
from pscale.worker import job
from pscale.worker.collect import collect
from pscale.worker.delay_injection import DelayRecorder, delays_of, draw

pytestmark = pytest.mark.slow

TICK_S = Simulated.TICK_NS * 1e-9
GPT = Case(
    suite="s",
    label="l",
    ranks=4,
    model=Model(layers=4, width=8, heads=2, sequence=8),
    data=Data(kind="synthetic"),
    train=Train(batch=8, steps=12, warmup=2),
    timing=Timing(gemm_peak=False, overhead_steps=0),
    plan=Plan(dp=4),
)


def simulated(case, folder):
    """Run a case on threads whose clocks are simulated; returns its folder, as a run leaves it."""
    case = replace(case, label=case.injected or "healthy", series=case.injected)
    data, cases = folder / "data", folder / "cases"
    data.mkdir()
    cases.mkdir()
    spec = job.JobSpec(case=case, task="measure", repeat=0, folder=cases, data=data, launched_unix_s=0.0)
    spans = grid.groups(case.plan.sizes, GROUPS)
    names = [grid.axis_name(span) for span in spans]
    recorders = [
        DelayRecorder(names, delays_of(case, rank, 0), case.train.warmup, now=Simulated())
        for rank in range(case.ranks)
    ]

    def one(mesh):
        recorder = recorders[mesh.world.rank]
        result = job.run(spec, mesh, recorder, job.StartupTimes())
        collect(spec, mesh, [mesh.axis(*span) for span in spans], result, {})

    run_ranks(case.plan.sizes, one, recorders)
    row = launch_row(case, cases, {"status": "ok", "reason": ""})
    write_part(data, "cases", case.id, 0, [row | {"status": "ok"}])  # threads share the process and its cores
    document = {"format": 1, "cases": [to_dict(case) | {"id": case.id}], "repeats": 1, "seed": 1}
    (folder / "run.json").write_text(json.dumps(document))
    return folder


def times(folder, column, **chosen):
    """Return a column of the table `steps` by rank and step, added up over phases."""
    rows = read_table(folder / "data", "steps").to_pandas()
    for name, value in chosen.items():
        rows = rows[rows[name] == value]
    return rows.pivot_table(index="rank", columns="step", values=column, aggfunc="sum").to_numpy()


# With buckets every rank has entered the calls before `sync`: none can delay them there.
CALLS = [(phase, "all-reduce") for phase in PHASES] + [
    (phase, "bucketed") for phase in ("backward", "update")
]


@pytest.mark.parametrize(("phase", "reduction"), CALLS)
def test_ten_milliseconds_of_one_rank_are_ten_of_wait_on_the_others(tmp_path, phase, reduction):
    case = replace(
        GPT, plan=Plan(dp=4, reduction=reduction), inject=Inject(rank=1, phase=phase, delay_s=0.01)
    )
    folder = simulated(case, tmp_path)
    waits, others = times(folder, "wait_s"), [0, 2, 3]
    compute = times(folder, "compute_s", phase=phase)
    assert compute[1] - compute[0] == pytest.approx(0.01, abs=10 * TICK_S), (
        "it counts as compute of its phase"
    )
    # For a delay in the last phase of the last step no rank waits any more.
    met = slice(None, -1) if phase == "update" else slice(None)
    total = waits.sum(axis=1)[others] / waits[:, met].shape[1]
    assert total == pytest.approx([0.01] * 3, rel=0.002)
    assert waits[1].sum() <= 20 * TICK_S
    assert times(folder, "injected_delay_s")[1] == pytest.approx(0.01, abs=2 * TICK_S)
    summary = Findings(load(folder))
    (rank,) = summary.rows("stragglers")
    assert (rank.rank, rank.phase, rank.late_steps) == (1, phase, 12 - (phase == "update"))
    (verdict,) = summary.rows("verdicts")
    assert verdict.cause == "imbalance"
    assert "rank 1" in verdict.meaning.lower()
    assert f"mostly in {phase}" in verdict.meaning


def test_a_delayed_stage_of_a_pipeline_is_a_late_sender_to_those_downstream(tmp_path):
    case = replace(GPT, plan=Plan(pp=4), train=replace(GPT.train, micro_batches=2))
    case = replace(case, inject=Inject(rank=1, phase="forward", delay_s=0.01))
    folder = simulated(case, tmp_path)
    forward = times(folder, "wait_s", phase="forward")
    assert forward[2:] == pytest.approx(0.01, rel=0.02)
    assert forward[1].max() <= 0.0005
    calls = read_table(folder / "data", "calls").to_pandas()
    received = calls[(calls["verb"] == "receive") & (calls["phase"] == "forward")]
    waited = received.groupby("rank")["wait_s"].sum() / case.train.steps
    assert waited[[2, 3]].to_numpy() == pytest.approx(0.01, rel=0.02)
    (rank,) = Findings(load(folder)).rows("stragglers")
    assert (rank.rank, rank.phase) == (1, "forward"), "not those that pass the delay on"


def test_a_rank_that_is_delayed_in_some_steps_is_distinguished_from_one_that_is_slow(tmp_path):
    case = replace(GPT, inject=Inject(rank=3, delay_s=0.01, every=4))
    summary = Findings(load(simulated(case, tmp_path)))
    (rank,) = summary.rows("stragglers")
    assert (rank.rank, rank.late_steps, rank.steps) == (3, 3, 12)
    assert rank.late_s == pytest.approx(0.01, rel=0.01)
    (warning,) = [warning for warning in summary.rows("warnings") if warning.kind == "straggler"]
    assert "It is late in 3 of 12 steps, by 10 ms on average" in warning.text


def test_a_rank_that_is_never_late_by_much_is_late_by_what_it_was_where_it_was(tmp_path):
    run = load(simulated(replace(GPT, inject=Inject(rank=3, delay_s=0.001, every=3)), tmp_path))
    ends = run.ends.assign(end_s=run.ends["end_s"] + 0.02 * (run.ends["step"] + 1))  # as if steps took 20 ms
    (rank,) = Findings(replace(run, ends=ends)).rows("stragglers")
    assert (rank.late_steps, rank.steps) == (4, 12)
    assert rank.late_s == pytest.approx(0.001, rel=0.01)
    assert "It is late in 4 of 12 steps, by" in messages.straggler(rank)
    assert "intermittently" in messages.straggler_hint(rank)


def test_a_healthy_case_has_no_rank_to_wait_for_and_nothing_injected(tmp_path):
    folder = simulated(GPT, tmp_path)
    summary = Findings(load(folder))
    assert summary.rows("stragglers") == []
    kernels = read_table(folder / "data", "kernels").to_pandas()
    assert {*kernels.groupby("rank")["flops"].sum()} == {kernels["flops"].sum() // 4}, "all ranks do the same"
    assert not times(folder, "injected_delay_s").any()
    assert not [warning for warning in summary.rows("warnings") if warning.kind == "injected"]


def test_a_delay_is_once_a_step_where_its_phase_begins_and_in_measured_steps_alone():
    clock = Simulated()
    recorder = DelayRecorder(["dp"], {"backward": np.array([5_000_000, 0, 7_000_000])}, 2, now=clock)
    burnt = []
    for step in range(7):
        with recorder.step(step):
            for _ in range(3):
                before = clock.ns
                with recorder.phase("backward"):
                    pass
                burnt.append(clock.ns - before > 1_000_000)
    assert [place for place, late in enumerate(burnt) if late] == [6, 12]


@pytest.mark.parametrize(
    ("distribution", "deviation"), [("exponential", 1), ("normal", 1 / 3), ("uniform", 1 / np.sqrt(3))]
)
def test_draws_have_the_mean_and_the_deviation_of_their_distribution(distribution, deviation):
    drawn = draw(Jitter(distribution=distribution, mean_s=1e-3), 100_000, np.random.default_rng(3))
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(1e-3, rel=0.02)
    assert drawn.std() == pytest.approx(deviation * 1e-3, rel=0.02)


def test_jitter_differs_between_ranks_and_repeats_and_is_the_same_again():
    case = replace(GPT, jitter=Jitter(mean_s=1e-3, ranks=(0, 2)), inject=Inject(rank=2, delay_s=0.5))
    drawn = {(rank, repeat): delays_of(case, rank, repeat) for rank in range(4) for repeat in range(2)}
    assert all(not drawn[rank, 0] for rank in (1, 3))
    series = [tuple(drawn[key]["backward"]) for key in ((0, 0), (0, 1), (2, 0), (2, 1))]
    assert len({tuple(delay % 500_000_000 for delay in delays) for delays in series}) == 4
    assert min(series[2]) >= 500_000_000, "beside the delay"
    assert tuple(delays_of(case, 0, 1)["backward"]) == series[1]
    assert set(drawn[0, 0]) <= set(PHASES)
