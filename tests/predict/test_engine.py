"""A prediction of what was measured is what was measured; profiles are what they say."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from synthetic import write_bare

from pscale.analysis.frames import load
from pscale.config import Plan
from pscale.errors import UsageError
from pscale.mesh.dry import AxisCall
from pscale.predict.costs import Costs, _Calls, _Rates, _usual_of
from pscale.predict.engine import _interval, paces_for, predict
from pscale.predict.network import Fabric
from pscale.predict.profile import (
    Calibrated,
    CallKey,
    CallTimes,
    Distribution,
    Machine,
    Profile,
    SegmentTimes,
    _pooled,
    _Sample,
    case_of,
)
from pscale.predict.step_program import step_program
from pscale.predict.walk import StepPaces, Walk
from pscale.runs.step_time import step_time, step_times
from pscale.runs.store import part_path
from pscale.simulator.network import Link, Network

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"


@pytest.fixture(scope="module", params=["pipeline", "communication"])
def run(request):
    return load(GALLERY / request.param)


def test_what_was_recorded_is_predicted_again(run):
    profile = Profile.of_run(run)
    for pace in profile.paces:
        ends = run.ends[(run.ends["case"] == pace.case) & (run.ends["repeat"] == pace.repeat)]
        measured = step_time(step_times(ends.sort_values("step")["end_s"].to_numpy()))
        found = predict(case_of(run, pace.case), profile, draws=400)
        assert found.step_s.value == pytest.approx(measured, rel=0.03)
        assert found.step_s.low < measured < found.step_s.high
        assert sum(found.losses.values()) == pytest.approx(found.step_s.value)
        assert found.notes == ()


def test_a_run_without_events_says_how_to_get_them():
    untraced = load(GALLERY / "weak")
    with pytest.raises(UsageError, match=r"weak/data.*--set trace=true"):
        Profile.of_run(untraced)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_of_another_program_says_what_can_be_predicted_of_it(tmp_path, recorded):
    row = {"case": "0123456789", "repeat": 0, "label": "a", "ranks": 2, "status": "ok"}
    planned = {"0123456789": {"model": {"kind": "program"}}}
    run = SimpleNamespace(path=tmp_path, planned=planned, cases=pd.DataFrame([row]))
    if recorded:
        events = part_path(tmp_path / "data", "events", "0123456789", 0)
        events.parent.mkdir(parents=True)
        events.touch()
    with pytest.raises(UsageError, match=r"another program.*pscale's own trainer") as error:
        Profile.of_run(run)
    assert ("--what-if NETWORK.yaml" in str(error.value)) == recorded


def test_what_keeps_its_time_while_the_pace_changes_keeps_its_mean():
    paces = np.random.default_rng(1).lognormal(sigma=1.0, size=400)
    found = _pooled([_Sample(np.full(200, 3.0), part) for part in (paces[:200], paces[200:])])
    assert found.mean * paces.mean() == pytest.approx(3.0)


def test_a_distribution_keeps_the_mean_and_the_order():
    sample = np.random.default_rng(1).exponential(size=999)
    for count in (1, 2, 63, 64, 65, 999):
        found = Distribution.of(sample[:count])
        assert found.mean == pytest.approx(sample[:count].mean())
        assert (np.diff(found.values) >= -1e-12).all()


def taken(known, key):
    """Return how long a call takes, by others: `known` is how long by verb, mode, ranks and bytes."""
    measured = {
        CallKey(*one): CallTimes(last=Distribution.of(np.array([time_s])), late=None, together=0.0)
        for one, time_s in known.items()
    }
    nearest, factor = _Calls(measured).nearest(CallKey(*key))
    return nearest.after_last.mean * factor


@pytest.mark.parametrize("times", [lambda size: 2 * (size - 1) / size, lambda size: 2 * math.log2(size)])
def test_bytes_of_a_call_on_more_ranks_grow_as_they_did_on_those_measured(times):
    def takes_s(size, count):
        return 1e-3 * math.log2(size) + 1e-7 * times(size) * count

    known = {
        ("all_reduce", "call", size, each): takes_s(size, each) for size in (4, 8) for each in (8, 65536)
    }
    assert taken(known, ("all_reduce", "call", 32, 65536)) == pytest.approx(takes_s(32, 65536))


def test_a_call_is_taken_from_one_that_moves_as_many_bytes_and_from_none_that_was_over_before_its_wait():
    parts = {("all_gather", "wait", size, 81920 // size): 2e-3 * math.log2(size) for size in (2, 4, 8)}
    hidden = {("all_gather", "wait", size, 36864 // size): 0.0 for size in (2, 4, 8)}
    assert taken(parts | hidden, ("all_gather", "wait", 16, 81920 // 16)) == pytest.approx(8e-3)


def segment(flops, time_s):
    """Return a segment of ten products that was measured."""
    return SegmentTimes(
        work=f"{flops}",
        phase="forward",
        overlapped=False,
        amounts={"segments": 1.0, "product kernels": 10.0, "product flops": flops},
        times=Distribution.of(np.array([time_s])),
        polled=0.0,
        copied=0.0,
        stalled=0.0,
    )


def test_work_is_taken_from_the_nearest_and_its_misfit_counts_the_less_the_more_they_differ():
    known = [segment(flops, 1e-4 + 1e-10 * flops) for flops in (1e6, 4e6, 4e7, 1e8)]
    odd = segment(8e6, 2 * (1e-4 + 1e-10 * 8e6))
    rates = _Rates([*known, odd])

    def above(flops):
        found, factor = rates.nearest(segment(flops, 1.0))
        assert found is odd
        return found.times.mean * factor / (1e-4 + 1e-10 * flops)

    assert above(8e6) == pytest.approx(2)
    assert above(8e6) > above(1.2e7) > above(1.6e7) > 1


def test_work_of_one_shape_tells_of_another_by_physics_and_how_unsure_that_is():
    rates = _Rates([segment(1e8, 2e-2)])
    times, errors = [], []
    for flops in (1e6, 1e7, 1e8, 1e9, 1e10):
        found, factor = rates.nearest(segment(flops, 1.0))
        times.append(found.times.mean * factor)
        errors.append(rates.error(segment(flops, 1.0)))
    assert times == sorted(times)
    assert 5 < times[3] / times[2] < 15
    assert 50 < times[4] / times[2] < 150
    assert times[0] > times[2] / 100  # kernels that compute next to nothing are called all the same
    assert errors[2] == min(errors)
    assert rates.rests_on(segment(4e8, 1.0)) == "extrapolated 4 times in FLOPs by rates usual of a core"
    assert _Rates([segment(1e6, 1e-4), segment(1e8, 2e-2)]).rests_on(segment(4e7, 1.0)) == (
        "interpolated in FLOPs by rates usual of a core"
    )


def test_rates_of_this_machine_tell_of_shapes_that_a_run_has_not_and_the_run_of_its_pace():
    def takes_s(kernels, flops):
        return 4e-5 * kernels + 2e-10 * flops

    def amounts(kernels, flops):
        return {"segments": 1.0, "product kernels": kernels, "product flops": flops}

    calibration = [
        Calibrated(shape, amounts(10.0, flops), takes_s(10.0, flops))
        for shape, flops in enumerate((1e4, 1e6, 1e7, 1e8))
    ]
    pace, flops = 1.3, 1e10
    slow = segment(3e6, pace * takes_s(10.0, 3e6))
    bare, known = _Rates([slow]), _Rates([slow], calibration)
    found, factor = known.nearest(segment(flops, 1.0))
    truth = pace * takes_s(10.0, flops)
    assert found.times.mean * factor == pytest.approx(truth, rel=0.2)
    assert known.error(segment(flops, 1.0)) < bare.error(segment(flops, 1.0)) / 2
    assert known.rests_on(segment(6e6, 1.0)) == "extrapolated 2 times in FLOPs by rates of this machine"


def test_the_rates_that_a_run_recorded_are_taken_for_usual():
    machine = Machine(host="", cpu_model="", cores=2, ranks_per_node=2, gemm_gflops=50.0, stream_gb_s=25.0)
    usual = _usual_of(machine)
    assert usual["product flops"] == pytest.approx(1 / 50e9)
    assert usual["far bytes"] == pytest.approx(1 / 25e9)
    unknown = replace(machine, gemm_gflops=math.nan, stream_gb_s=math.nan)
    assert _usual_of(unknown) == _usual_of(replace(unknown, cores=4))


@pytest.mark.parametrize("factor", [4, 16])
def test_a_batch_that_was_not_measured_takes_about_as_many_times_as_long(run, factor):
    profile = Profile.of_run(run)
    case = case_of(run, profile.paces[0].case)
    larger = replace(case, train=replace(case.train, batch=factor * case.train.batch))
    once, more = (predict(each, profile, draws=40) for each in (case, larger))
    times = more.step_s.value / once.step_s.value
    assert factor / 2 < times < 2 * factor
    assert more.step_s.low < factor * once.step_s.value < more.step_s.high
    assert any(f"extrapolated {factor} times in FLOPs" in note for note in more.notes)


def test_a_step_takes_no_less_than_its_computing_that_was_measured_however_unsure_the_rest_is(run):
    profile = Profile.of_run(run)
    case = case_of(run, profile.paces[0].case)
    program = step_program(case)
    costs, chosen = Costs(profile, None), paces_for(case, profile)
    once = np.ones((1,) * (1 + len(program.sizes)))
    paces = [StepPaces(computing=[once] * len(program.blocks), calls=np.ones(1))] * 2
    still = Walk(case, program, costs, paces, None).run()
    certain_s, known = still.certain_s, replace(profile, spread=0.01, degrees=9)
    interval = _interval(still.lengths, len(chosen), known, certain_s, 100 * certain_s)
    assert 0.9 * certain_s < interval.low <= interval.value
    assert interval.high > 10 * interval.value


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_step_is_as_unsure_as_its_computing_whether_stages_compute_or_wait(run, stages, monkeypatch):
    profile = replace(Profile.of_run(run), spread=1e-6, degrees=99)
    case = case_of(run, profile.paces[0].case)
    layers, plan = replace(case.model, layers=4), Plan(pp=stages)
    other = replace(case, model=layers, plan=plan, ranks=stages, train=replace(case.train, micro_batches=1))
    monkeypatch.setattr(_Rates, "error", lambda *_: 0.1)
    free = {
        key: replace(each, last=None, late=Distribution.of(np.zeros(1)))
        for key, each in profile.calls.items()
    }
    times = {
        key: replace(each, work=f"other {each.work}") for key, each in profile.segments.items() if each.work
    }
    step_s = predict(other, replace(profile, calls=free, segments=times), draws=40).step_s
    assert math.log(step_s.high / step_s.value) == pytest.approx(1.645 * 0.1, rel=0.1)


def test_a_step_takes_no_less_than_the_bytes_for_which_ranks_stop_at_the_bandwidth_of_the_network(run):
    profile, bytes_per_s = Profile.of_run(run), 1e6
    case = case_of(run, max(profile.paces, key=lambda pace: pace.ranks).case)
    slow = Network(links={"all": Link(latency_s=0.0, bytes_per_s=bytes_per_s)})
    blocking = replace(case, plan=Plan(tp=2), ranks=2)
    program, fabric = step_program(blocking), Fabric(slow, step_program(blocking))
    stopped_s = sum(
        fabric.price(each.axis, each.verb, each.bytes).busy_s
        for each in program.blocks[0].step
        if isinstance(each, AxisCall) and each.event == "call"
    )
    assert stopped_s > 0
    found = predict(blocking, replace(profile, spread=0.01, degrees=9), slow, draws=40)
    assert found.step_s.low > 0.9 * stopped_s


def bare_rows(verb, transfer_s, sends):
    """Return ten calls of each rank, which wait as well; `sends` are the bytes that each sends by a call."""
    what = {"axis": "dp", "verb": verb, "count": 10, "wait_s": 1.0, "hidden_s": 0.0, "exposed_s": 0.0}
    return [
        what | {"rank": rank, "phase": phase, "bytes": 10 * sent, "transfer_s": 10 * factor * transfer_s}
        for rank, sent in enumerate(sends)
        for phase, factor in (("forward", 1), ("backward", 9))  # backward: beside computing
    ]


@pytest.mark.parametrize(
    ("verb", "sends", "root"),
    [
        ("all_to_all", (512, 512, 512), False),
        ("broadcast", (512, 0, 0), True),
        ("broadcast", (512, 0, 0), False),
        ("scatter", (512, 0, 0), False),
        ("reduce", (512, 512, 512), True),
        ("reduce", (512, 512, 512), False),
    ],
)
def test_a_blocking_call_that_was_not_traced_takes_the_time_of_the_bare_one(run, tmp_path, verb, sends, root):
    bare = load(write_bare(tmp_path / "bare", 3, {512: bare_rows(verb, 3e-3, sends)}))
    traced, profile = Profile.of_run(run), Profile.of_run(run, bare)
    costs = Costs(profile, None)
    arriving = 512 // 3 if verb == "scatter" else 512
    call = AxisCall("call", "dp", verb, sends[0 if root else -1], root=root, arriving=arriving)
    assert costs.call(call, 3).last_s == pytest.approx(3e-3)
    assert not [*costs.notes()]
    assert "in run bare" in profile.notes[-1]
    assert profile.hash != traced.hash
    for key, each in traced.calls.items():
        assert profile.calls[key].after_last.mean == each.after_last.mean


def test_bare_collectives_of_a_run_without_any_are_refused(run):
    with pytest.raises(UsageError, match="has no bare collectives"):
        Profile.of_run(run, run)
