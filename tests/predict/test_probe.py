"""Which ranks a probe stands for, and what a prediction makes of what it measured."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from lone_ranks import alone, recorder_of
from plans import on_plan
from training.test_offload import GPT, MOE

from pscale.analysis.text import duration_3
from pscale.cli import predict as predict_module
from pscale.cli.predict import LoneRanks
from pscale.config import Inject, Launch, Plan
from pscale.launch import local
from pscale.launch.machine import inspect
from pscale.mesh.alone import Arriving, EmulatedComm
from pscale.predict import probe as probe_module
from pscale.predict.costs import Costs
from pscale.predict.engine import predict
from pscale.predict.probe import Probes, kinds_of
from pscale.predict.profile import Distribution, empty_profile
from pscale.predict.step_program import step_program
from pscale.worker import lone_rank
from pscale.worker.job import JobSpec

NOTHING = empty_profile("host", "processor", 2)
MIXED = replace(MOE, model=replace(MOE.model, layers=6, every=3))


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        (on_plan(GPT, Plan()), [0]),
        (on_plan(GPT, Plan(tp=2, dp=2)), [0]),
        (on_plan(GPT, Plan(pp=4), 4), [0, 1, 3]),
        (on_plan(GPT, Plan(dp=2, pp=2), 2), [0, 2]),
        (on_plan(MIXED, Plan(ep=2, pp=6), 4), [0, 2, 4, 10]),
    ],
    ids=["serial", "tp", "pp", "dp pp", "every third stage has experts"],
)
def test_ranks_that_compute_the_same_are_one_kind(case, ranks):
    assert [kind.rank for kind in kinds_of(case)] == ranks


@pytest.mark.parametrize(
    ("plan", "micro_batches", "given", "cores", "copies"),
    [
        (Plan(dp=2), 1, {}, 2, 2),
        (Plan(dp=2), 1, {}, 64, 2),
        (Plan(dp=8), 1, {}, 4, 4),
        (Plan(dp=8), 1, {"threads": 2}, 4, 2),
        (Plan(dp=8), 1, {"threads": 8}, 4, 1),
        (Plan(dp=8), 1, {"launch": Launch(ranks_per_node=3)}, 8, 3),
        (Plan(pp=4), 1, {}, 8, 1),
        (Plan(pp=4), 9, {}, 8, 3),
        (Plan(pp=2, dp=4), 1, {}, 8, 4),
    ],
)
def test_so_many_copies_run_at_once_as_ranks_of_a_node_compute_at_once(
    plan, micro_batches, given, cores, copies
):
    case = replace(on_plan(GPT, plan), **given)
    case = replace(case, train=replace(case.train, micro_batches=micro_batches))
    assert probe_module._copies(case, cores) == copies


def test_fewer_copies_run_where_memory_has_no_room_for_all(tmp_path):
    case, launched = on_plan(GPT, Plan(dp=8)), []

    def launch(kind, repeat, _):
        launched.append((kind.copies, kind.case.model.layers))
        return alone(kind, repeat, tmp_path)

    Probes(NOTHING, launch, lambda kind: kind.copies <= 3, 8).measure([case], 0.0)
    assert launched == [(2, GPT.model.layers)]


def test_a_probe_knows_neither_delays_nor_other_networks_and_is_of_one_number_of_threads():
    case = on_plan(GPT, Plan(dp=2))
    late = replace(case, inject=Inject(rank=0, delay_s=1.0))
    more = replace(case, ranks=4, plan=Plan(dp=4), train=replace(case.train, batch=16))
    threads = replace(case, threads=2)
    names = [[kind.name for kind in kinds_of(each)] for each in (case, late, more, threads)]
    assert names[0] == names[1] == names[2] != names[3]
    assert kinds_of(late)[0].case.inject == Inject()


def test_a_rank_is_timed_by_the_cpu_unless_other_threads_or_files_take_part(tmp_path, monkeypatch):
    case = on_plan(GPT, Plan(dp=2))
    offloading = replace(case, plan=replace(case.plan, offload="both"))
    timed = {"one thread": case, "two threads": replace(case, threads=2), "offload": offloading}
    for name, each in timed.items():
        (kind,) = kinds_of(each)
        monkeypatch.setattr(local, "launch", lambda *_: SimpleNamespace(status="ok"))
        monkeypatch.setattr(predict_module, "command", lambda *_, **__: None)
        ranks = LoneRanks(launcher=None, here=inspect(), folder=tmp_path / name)
        spec = JobSpec.read(ranks(replace(kind, copies=3), 0, 1.0).parent)
        assert (spec.task, spec.cpu_time, spec.processes) == ("probe", name == "one thread", 3)


def test_how_ranks_scatter_is_that_of_the_run_where_there_is_one(probed):
    case = on_plan(GPT, Plan(dp=2))
    alone, _ = probed(case)
    late = [replace(pace, case="traced", own=1 + np.eye(len(pace.own), 2)) for pace in alone.paces]
    known = replace(NOTHING, paces=tuple(late), cases=())
    found, _ = probed(case, known)
    assert found.paces is known.paces
    assert {pace.case for pace in alone.paces} == {case.id}


@pytest.fixture
def probed(tmp_path):
    """Return a function that probes a case, and all the launches of that."""

    def measure(case, profile=NOTHING, seconds=0.0):
        asked = []

        def launch(kind, repeat, share_s):
            asked.append((kind.rank, repeat, share_s))
            return alone(kind, repeat, tmp_path / f"{kind.name}-{repeat}")

        probes = Probes(profile, launch)
        probes.measure([case], seconds)
        return probes.profile_for(case), asked

    return measure


def test_costs_of_a_probed_rank_are_measured_and_add_up_to_its_own_step(probed):
    case = on_plan(GPT, Plan())
    profile, asked = probed(case)
    assert asked == [(0, 0, 0.0)]
    costs = Costs(profile, None)
    (block,) = step_program(case).blocks
    total_s = sum(costs.segment(each).mean_s for each in block.step[1::2])
    assert not [*costs.notes()]
    made = predict(case, profile)
    assert made.losses["compute"] == pytest.approx(made.step_s.value)
    assert made.draws.min() / 1.5 < total_s < made.draws.max() * 1.5
    assert profile.segments.keys() >= {each.key for each in block.step[1::2]}
    assert any(note.startswith("computing is measured: ") for note in made.notes)
    assert all(each.unsure_s == 0 for each in map(costs.segment, block.step[1::2]))


def test_a_second_launch_tells_how_launches_scatter_and_the_time_is_shared_out(probed, monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(probe_module, "time", clock)
    profile, asked = probed(on_plan(GPT, Plan(pp=4), 4), seconds=8.0)
    assert [each[1] for each in asked] == [0, 0, 0, 1, 1, 1]
    assert [sorted(each[0] for each in asked[at : at + 3]) for at in (0, 3)] == [[0, 1, 3]] * 2
    assert [each[2] for each in asked] == pytest.approx([8 / 6] * 3 + [8 / 3] * 3)  # here launches take none
    assert profile.degrees == 3
    assert profile.spread > 0
    assert {pace.ranks for pace in profile.paces} == {4}


def test_no_round_of_launches_begins_when_the_time_is_over(probed, monkeypatch):
    clock = SimpleNamespace(monotonic=count(step=30).__next__)
    monkeypatch.setattr(probe_module, "time", clock)
    _, asked = probed(on_plan(GPT, Plan()), seconds=70.0)
    assert [each[1:] for each in asked] == [(0, 70 / 9), (1, 40 / 8), (2, 10 / 7)]


def ticking(case, tick_ns):
    """Return a recorder whose clock passes by so much at each look, whatever the machine."""
    recorder = recorder_of(case)
    recorder.now = count(step=tick_ns).__next__
    return recorder


def test_copies_are_pooled_up_to_the_last_step_that_all_took(tmp_path, monkeypatch):
    case = on_plan(GPT, Plan(dp=2))

    def computed(ticks_ns, copies):
        def launch(kind, repeat, _):
            assert kind.copies == len(ticks_ns)
            folder = tmp_path / f"{ticks_ns}"
            for copy, tick_ns in enumerate(ticks_ns):
                monkeypatch.setattr(lone_rank, "_FEWEST", 3 + copy)
                data = alone(kind, repeat, folder, ticking(case, tick_ns), copy)
            return data

        probes = Probes(NOTHING, launch, cores=copies)
        probes.measure([case], 0.0)
        profile = probes.profile_for(case)
        return sum(each.times.mean for each in profile.segments.values() if each.work), profile.notes[0]

    one, two = computed((1000,), 1), computed((1000, 3000), 2)
    assert two[0] == pytest.approx(2 * one[0])
    assert "3 steps of each kind of rank, alone in 2 copies at once, in 1 launch" in two[1]
    assert "3 steps of each kind of rank, alone, in 1 launch" in one[1]


def test_a_slow_launch_among_others_changes_nothing(tmp_path, monkeypatch):
    case, clock = on_plan(GPT, Plan()), SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(probe_module, "time", clock)

    def computed(*ticks_ns):
        def launch(kind, repeat, _):
            return alone(kind, repeat, tmp_path / f"{ticks_ns}", ticking(case, ticks_ns[repeat]))

        probes = Probes(NOTHING, launch)
        probes.measure([case], 1.25 * len(ticks_ns))
        return sum(each.times.mean for each in probes.profile_for(case).segments.values() if each.work)

    assert computed(1000, 10_000, 1000) == pytest.approx(computed(1000))


def test_what_a_profile_knows_is_not_probed_again(probed):
    case = on_plan(GPT, Plan(dp=2))
    known, _ = probed(case)
    again, asked = probed(replace(case, ranks=4, plan=Plan(dp=4), train=replace(case.train, batch=16)), known)
    assert not asked
    assert again is known
    _, asked = probed(replace(case, train=replace(case.train, batch=16)), known)
    assert asked


def test_a_traced_rank_is_probed_in_turn_and_computing_takes_as_much_longer_as_its_own_did(probed, tmp_path):
    traced = on_plan(GPT, Plan(dp=2))
    asked = replace(traced, train=replace(traced.train, batch=16))
    known, _ = probed(traced)
    launched = {}

    def launch(kind, repeat, _):
        order.append(kind.case.train.batch)
        if kind.name not in launched:
            launched[kind.name] = alone(kind, repeat, tmp_path / kind.name)
        return launched[kind.name]

    def measured(run):
        probes = Probes(run, launch)
        probes.measure([asked], 0.0)
        return probes.profile_for(asked)

    found = {}
    for longer in (1, 100):
        order = []
        slower = {
            key: replace(each, times=Distribution.of(longer * each.times.values))
            for key, each in known.segments.items()
        }
        found[longer] = measured(replace(known, cases=(traced,), segments=slower))
        assert sorted(order) == [8, 16]
    (block,) = step_program(asked).blocks
    for each in block.step[1::2]:
        times = [found[longer].segments[each.key].times.mean for longer in (1, 100)]
        assert times[1] == pytest.approx(100 * times[0])
    works = [each for each in block.step[1::2] if each.work]
    scatter = [found[1].segments[each.key].times for each in works]
    relative = [each.values / each.mean for each in scatter]
    assert all(each == pytest.approx(relative[0]) for each in relative)  # as in the run, whatever the segment
    assert np.ptp(relative[0]) > 0
    assert all("computing is multiplied by " in each.notes[-1] for each in found.values())
    scattered = replace(known, cases=(traced,), segments=slower, spread=10.0, degrees=5)
    by_chance, alone_only = measured(scattered), measured(replace(known, cases=()))
    assert by_chance.notes[-1].startswith("computing is multiplied by 1.00: ")
    assert by_chance.notes[-1].endswith("of which chance explains 100%")
    for each in block.step[1::2]:
        times = [made.segments[each.key].times.mean for made in (by_chance, alone_only)]
        assert times[0] == pytest.approx(times[1])
    order = []
    assert "is left out" in measured(replace(known, cases=(replace(traced, threads=2),))).notes[-1]
    assert order == [16]


def test_ranks_that_do_not_fit_are_probed_with_as_many_layers_as_fit_and_the_rest_is_extrapolated(tmp_path):
    deep = replace(GPT, model=replace(GPT.model, layers=8))
    case, launched = on_plan(deep, Plan(pp=2), 2), []

    def launch(kind, repeat, _):
        launched.append(kind.case.model.layers)
        return alone(kind, repeat, tmp_path / kind.name)

    def computes(fits):
        launched.clear()
        probes = Probes(NOTHING, launch, fits)
        probes.measure([case], 0.0)
        profile, (first, *_) = probes.profile_for(case), step_program(case).blocks
        costs = [Costs(profile, None).segment(each) for each in first.step[1::2]]
        return profile, costs

    profile, costs = computes(lambda kind: kind.case.model.layers <= 4)
    assert launched == [4, 4]
    assert any(note.endswith("with 4 of 8 layers, which is what fits in memory") for note in profile.notes)
    assert any(each.unsure_s for each in costs)
    assert sum(each.mean_s for each in costs) > sum(each.times.mean for each in profile.segments.values()) / 2
    computes(lambda _: False)
    assert launched == [2, 2]
    profile, costs = computes(lambda _: True)
    assert launched == [8, 8]
    assert not any(each.unsure_s for each in costs)


def test_computing_during_exchanges_takes_as_much_longer_as_in_the_run(probed):
    case = on_plan(GPT, Plan(dp=2, zero=3))
    unknown, _ = probed(case)
    assert any("is taken as long as without: no run tells" in note for note in unknown.notes)
    one = next(each for each in unknown.segments.values() if each.work)
    alone_s, longer_s = one.times.mean, 1e5  # longer than any machine stops
    pair = {
        "alone": replace(one, overlapped=False),
        "under": replace(one, overlapped=True, times=Distribution.of(np.array([alone_s + longer_s]))),
    }
    found, _ = probed(case, replace(NOTHING, segments=pair))
    own = [each for key, each in found.segments.items() if each.work and key not in pair]
    assert {each.overlapped for each in own} == {True, False}
    assert all((each.times.mean > longer_s) == each.overlapped for each in own)
    assert any(f"takes {duration_3(longer_s)} longer, as in the run" in note for note in found.notes)


def test_what_arrives_from_nobody_is_small_and_normal_and_what_is_gathered_is_like_that_of_this_rank():
    comm = EmulatedComm([2, 3], [1, 2], Arriving(np.dtype(np.float16)))
    assert (comm.size, comm.rank) == (6, 5)
    assert (comm.Sub([True, False]).size, comm.Sub([False, True]).rank) == (2, 2)
    for kind in (np.float32, np.float64):
        out = np.full(200_000, np.nan, kind)
        comm.Irecv(out, 0)
        assert 0.0005 < out.std() < 0.002
        assert (np.abs(out) > np.finfo(kind).smallest_normal).all()
    half = np.zeros(1000, np.uint16)
    comm.Irecv(half, 0)
    assert 0 < np.abs(half.view(np.float16)).mean() < 0.01
    counts = np.zeros((6, 2), np.int64)
    comm.Allgather(np.array([3, 4]), counts)
    assert (counts == [3, 4]).all()
