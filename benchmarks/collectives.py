"""What pscale's mesh leaves of the speed of MPI: each verb recorded as in a step, over mpi4py alone.

    python benchmarks/collectives.py [--rounds 15] [--ranks 2] [--mebibytes 1 4 16 64] [--json FILE]

The two take turns call by call, with mpi4py once more as a control; a call takes the time of its slowest
rank, and a round is the median of its calls. One means that nothing is lost; by how much the control differs
from one is what this machine lets be known. Sizes are those of the larger array. A message either way is no
collective and has no goal: two calls are started and waited for, which four notes tell of.
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
    options.add_argument("--repeats", type=int, default=66, help="calls a round of 1 MiB; fewer of more")
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
