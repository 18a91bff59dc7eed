"""Compare every optimizer's step with PyTorch's, in alternation, after proving that they compute the same.

    python benchmarks/optimizers.py --torch-python ~/torch/bin/python --json optimizers.json

Each runs in a process of its own (optimizers_pscale.py, optimizers_torch.py). PyTorch has no LAMB, no Lion,
and its Muon refuses vectors: pscale's are timed alone. `pip install '.[torch]'` installs PyTorch 2.13.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure, figure, python, write
from step import contestant

TOLERANCE = 1e-10  # of the weights after a few steps in float64, relative to a tensor's largest value
PROOF = {"layers": 2, "width": 64, "dtype": "float64"}
STEPS = 5
WITH_TORCH = ("sgd", "adam", "adamw", "adafactor")


def largest_difference(ours: Any, theirs: Any, optimizer: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        mine, other = (str(Path(folder, f"{name}.npz")) for name in ("ours", "theirs"))
        for side, out in ((ours, mine), (theirs, other)):
            side.ask(do="train", optimizer=optimizer, steps=STEPS, out=out, **PROOF)
        with np.load(mine) as a, np.load(other) as b:
            assert set(a) == set(b), set(a) ^ set(b)
            return max(float(np.abs(a[name] - b[name]).max() / np.abs(a[name]).max()) for name in a)


def race(ours: Any, theirs: Any | None, optimizer: str, args: argparse.Namespace) -> list[dict[str, float]]:
    sides = {"pscale": ours, **({"torch": theirs} if theirs else {})}
    shape = {"layers": args.layers, "width": args.width, "dtype": "float32"}
    for side in sides.values():
        side.ask(do="prepare", optimizer=optimizer, **shape)
        side.ask(do="step")
    return [{name: side.ask(do="step")["s"] for name, side in sides.items()} for _ in range(args.rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", choices=("auto", "fused", "numpy"), default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    if subprocess.run([args.torch_python, "-c", "import torch"], capture_output=True, check=False).returncode:
        sys.exit(
            f"{args.torch_python} has no PyTorch: pip install '.[torch]', or name one with --torch-python"
        )
    figures: dict[str, Figure] = {}
    proof: dict[str, float] = {}
    with (
        contestant(python(), "optimizers_pscale.py", args.threads) as ours,
        contestant([args.torch_python], "optimizers_torch.py", args.threads) as theirs,
    ):
        ours.ask(do="use", kernels=args.kernels, threads=args.threads)
        for optimizer in (*WITH_TORCH, "lamb", "lion", "muon"):
            rival = theirs if optimizer in WITH_TORCH else None
            if rival:
                proof[optimizer] = difference = largest_difference(ours, rival, optimizer)
                if not difference <= TOLERANCE:
                    sys.exit(f"{optimizer}: the two do not compute the same: they differ by {difference:.1e}")
            rounds = race(ours, rival, optimizer, args)
            line = f"{optimizer:10} {1e3 * statistics.median(one['pscale'] for one in rounds):8.2f} ms"
            if rival:
                ratios = [one["torch"] / one["pscale"] for one in rounds]
                figures[f"PyTorch's {optimizer} over pscale's"] = figure(ratios)
                line += f"  PyTorch takes {statistics.median(ratios):.2f} times as long"
                line += f"; largest difference in float64 {proof[optimizer]:.0e}"
            print(line, flush=True)
    if args.json:
        setting = {"layers": args.layers, "width": args.width, "threads": args.threads, "proof": proof}
        write(args.json, "optimizers", figures, setting)


if __name__ == "__main__":
    main()
