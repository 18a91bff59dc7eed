"""Measure what communication costs on one machine: two ranks of one job against two independent copies.

    python benchmarks/copies.py [--rounds 60] [--ranks 2] [--json FILE]

Three contestants alternate on the same cores: the serial program alone while the other cores are idle, an
independent copy on every core at once, and the ranks of one data-parallel job with the same work each.

    computation scaling  =  alone / mean copy     what cores cost each other: memory, clock, the machine
    parallel efficiency  =  slowest copy / job    the further cost of communication: ranks wait for each other
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from figures import figure, finish, parser
from ranks import ask

from pscale.config import Case, Data, Model, Plan, Timing, Train, to_dict

MODEL = Model(layers=4, width=256, heads=4, sequence=256, vocabulary=256)
BATCH = 4  # of a rank


def main() -> None:
    options = parser(__doc__, rounds=60)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--steps", type=int, default=1, help="steps per turn")
    args = options.parse_args()
    alone = Case(suite="copies", label="alone", model=MODEL, data=Data(kind="synthetic"),
                 train=Train(batch=BATCH), timing=Timing(overhead_steps=0))  # fmt: skip
    train = Train(batch=args.ranks * BATCH)
    job = replace(alone, ranks=args.ranks, plan=Plan(dp=args.ranks), train=train)
    entries = {"alone": alone, "copies": alone, "job": job}
    request = {
        "contestants": [
            {"name": name, "where": name, "case": to_dict(case)} for name, case in entries.items()
        ],
        "order": list(entries),
        "rounds": args.rounds,
        "warmup": 2,
        "steps": args.steps,
    }
    answer = ask("turns_rank.py", request, ranks=args.ranks)
    scaling, efficiency = [], []
    for one, copies, ranks in answer["rounds"]:
        copy_s = [copy["wall_s"] for copy in copies]
        scaling.append(one[0]["wall_s"] / fmean(copy_s))
        efficiency.append(max(copy_s) / max(rank["wall_s"] for rank in ranks))
    found = {
        "computation scaling": figure(scaling),
        "parallel efficiency": figure(efficiency, "higher", 0.97),
    }
    setting = {"model": to_dict(MODEL), "batch": BATCH, "ranks": args.ranks, "steps": args.steps}
    finish(args, found, setting, mpi=answer["mpi"]["library"])


if __name__ == "__main__":
    main()
