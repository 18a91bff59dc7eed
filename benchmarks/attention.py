"""Compare attention that keeps its scores with attention that recomputes them, over sequence lengths.

    OMP_NUM_THREADS=1 python benchmarks/attention.py --kernels numpy --json attention.json

Times forward and backward of a single layer, in alternation. `attention: auto` follows the result: see
BLOCKS_FROM in pscale/config/training.py. Memory is the pool that the layer needs, with input and gradients.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
from figures import Figure, blas, figure, finish, parser

from pscale.config.training import BLOCKS_FROM
from pscale.nn import kernels
from pscale.nn.attention import Attention
from pscale.nn.buffers import Buffers
from pscale.worker.environment import use_kernels

WAYS = {"plain": True, "block": False}


def pass_s(layer: Attention, qkv: np.ndarray, dy: np.ndarray) -> float:
    """Return how long forward and backward take."""
    mine, theirs = (layer.buffers.take(x.shape, x.dtype) for x in (qkv, dy))
    mine[...], theirs[...] = qkv, dy
    start = perf_counter()
    _, cache = layer.forward(mine)
    layer.backward(theirs, cache)
    return perf_counter() - start


def compare(sequence: int, args: argparse.Namespace) -> dict[str, Figure]:
    random = np.random.default_rng(1)
    width = args.heads * args.head
    shape = (max(1, args.tokens // sequence), sequence)
    qkv, dy = (random.normal(size=(*shape, n * width)).astype(args.dtype) for n in (3, 1))
    layers = {
        way: Attention(args.heads, keeps_scores=keeps, buffers=Buffers()) for way, keeps in WAYS.items()
    }
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(args.rounds + 1):
        for way, layer in layers.items():
            elapsed = pass_s(layer, qkv, dy)
            if turn:  # the first makes the buffers
                times[way].append(elapsed)
    plain, block = (layers[way].buffers.total_bytes for way in WAYS)
    goal = 1.0 if sequence >= BLOCKS_FROM else None
    return {
        f"time of blocks over plain, {sequence} tokens": figure(
            [block / plain for plain, block in zip(*times.values(), strict=True)], "lower", goal
        ),
        f"memory of blocks over plain, {sequence} tokens": figure([block / plain] * 2, "lower", goal),
    }


def main() -> None:
    options = parser(__doc__, rounds=9)
    options.add_argument("--kernels", choices=("auto", "numpy", "fused"), default="auto")
    options.add_argument("--sequences", type=int, nargs="+", default=[256 << n for n in range(6)])
    options.add_argument(
        "--tokens", type=int, default=2048, help="tokens of all sequences; at least one sequence"
    )
    options.add_argument("--heads", type=int, default=8)
    options.add_argument("--head", type=int, default=64, help="width of a head")
    options.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    args = options.parse_args()
    threads = max((pool["num_threads"] for pool in blas()), default=1)
    use_kernels(args.kernels, threads)
    found: dict[str, Figure] = {}
    for sequence in args.sequences:
        found |= compare(sequence, args)
    sizes = {name: getattr(args, name) for name in ("tokens", "heads", "head", "dtype")}
    finish(args, found, sizes, kernels=kernels.current().name, threads=threads)


if __name__ == "__main__":
    main()
