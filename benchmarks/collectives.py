"""Compare pscale's mesh with plain MPI: each verb recorded as in a step, against mpi4py alone.

    python benchmarks/collectives.py [--rounds 15] [--ranks 2] [--mebibytes 1 4 16 64] [--json FILE]

Calls alternate between the two, and mpi4py again as a control. A call takes the time of its slowest rank; a
round is the median of its calls. 1 means no loss; the deviation of the control from 1 is the resolution of
this machine. Sizes are those of the larger array. A send and receive is not a collective and has no goal: it
starts two calls and waits for them, which records four events.
"""

from __future__ import annotations

from statistics import median

from figures import figure, finish, parser
from ranks import ask

GOAL = 0.95  # of a collective
MESSAGES = "send, receive"


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--ranks", type=int, nargs="+", default=[2])
    options.add_argument("--mebibytes", type=int, nargs="+", default=[1, 4, 16, 64])
    options.add_argument(
        "--repeats", type=int, default=66, help="calls per round of 1 MiB; fewer of larger ones"
    )
    args = options.parse_args()
    request = {"mebibytes": args.mebibytes, "rounds": args.rounds, "repeats": args.repeats}
    found, library = {}, ""
    for ranks in args.ranks:
        answer = ask("collectives_rank.py", request, ranks=ranks)
        library = answer["mpi"]["library"]
        controls: dict[str, list[float]] = {}
        for name, rounds in answer["seconds"].items():
            verb, mib = name.rsplit(maxsplit=2)[:2]
            goal = None if verb == MESSAGES else GOAL
            found[f"{name}, {ranks} ranks"] = figure(
                [bare / ours for ours, bare, _ in rounds], "higher", goal
            )
            controls.setdefault(mib, []).extend(bare / again for _, bare, again in rounds)
            gib_s = int(mib) / 1024 / median(ours for ours, *_ in rounds)
            print(f"{name}, {ranks} ranks: {gib_s:.2f} GiB/s")
        for mib, ratios in controls.items():
            found[f"control: all of {mib} MiB, {ranks} ranks"] = figure(ratios)
    finish(args, found, request | {"ranks": args.ranks}, mpi=library)


if __name__ == "__main__":
    main()
