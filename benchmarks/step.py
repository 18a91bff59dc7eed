"""Compare a training step of pscale with PyTorch's, in alternation, after proving that they compute the same.

    python benchmarks/step.py --torch-python ~/torch/bin/python --json step.json

Each runs in a process of its own (step_pscale.py, step_torch.py) with the same number of threads. They
alternate, so that other work on the machine affects both. `pip install '.[torch]'` installs PyTorch 2.13.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure, figure, python, show, write

from pscale.config import Model, to_dict
from pscale.nn import counts

HERE = Path(__file__).parent
TOLERANCE = 1e-10  # of loss and gradients in float64, relative to a tensor's largest value
FASTER = 1.05  # than PyTorch, at least


class Contestant:
    """A process that answers requests, one JSON object a line."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args} ended with status {self.process.wait()}")
        return json.loads(line)


@contextmanager
def contestant(python: list[str], script: str, threads: int) -> Iterator[Contestant]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | {name: str(threads) for name in names}
    command = [*python, str(HERE / script)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Contestant(process)
        assert process.stdin is not None
        process.stdin.close()


def largest_difference(ours: Contestant, theirs: Contestant, model: Model, batch: int) -> tuple[str, float]:
    """Return the tensor that differs most in float64, from the same weights and data, and by how much."""
    with tempfile.TemporaryDirectory() as folder:
        start, mine, other = (str(Path(folder, f"{name}.npz")) for name in ("start", "ours", "theirs"))
        exact = to_dict(model) | {"dtype": "float64"}
        ours.ask(do="gradients", model=exact, batch=batch, start=start, out=mine)
        theirs.ask(do="gradients", model=exact, start=start, out=other)
        with np.load(mine) as a, np.load(other) as b:
            assert set(a) == set(b), set(a) ^ set(b)
            differences = {name: float(np.abs(a[name] - b[name]).max() / np.abs(a[name]).max()) for name in a}
    return max(differences.items(), key=lambda item: item[1])


def race(ours: Contestant, theirs: Contestant, model: Model, args: argparse.Namespace) -> dict[str, Any]:
    for side in (ours, theirs):
        side.ask(do="prepare", model=to_dict(model), batch=args.batch)
        for _ in range(args.warmup):
            side.ask(do="step")
    rounds: list[dict[str, float]] = []
    for _ in range(args.rounds):
        one = {f"pscale_{name}": value for name, value in ours.ask(do="step").items()}
        one |= {f"torch_{name}": value for name, value in theirs.ask(do="step").items()}
        rounds.append(one | {"gemm_gflops": ours.ask(do="gemm")["gflops"]})
        sys.stderr.write(".")
        sys.stderr.flush()
    sys.stderr.write("\n")
    return {"rounds": rounds, "pscale": ours.ask(do="about"), "torch": theirs.ask(do="about")}


def findings(model: Model, batch: int, rounds: list[dict[str, float]]) -> dict[str, float]:
    def median(name: str) -> float:
        return statistics.median(one[name] for one in rounds)

    executed, needed = counts.executed_flops(model, batch), counts.model_flops(model, batch)
    ratios = sorted(one["torch_s"] / one["pscale_s"] for one in rounds)
    quarter = len(ratios) // 4
    # Beside the median, the CPU time and the fastest tell a busy machine from a slow program.
    return {
        "pscale_step_s": median("pscale_s"),
        "pscale_step_cpu_s": median("pscale_cpu_s"),
        "pscale_fastest_step_s": min(one["pscale_s"] for one in rounds),
        "torch_step_s": median("torch_s"),
        "torch_step_cpu_s": median("torch_cpu_s"),
        "torch_fastest_step_s": min(one["torch_s"] for one in rounds),
        "speedup": statistics.median(ratios),
        "speedup_lower_quartile": ratios[quarter],
        "speedup_upper_quartile": ratios[-1 - quarter],
        "model_gflops": needed / median("pscale_s") / 1e9,
        "executed_gflops": executed / median("pscale_s") / 1e9,
        "gemm_peak_gflops": median("gemm_gflops"),
        "fraction_of_peak": executed / median("pscale_s") / 1e9 / median("gemm_gflops"),
        "torch_fraction_of_peak": needed / median("torch_s") / 1e9 / median("gemm_gflops"),
    }


def ratios(model: Model, batch: int, rounds: list[dict[str, float]], goal: float | None) -> dict[str, Figure]:
    """Return what can be compared with another day's; `goal` is that of the fraction."""
    executed = counts.executed_flops(model, batch) * 1e-9
    return {
        "PyTorch's step over pscale's": figure(
            [one["torch_s"] / one["pscale_s"] for one in rounds], goal=FASTER
        ),
        "fraction of the matrix-product peak": figure(
            [executed / one["pscale_s"] / one["gemm_gflops"] for one in rounds], goal=goal
        ),
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", choices=("auto", "fused", "numpy"), default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--llama", action="store_true", help="a Llama-like block: four queries of a key")
    parser.add_argument("--goal", type=float, help="share of the peak that a step should reach")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    shape = {"batch": 8, "layers": 4, "width": 512, "heads": 8, "sequence": 256, "vocabulary": 256}
    for name, default in shape.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def _llama(args: argparse.Namespace) -> dict[str, Any]:
    """Return what differs in Llama's block, with as many weights in the MLP as one of GELU has."""
    inside = 8 * args.width // 3 // 32 * 32
    block = {"norm": "rmsnorm", "bias": False, "positions": "rope", "mlp": "swiglu", "mlp_width": inside}
    return block | {"kv_heads": max(1, args.heads // 4)}


def main() -> None:
    args = options()
    sizes = {name: getattr(args, name) for name in ("layers", "width", "heads", "sequence", "vocabulary")}
    model = Model(kind="gpt", dtype="float32", **sizes, **(_llama(args) if args.llama else {}))
    if subprocess.run([args.torch_python, "-c", "import torch"], capture_output=True, check=False).returncode:
        sys.exit(
            f"{args.torch_python} has no PyTorch: pip install '.[torch]', or name one with --torch-python"
        )
    with (
        contestant(python(), "step_pscale.py", args.threads) as ours,
        contestant([args.torch_python], "step_torch.py", args.threads) as theirs,
    ):
        ours.ask(do="use", kernels=args.kernels, threads=args.threads)
        tensor, difference = largest_difference(ours, theirs, model, args.batch)
        print(f"largest difference in float64: {difference:.1e} of {tensor}")
        if not difference <= TOLERANCE:
            sys.exit(f"the two do not compute the same: more than {TOLERANCE:.0e}")
        results = race(ours, theirs, model, args)
    figures = findings(model, args.batch, results["rounds"])
    for name, value in figures.items():
        print(f"{name:24} {value:10.3f}")
    comparable = ratios(model, args.batch, results["rounds"], args.goal)
    show(comparable)
    if args.json:
        setting = {
            "model": to_dict(model),
            "batch": args.batch,
            "threads": args.threads,
            "proof": {"tensor": tensor, "largest_difference": difference},
            "findings": figures,
            "pscale": results["pscale"],
        }
        write(args.json, "step", comparable, setting, torch=results["torch"])


if __name__ == "__main__":
    main()
