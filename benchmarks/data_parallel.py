"""Compare data parallelism with PyTorch's over gloo: whole replicas beside DDP, ZeRO 3 beside FSDP2.

    python benchmarks/data_parallel.py --torch-python ~/torch/bin/python [--ranks 2] [--rate 1gbit]

Each rank is a process with one thread on a core of its own. The libraries take turns, the ranks of the other
sleep; every second round is reversed. A turn is an untimed step and a timed one, which takes as long as on
its slowest rank. Before, all four are trained in float64 from the same weights on the same data, without
clipping, for which PyTorch adds 1e-6 to the norm: their losses have to be equal. With --rate, half of the
ranks are on either side of a link (needs root). `pip install '.[torch]'` installs PyTorch 2.13.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import numpy as np
from figures import Figure, figure, finish, parser
from link import SPACES, WIRE, Link, link
from ranks import HERE, LIMIT_S, started_on

from pscale.config import Case, Data, Model, Plan, Timing, Train, to_dict

TOLERANCE = 1e-10  # of losses in float64, relative
PROOF_STEPS = 4
# What has no gradient but rounding, as the bias of the keys, a small epsilon would blow up to a weight.
PROOF: dict[str, Any] = {"clip": None, "epsilon": 1e-4}
FASTER = 1.05  # than PyTorch, at least
WAYS = {"ddp": Plan(), "fsdp2": Plan(zero=3)}  # of PyTorch, with ours
TITLES = {"ddp": "DDP's step over pscale's", "fsdp2": "FSDP2's step over ZeRO 3's"}


class Ranks:
    """The processes of one library."""

    def __init__(self, connections: dict[int, Connection]):
        self.connections = [connections[rank] for rank in sorted(connections)]

    def ask(self, **request: Any) -> list[Any]:
        for each in self.connections:
            each.send(request)
        return [each.recv() for each in self.connections]


@contextmanager
def libraries(
    folder: Path, torch_python: str, ranks: int, over: Link | None
) -> Iterator[tuple[Ranks, Ranks]]:
    """Start the ranks of both, which connect; they end when the connections do."""
    made: dict[str, dict[int, Connection]] = {"pscale": {}, "torch": {}}
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(str(folder / "ranks")))
        argv, env = started_on("data_parallel_pscale.py", [str(folder)], ranks=ranks, over=over)
        jobs = [subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)]
        stack.callback(_end, jobs)
        for rank in range(ranks):
            side = ["ip", "netns", "exec", SPACES[2 * rank // ranks]] if over else []
            command = [*side, torch_python, str(HERE / "data_parallel_torch.py"), str(folder)]
            env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RANK": str(rank)}
            env |= {"WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": WIRE if over else "lo"}
            jobs.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL))
        signal.signal(signal.SIGALRM, _give_up)
        signal.alarm(LIMIT_S)
        for _ in jobs[1:] * 2:
            connection = stack.enter_context(listener.accept())
            library, rank = connection.recv()
            made[library][rank] = connection
        signal.alarm(0)
        yield Ranks(made["pscale"]), Ranks(made["torch"])


def _end(jobs: list[subprocess.Popen[bytes]]) -> None:
    """Return when the processes have ended, whose connections are closed; those that have not are made to."""
    for job in jobs:
        try:
            job.wait(10)
        except subprocess.TimeoutExpired:
            job.terminate()


def _give_up(*_: object) -> NoReturn:
    sys.exit("the ranks did not start")


def largest_difference(ours: Ranks, theirs: Ranks, case: Case) -> float:
    """Return how far losses of a rank are apart in float64, relative to them."""
    exact, losses = to_dict(case.model) | {"dtype": "float64"}, []
    for way, plan in plans(case).items():
        one = to_dict(plan) | {"model": exact, "train": to_dict(plan.train) | PROOF}
        ours.ask(do="prepare", way=way, case=one)
        losses.append(ours.ask(do="prove", way=way, steps=PROOF_STEPS))
        theirs.ask(do="prepare", way=way, model=exact, batch=0, **PROOF)
        losses.append(theirs.ask(do="prove", way=way))
    found = np.array(losses)
    assert found.shape == (4, case.ranks, PROOF_STEPS)
    return float(np.ptp(found / found[0], axis=0).max())


def plans(case: Case) -> dict[str, Case]:
    return {way: replace(case, plan=replace(plan, dp=case.ranks)) for way, plan in WAYS.items()}


def race(ours: Ranks, theirs: Ranks, case: Case, rounds: int) -> dict[str, Figure]:
    batch, train = case.train.batch // case.ranks, case.train
    settings = {"clip": train.clip, "epsilon": train.epsilon}
    for way, plan in plans(case).items():
        ours.ask(do="prepare", way=way, case=to_dict(plan))
        theirs.ask(do="prepare", way=way, model=to_dict(case.model), batch=batch, **settings)
    turns = [(way, side) for way in WAYS for side in (ours, theirs)]
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        seconds = {}
        for way, side in turns if number % 2 else turns[::-1]:
            seconds[way, side] = max(side.ask(do="step", way=way))
        if number:  # the first warms up
            for way in WAYS:
                mine, other = seconds[way, ours], seconds[way, theirs]
                ratios[way].append(other / mine)
                print(f"{way:5} {mine:.3f} s, PyTorch {other:.3f} s", file=sys.stderr)
    return {TITLES[way]: figure(values, goal=FASTER) for way, values in ratios.items()}


def main() -> None:
    options = parser(__doc__, rounds=15)
    options.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch")
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--rate", help="of a link between the halves of the ranks, such as 1gbit")
    shape = {"batch": 8, "layers": 4, "width": 512, "heads": 8, "sequence": 256, "vocabulary": 256}
    for name, default in shape.items():
        options.add_argument(f"--{name}", type=int, default=default)
    args = options.parse_args()
    model = Model(**{name: getattr(args, name) for name in shape if name != "batch"})
    steps = max(2 * args.rounds + 2, PROOF_STEPS)
    case = Case(
        suite="data parallel",
        label="race",
        ranks=args.ranks,
        model=model,
        data=Data(kind="synthetic"),
        train=Train(batch=args.batch, steps=steps, warmup=0),
        timing=Timing(overhead_steps=0),
    )
    with (
        TemporaryDirectory() as folder,
        link(args.rate, ranks=args.ranks // 2) if args.rate else nullcontext() as over,
        libraries(Path(folder), args.torch_python, args.ranks, over) as (ours, theirs),
    ):
        difference = largest_difference(ours, theirs, case)
        print(f"largest difference of losses in float64: {difference:.1e}")
        if not difference <= TOLERANCE:
            sys.exit(f"they do not compute the same: more than {TOLERANCE:.0e}")
        found = race(ours, theirs, case, args.rounds)
        setting = {"model": to_dict(model), "batch": args.batch, "ranks": args.ranks, "rate": args.rate}
        finish(args, found, setting, mpi=ours.ask(do="about")[0], torch=theirs.ask(do="about")[0])


if __name__ == "__main__":
    main()
