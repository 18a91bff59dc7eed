"""A ghost makes the calls of the real trainer and sleeps for what that computes."""

from dataclasses import replace

import numpy as np
import pytest
from dry_runs import predicted_program, recorded_program
from parallel.test_collectives import BARE
from plans import LINEAR, on_plan
from thread_mesh import Simulated, run_ranks
from training.test_dry_run import named
from training.test_offload import GPT, MOE

from pscale.config import Case, Ghost, Inject, Matrix, Model, Plan, Train
from pscale.mesh import grid
from pscale.mesh.nonblocking import AsleepComm, RequestQueue
from pscale.parallel.ranks import GROUPS
from pscale.training.dry_run import rank_program
from pscale.training.meta_arrays import Compute
from pscale.worker.delay_injection import DelayRecorder, delays_of
from pscale.worker.ghost import GhostTrainer, Pacer

GFLOPS = 0.5
CASES = [
    *(on_plan(GPT, Plan(dp=2, reduction=each)) for each in ("bucketed", "all-reduce", "gather-broadcast")),
    *(on_plan(GPT, Plan(dp=2, zero=stage)) for stage in (1, 3)),
    on_plan(GPT, Plan(dp=4, zero=3, shard=2)),
    on_plan(GPT, Plan(dp=2, compression="powersgd")),
    on_plan(GPT, Plan(tp=2, sp=True, dp=2)),
    *(on_plan(GPT, Plan(cp=2, context=each)) for each in ("ring", "ulysses", "all-gather")),
    *(on_plan(GPT, Plan(pp=2, schedule=each), 4) for each in ("gpipe", "1f1b", "zero-bubble")),
    on_plan(MOE, Plan(ep=2, cp=2)),
    on_plan(GPT, Plan(matrix=Matrix(tx=2, ty=2, algorithm="cannon"))),
    on_plan(LINEAR, Plan(dp=2)),
    on_plan(BARE, Plan(dp=2, tp=3)),
]


def stepped(case, steps):
    """Run steps of ghosts on threads whose clocks are simulated; returns recorder and sleep of every rank."""
    case = replace(case, ghost=Ghost(gflops=GFLOPS))
    names = [grid.axis_name(span) for span in grid.groups(case.plan.sizes, GROUPS)]
    ranks = range(case.plan.ranks)
    recorders = [DelayRecorder(names, delays_of(case, rank, 0), 0, now=Simulated()) for rank in ranks]
    slept = [[] for _ in ranks]

    def one(mesh):
        rank = mesh.world.rank
        recorder = recorders[rank]

        def sleep(duration_s):
            slept[rank].append(duration_s)
            recorder.now.ns += round(duration_s * 1e9)

        pacer = Pacer(recorder.now, sleep)
        recorder.spend, recorder.enabled = pacer.sleep_until, True
        trainer = GhostTrainer(case, mesh, recorder, pacer)
        for step in range(steps):
            trainer.step(step)

    run_ranks(case.plan.sizes, one, recorders)
    return recorders, slept


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_rank_makes_the_calls_of_the_trainer_in_order_and_to_the_byte(case):
    recorders, _ = stepped(case, 2)
    for rank, recorder in enumerate(recorders):
        predicted = [(*which, _calls(done)) for *which, done in predicted_program(case, rank)]
        recorded = [(*which, _calls(done)) for *which, done in recorded_program(recorder, case.plan, rank)]
        assert recorded == predicted


def _calls(events):
    return [event for event in events if event[0] != "copy"]


def test_a_step_sleeps_for_its_flops_and_where_it_is_told_to_be_late():
    plan = Plan(dp=2, reduction="all-reduce")
    case = Case(
        suite="s",
        label="l",
        ranks=2,
        model=Model(layers=2, width=32, heads=4, sequence=16),
        plan=plan,
        train=Train(batch=16, steps=2, warmup=0),
        inject=Inject(rank=1, delay_s=0.25, every=2),
    )
    _, slept = stepped(case, 2)
    work = [each for phase in rank_program(case, 0) for each in phase.operations]
    flops = sum(each.flops for each in work if isinstance(each, Compute))
    ticks_s = 2000 * Simulated.TICK_NS * 1e-9  # readings of the clock are time too
    assert sum(slept[0]) == pytest.approx(2 * flops / GFLOPS * 1e-9, abs=ticks_s)
    assert sum(slept[1]) - sum(slept[0]) == pytest.approx(0.25, abs=ticks_s)


def test_late_awakenings_do_not_add_up():
    clock = [0]
    random = np.random.default_rng(1)

    def sleep(duration_s):
        clock[0] += round(duration_s * 1e9) + int(random.exponential(100_000))

    pacer = Pacer(lambda: clock[0], sleep)
    pacer.resume()
    for _ in range(1000):
        pacer.sleep(5_000_000)
        clock[0] += 1_000_000  # a call
        pacer.resume()
    assert 0 <= clock[0] - 1000 * 6_000_000 < 1_000_000


def test_a_blocking_call_becomes_one_that_is_asked_for_and_a_look_takes_several_messages(monkeypatch):
    sleeps = []
    monkeypatch.setattr("time.sleep", sleeps.append)

    class Request:
        left = 9  # messages, of which a question takes one

        def Test(self):  # noqa: N802
            self.left -= 1
            return self.left == 0

    class Comm:
        size, request, given = 4, Request(), None

        def Iallreduce(self, *given):  # noqa: N802
            self.given = given
            return self.request

        def __getattr__(self, name):
            return print  # what is not called

    comm = Comm()
    asleep = AsleepComm(comm, RequestQueue(1e-6))
    asleep.Allreduce("mine", "all", "sum")
    assert (comm.given, comm.request.left, asleep.size) == (("mine", "all", "sum"), 0, 4)
    assert len(sleeps) <= 2
