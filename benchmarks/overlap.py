"""Measure how much of the gradients' all-reduce backward hides, in shared memory and over a network.

    python benchmarks/overlap.py [--rounds 15] [--buckets 1 4 16] [--rate memory 1gbit] [--json FILE]

Two ranks, one core each. Contestants: a step without communication (two independent copies), one all-reduce
at the end, and buckets. hidden = (end - buckets) / (end - copies): the share of the cost that is hidden.

In shared memory the computing cores move the bytes themselves: nothing can be gained without a spare core,
and the figure shows what buckets lose. Over a network the card moves them; here a link of limited rate
between two network namespaces of this host replaces it (link.py; needs root, iproute2 and Linux).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from statistics import median
from typing import Any

from figures import Figure, figure, finish, parser
from link import link, missing
from ranks import ask

from pscale.config import Case, Data, Model, Plan, Timing, Train, to_dict

MODEL = Model(layers=8, width=256, heads=4, sequence=256, vocabulary=256)
BATCH = 6  # of a rank: backward then takes longer than the exchange over a link of 1 Gbit/s
RANKS = 2


def contestants(args: argparse.Namespace) -> list[dict[str, Any]]:
    model = replace(MODEL, layers=args.layers, width=args.width)
    alone = Case(suite="overlap", label="copies", model=model, data=Data(kind="synthetic"),
                 train=Train(batch=args.batch), timing=Timing(overhead_steps=0))  # fmt: skip
    made = [{"name": "copies", "where": "copies", "case": to_dict(alone)}]
    plans = {"end": Plan(dp=RANKS, reduction="all-reduce")}
    plans |= {f"{size} MiB": Plan(dp=RANKS, bucket_bytes=size << 20) for size in args.buckets}
    for name, plan in plans.items():
        case = replace(alone, ranks=RANKS, plan=plan, train=Train(batch=RANKS * args.batch))
        made.append({"name": name, "where": "job", "case": to_dict(case)})
    return made


def measure(args: argparse.Namespace, rate: str) -> tuple[dict[str, Figure], str]:
    entries = contestants(args)
    order = [entry["name"] for entry in entries]
    request = {"contestants": entries, "order": order, "rounds": args.rounds, "warmup": 2, "steps": 1}
    with link(rate) if rate else nullcontext() as over:
        answer = ask("turns_rank.py", request, ranks=RANKS, over=over)
    rounds = [dict(zip(order, turns, strict=True)) for turns in answer["rounds"]]
    walls = [
        {name: max(rank["wall_s"] for rank in ranks) for name, ranks in turns.items()} for turns in rounds
    ]
    where = f"{rate} link" if rate else "shared memory"
    table(where, order, rounds)
    found = {}
    for name in order[2:]:
        found[f"{where}, buckets of {name}, step over one all-reduce at the end"] = figure(
            [wall[name] / wall["end"] for wall in walls], "lower", 1.01
        )
        if rate:
            cost = median(wall["end"] - wall["copies"] for wall in walls)
            found[f"{where}, buckets of {name}, hidden"] = figure(
                [(wall["end"] - wall[name]) / cost for wall in walls], "higher", 0.7
            )
    return found, answer["mpi"]["library"]


def table(where: str, order: list[str], rounds: list[Mapping[str, list[dict[str, float]]]]) -> None:
    """Print where the step goes, in ms of the slowest rank, as pscale records it."""
    kinds = ("wall_s", "compute_s", "transfer_s", "wait_s", "hidden_s")
    print(f"{where:24}" + "".join(f"{kind.removesuffix('_s'):>10}" for kind in kinds))
    for name in order:
        values = [median(max(rank[kind] for rank in turns[name]) for turns in rounds) for kind in kinds]
        print(f"  {name:22}" + "".join(f"{value * 1e3:10.1f}" for value in values))


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--buckets", type=int, nargs="+", default=[Plan().bucket_bytes >> 20], help="MiB")
    options.add_argument(
        "--rate",
        nargs="+",
        default=["memory", "1gbit"],
        help="memory, or the rate of a link in the syntax of tc",
    )
    options.add_argument("--layers", type=int, default=MODEL.layers)
    options.add_argument("--width", type=int, default=MODEL.width)
    options.add_argument("--batch", type=int, default=BATCH, help="batch per rank")
    args = options.parse_args()
    found: dict[str, Figure] = {}
    library = ""
    for rate in args.rate:
        if rate != "memory" and (reason := missing()):
            sys.stderr.write(f"no link of limited rate: {reason}\n")
            continue
        more, library = measure(args, "" if rate == "memory" else rate)
        found |= more
    setting = {"layers": args.layers, "width": args.width, "batch": args.batch, "sequence": MODEL.sequence}
    finish(args, found, setting | {"ranks": RANKS}, mpi=library)


if __name__ == "__main__":
    main()
