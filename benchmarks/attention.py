"""Time attention that keeps its scores beside attention that computes them again, over lengths of sequence.

    OMP_NUM_THREADS=1 python benchmarks/attention.py --kernels numpy --json attention.json

The two take turns, forward and backward, on a layer of its own. `attention: auto` follows what is found here:
see BLOCKS_FROM in pscale/config.py. Memory is the pool that the layer needs, input and gradients included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from pscale.config import BLOCKS_FROM
from pscale.nn import kernels
from pscale.nn.attention import Attention
from pscale.nn.buffers import Buffers
from pscale.worker.computing import use_kernels

WAYS = {"plain": True, "block": False}


def pass_s(layer: Attention, qkv: np.ndarray, dy: np.ndarray) -> float:
    """Return how long forward and backward take."""
    mine, theirs = (layer.buffers.take(x.shape, x.dtype) for x in (qkv, dy))
    mine[...], theirs[...] = qkv, dy
    start = perf_counter()
    y, cache = layer.forward(mine)
    dqkv = layer.backward(theirs, cache)
    elapsed = perf_counter() - start
    layer.buffers.give(y)
    layer.buffers.give(dqkv)
    return elapsed


def compare(sequence: int, options: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(1)
    width = options.heads * options.head
    shape = (max(1, options.tokens // sequence), sequence)
    qkv, dy = (random.normal(size=(*shape, n * width)).astype(options.dtype) for n in (3, 1))
    layers = {
        way: Attention(options.heads, keeps_scores=keeps, buffers=Buffers()) for way, keeps in WAYS.items()
    }
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(options.rounds + 1):
        for way, layer in layers.items():
            elapsed = pass_s(layer, qkv, dy)
            if turn:  # the first makes the buffers
                times[way].append(elapsed)
    ratios = sorted(block / plain for plain, block in zip(times["plain"], times["block"], strict=True))
    quarter = len(ratios) // 4
    return {
        "sequence": sequence,
        "sequences": shape[0],
        **{f"{way}_s": statistics.median(found) for way, found in times.items()},
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[quarter], ratios[-1 - quarter]],
        **{f"{way}_bytes": layer.buffers.total_bytes for way, layer in layers.items()},
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", choices=("auto", "numpy", "fused"), default="auto")
    parser.add_argument("--sequences", type=int, nargs="+", default=[256 << n for n in range(6)])
    parser.add_argument("--tokens", type=int, default=2048, help="of all sequences, at least one of them")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head", type=int, default=64, help="width of a head")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write all figures there")
    return parser.parse_args()


def main() -> None:
    asked = options()
    threads = max(
        (info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"), default=1
    )
    use_kernels(asked.kernels, threads)
    about = {"kernels": kernels.current().name, "threads": threads, "blocks_from": BLOCKS_FROM}
    print(" ".join(f"{name}={value}" for name, value in about.items()))
    print(f"{'sequence':>8} {'plain':>10} {'block':>10} {'block/plain':>22} {'plain':>10} {'block':>10}")
    rows = []
    for sequence in asked.sequences:
        row = compare(sequence, asked)
        rows.append(row)
        low, high = row["ratio_quartiles"]
        print(
            f"{sequence:8} {row['plain_s'] * 1e3:7.1f} ms {row['block_s'] * 1e3:7.1f} ms "
            f"{row['ratio']:8.2f} ({low:.2f}…{high:.2f}) "
            f"{row['plain_bytes'] / 2**20:6.0f} MiB {row['block_bytes'] / 2**20:6.0f} MiB"
        )
        sys.stdout.flush()
    if asked.json:
        asked.json.write_text(
            json.dumps({**about, "shape": vars(asked) | {"json": None}, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
