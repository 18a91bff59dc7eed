"""Measure the overhead of a plan on one rank, with nobody to communicate with, over a plain loop.

    python benchmarks/one_rank.py [--rounds 24] [--json FILE]

The plain loop calls one layer after another and the optimizer: no trainer, plan or recorder. It runs twice,
so that the ratio of the two shows the effect of memory placement alone. The first step of each turn is not
timed: otherwise the plain loop, which is every other turn, would find more of its memory in caches.
"""

from __future__ import annotations

from dataclasses import replace

from figures import Figure, figure, finish, parser
from ranks import ask

from pscale.config import Case, Data, Model, Plan, Timing, Train, to_dict
from pscale.parallel.strategies import check

MODEL = Model(layers=4, width=256, heads=4, sequence=256, vocabulary=256)
TRAIN = Train(batch=1, lr=3e-4, steps=1, warmup=0)
DENSE = {
    "data, bucketed": Plan(),
    "data, all-reduce": Plan(reduction="all-reduce"),
    "data, gather-broadcast": Plan(reduction="gather-broadcast"),
    "zero 1": Plan(zero=1),
    "zero 2": Plan(zero=2),
    "zero 3": Plan(zero=3),
    "zero 3, kept": Plan(zero=3, reshard_after_forward=False),
    "tensor, sequence": Plan(sp=True),
    "tensor, column": Plan(embedding="column"),
    "context, ring": Plan(context="ring", placement="contiguous"),
    "context, ulysses": Plan(context="ulysses"),
    "context, all-gather": Plan(context="all-gather"),
    "pipeline, gpipe": Plan(schedule="gpipe"),
    "pipeline, interleaved": Plan(schedule="interleaved", virtual_stages=2),
    "pipeline, zero-bubble": Plan(schedule="zero-bubble"),
}
ROUTED = {"experts": Plan(), "experts, zero 3": Plan(zero=3)}


def measure(model: Model, plans: dict[str, Plan], rounds: int) -> tuple[dict[str, Figure], str]:
    case = Case(
        suite="one rank",
        label="plain",
        model=model,
        data=Data(kind="synthetic"),
        train=TRAIN,
        timing=Timing(overhead_steps=0),
    )
    contestants = [
        {"name": name, "where": "plain", "case": to_dict(case)} for name in ("plain", "plain again")
    ]
    for name, plan in plans.items():
        check(planned := replace(case, plan=plan))
        contestants.append({"name": name, "where": "copies", "case": to_dict(planned)})
    others = ["plain again", *plans]
    order = [name for other in others for name in ("plain", other)]
    request = {
        "contestants": contestants,
        "order": order,
        "rounds": rounds,
        "warmup": 2,
        "lead": 1,
        "steps": 1,
    }
    answer = ask("turns_rank.py", request, ranks=1)
    walls = [[turn[0]["wall_s"] for turn in turns] for turns in answer["rounds"]]
    found = {
        other: figure([turns[2 * i + 1] / turns[2 * i] for turns in walls], "lower", 1.02)
        for i, other in enumerate(others)
    }
    return found, answer["mpi"]["library"]


def main() -> None:
    args = parser(__doc__, rounds=24).parse_args()
    found, library = measure(MODEL, DENSE, args.rounds)
    routed, _ = measure(replace(MODEL, kind="moe", experts=4, top_k=1), ROUTED, args.rounds)
    found |= {name if "experts" in name else f"{name} with experts": each for name, each in routed.items()}
    finish(args, found, {"model": to_dict(MODEL), "train": to_dict(TRAIN)}, mpi=library)


if __name__ == "__main__":
    main()
