"""Measure the engine of predictions: time and memory for a step of ten thousand and of a million ranks.

    python benchmarks/predict.py [--rounds 3] [--json FILE]

Programs of a thousand points, by the profile of a kept run, every rank drawn and delayed by jitter of its
own. Each prediction is a process of its own. Seconds are those of the processor, which other work on the
machine lengthens less than those of the clock; the engine has one thread. A step is compared with what bare
NumPy needs to draw and add as many numbers. A whole prediction with the usual draws is shown beside.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from figures import Unit, figure, finish, parser

from pscale.analysis.frames import load
from pscale.config import Case, Jitter, Model, Plan, Train
from pscale.predict.costs import Costs
from pscale.predict.engine import drawn_paces, paces_for, predict
from pscale.predict.profile import QUANTILES, Profile
from pscale.predict.step_program import Segment, StepProgram, step_program
from pscale.predict.walk import Walk

RUN = Path(__file__).parents[1] / "reports" / "gallery" / "pipeline"
PLANS = {  # degrees, layers and micro-batches that make a thousand points
    "dp 625 · tp 16": (Plan(dp=625, tp=16, sp=True), 40, 1),
    "dp 125 · tp 8 · pp 10": (Plan(dp=125, tp=8, pp=10, sp=True), 20, 18),
    "dp 65,536 · tp 16": (Plan(dp=65_536, tp=16, sp=True), 40, 1),
    "dp 8,192 · tp 8 · pp 16": (Plan(dp=8_192, tp=8, pp=16, sp=True), 32, 18),
}
GOALS = {10_000: 1.0, 1 << 20: 60.0}  # seconds of a step, by ranks
MOST_MIB = 1024
STEPS = 2


def case_of(plan: Plan, layers: int, micro: int) -> Case:
    model = Model(kind="gpt", layers=layers, width=1024, heads=16, sequence=256, vocabulary=256)
    return Case(
        suite="predict",
        label="",
        ranks=plan.ranks,
        model=model,
        train=Train(batch=plan.dp * micro, micro_batches=micro),
        plan=plan,
        jitter=Jitter(mean_s=1e-3),
    )


def bare(program: StepProgram) -> None:
    """Draw and add as often as a step computes, for all of its ranks."""
    random, values = np.random.default_rng(0), np.linspace(1.0, 2.0, QUANTILES)
    for block in program.blocks:
        clock = np.zeros(block.shape)
        places = random.integers(QUANTILES, size=2 * clock.size)
        for _ in range(sum(isinstance(each, Segment) for each in block.step)):
            start = int(random.integers(clock.size))
            clock += values[places[start : start + clock.size].reshape(clock.shape)]


def one(name: str) -> dict[str, Any]:
    """Walk and predict in this process, and return what that took."""
    profile, case = Profile.of_run(load(RUN)), case_of(*PLANS[name])
    start = process_time()
    program, costs, random = step_program(case), Costs(profile, None), np.random.default_rng(0)
    built = process_time()
    paces = list(drawn_paces(paces_for(case, profile)[:1], STEPS, program, random))
    Walk(case, program, costs, paces, random).run()
    walked = process_time()
    bare(program)
    added = process_time()
    found = predict(case, profile, program=program)
    return {
        "points": max(len(block.step) for block in program.blocks),
        "draws": len(found.draws),
        "program_s": built - start,
        "step_s": (walked - built) / STEPS,
        "over_bare": (walked - built) / STEPS / (added - walked),
        "whole_s": process_time() - added,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    args = parser(__doc__, rounds=3)
    args.add_argument("--one", choices=PLANS, help="predict one plan alone, and print what it took as JSON")
    args = args.parse_args()
    if args.one:
        print(json.dumps(one(args.one)))
        return
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in PLANS}
    for _ in range(args.rounds):
        for name, rounds in turns.items():
            argv = [sys.executable, __file__, "--one", name]
            rounds.append(json.loads(subprocess.run(argv, check=True, capture_output=True).stdout))
    found = {}
    for name, rounds in turns.items():
        goal = GOALS[PLANS[name][0].ranks]
        wanted: dict[str, tuple[str, float | None, Unit]] = {
            "the program of every rank": ("program_s", None, "s"),
            "a step": ("step_s", goal, "s"),
            "a step over drawing and adding": ("over_bare", None, "ratio"),
            "a prediction": ("whole_s", goal if goal > 1 else None, "s"),
            "memory": ("mib", MOST_MIB, "MiB"),
        }
        for what, (key, most, unit) in wanted.items():
            values = [each[key] for each in rounds]
            found[f"{what}, {name}"] = figure(values, "lower", most, unit=unit)
    setting = {
        name: {"ranks": PLANS[name][0].ranks, **{key: rounds[0][key] for key in ("points", "draws")}}
        for name, rounds in turns.items()
    }
    finish(args, found, setting)


if __name__ == "__main__":
    main()
