"""Plot memory and step time over width, sequence and layers, up to a limit, against the prediction.

    python benchmarks/memory.py --limit 20GiB --threads 2 --json memory.json --svg memory.svg

One case per size; each size doubles until a rank would need more than the limit or compute more than
--most-tflop per step (attention grows with the square of the sequence); layers go up to what fits the limit.
`pscale run` runs all of them, --rounds launches of three steps each, on one rank or data-parallel on --ranks.
Measured memory is the peak above that of the process without its model; beyond one rank it includes MPI's
copies of gradients in flight. Figures are medians over sizes: measured over predicted memory, and growth of
memory and of time from the smallest size that counts over the predicted growth; 1 is exactly as predicted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import yaml
from figures import Figure, figure, finish, parser

from pscale.config import Case, Model, Plan, Train, to_dict
from pscale.config.metrics import size_bytes
from pscale.parallel.recompute import executed_flops
from pscale.runs.store import read_table
from pscale.training.prediction import memory_bytes

BASE = Model(kind="gpt", layers=4, width=256, heads=4, sequence=256, vocabulary=256)
BATCH = 4  # of a rank
HEAD = 64  # features of a head, at every width
START = {"width": 128, "sequence": 128, "layers": 1}
COUNTS = 64 << 20  # smaller cases are drawn, and not summed up: beside them Python itself is not small


@dataclass(frozen=True, kw_only=True)
class Size:
    """One case."""

    along: str
    value: int
    predicted_bytes: int
    flops: int
    measured_bytes: int = 0
    step_s: float = 0.0


def model_of(along: str, value: int) -> Model:
    model = replace(BASE, **{along: value})
    return replace(model, heads=max(1, model.width // HEAD))


def sizes(limit: int, most_flops: float, ranks: int) -> Iterator[Size]:
    for along, start in START.items():
        last = size = predicted(along, start, ranks)
        while size.predicted_bytes <= limit and size.flops <= most_flops:
            yield size
            last, size = size, predicted(along, 2 * size.value, ranks)
        if along == "layers" and (most := last.value * limit // last.predicted_bytes) > last.value:
            yield predicted(along, most, ranks)  # a little less than the limit: some memory is of no layer


def predicted(along: str, value: int, ranks: int) -> Size:
    train, plan = Train(batch=BATCH * ranks), Plan(dp=ranks)
    case = Case(suite="memory", label="", ranks=ranks, model=model_of(along, value), train=train, plan=plan)
    held = sum(memory_bytes(case, 0).values())
    return Size(along=along, value=value, predicted_bytes=held, flops=executed_flops(case) // ranks)


def suite(wanted: list[Size], args: argparse.Namespace, limit: int) -> dict[str, Any]:
    models = {(size.along, size.value): model_of(size.along, size.value) for size in wanted}
    names = ("layers", "width", "heads", "sequence")
    cases = {tuple(getattr(model, name) for name in names) for model in models.values()}
    return {
        "name": "memory",
        "scaling": "throughput",
        "ranks": args.ranks,
        "threads": args.threads,
        "plan": {"dp": "ranks"},
        "model": {"kind": BASE.kind, "vocabulary": BASE.vocabulary},
        "data": {"kind": "synthetic"},
        "train": {"batch": BATCH * args.ranks, "steps": 2, "warmup": 1},
        "timing": {"gemm_peak": False, "overhead_steps": 0},
        "sweep": {"cases": [dict(zip(names, case, strict=True)) for case in sorted(cases)]},
        "repeat": args.rounds,
        "launch": {
            "oversubscribe": True,
            "time_limit": "1h",
            "memory_limit": args.ranks * (2 * limit + (1 << 30)),
        },
    }


def run(wanted: list[Size], args: argparse.Namespace, limit: int) -> list[Size]:
    """Return the sizes with what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "memory.yaml")
        path.write_text(yaml.safe_dump(suite(wanted, args, limit)))
        command = [sys.executable, "-m", "pscale", "run", str(path), "--reports", folder]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.stdout)
        (document,) = Path(folder).glob("memory/*/run.json")
        data = document.parent / "data"
        ranks, rows = (read_table(data, table).to_pylist() for table in ("ranks", "cases"))
    return [_measured(size, ranks, rows) for size in wanted]


def _measured(size: Size, ranks: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Size:
    """Return a size with the most memory and the median step time of its launches."""
    model = model_of(size.along, size.value)
    key = {"layers": model.layers, "width": model.width, "sequence": model.sequence}
    own = [row for row in rows if key.items() <= row.items()]
    peaks = [
        rank["peak_rss_bytes"] - rank["baseline_rss_bytes"]
        for rank in ranks
        if rank["case"] == own[0]["case"]
    ]
    step_s = statistics.median(row["step_s"] for row in own)
    return replace(size, measured_bytes=max(peaks), step_s=step_s)


def findings(found: list[Size]) -> dict[str, Figure]:
    """Return, along each axis, the ratios of all sizes that count: 1 is exactly as predicted."""
    figures = {}
    for along in START:
        own = [size for size in found if size.along == along and size.predicted_bytes >= COUNTS]
        if len(own) < 3:
            continue
        first, *larger = own
        memory = [size.measured_bytes / size.predicted_bytes for size in own]
        growth = [ratio / memory[0] for ratio in memory[1:]]
        time = [size.step_s / size.flops * first.flops / first.step_s for size in larger]
        figures |= {
            f"memory over predicted, {along}": figure(memory, "lower", goal=1.05),
            f"memory over predicted, growth with {along}": figure(growth, "lower", goal=1.05),
            f"time over FLOPs, growth with {along}": figure(time, "lower", goal=1.1),
        }
    return figures


def draw(found: list[Size], path: Path) -> None:
    """Draw what was measured as dots on the lines that were predicted."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - where it is asked for alone

    with mpl.rc_context({"svg.hashsalt": "pscale", "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 6.2), layout="constrained")
        panels = figure.subplots(2, len(START), sharex="col", sharey="row")
        middle = found[len(found) // 2]
        for column, along in enumerate(START):
            own = [size for size in found if size.along == along]
            values = [size.value for size in own]
            doubled = [value for value in values if (value // START[along]).bit_count() == 1]
            above, below = panels[:, column]
            above.plot(
                values, [size.predicted_bytes / 2**30 for size in own], color="#767676", label="predicted"
            )
            above.plot(
                values, [size.measured_bytes / 2**30 for size in own], "o", color="#0072b2", label="measured"
            )
            rate = middle.step_s / middle.flops
            below.plot(
                values, [size.flops * rate for size in own], color="#767676", label="as the FLOPs grow"
            )
            below.plot(values, [size.step_s for size in own], "o", color="#0072b2", label="measured")
            below.set_xlabel(along)
            for axes in (above, below):
                axes.set_xscale("log", base=2)
                axes.set_yscale("log", base=10)
                axes.set_xticks(doubled, [str(value) for value in doubled])
                axes.grid(visible=True, color="#e6e6e6")
        panels[0, 0].set_ylabel("memory, GiB")
        panels[1, 0].set_ylabel("step, s")
        for axes in panels[:, 0]:
            axes.legend(frameon=False)
        figure.suptitle(
            f"A rank's memory and step: {BASE.layers} layers, width {BASE.width}, sequence {BASE.sequence}, "
            f"batch {BATCH} per rank, unless the axis varies it",
            fontsize=11,
        )
        figure.savefig(path, metadata={"Date": None})


def main() -> int:
    options = parser(__doc__, rounds=1)
    options.add_argument("--limit", default="1GiB", help="predicted memory per rank, such as 24GiB")
    options.add_argument(
        "--most-tflop", type=float, default=5.0, help="TFLOP per step; larger sizes are skipped"
    )
    options.add_argument("--ranks", type=int, default=1)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--svg", type=Path, help="draw the figure into this file")
    args = options.parse_args()
    limit = size_bytes(args.limit)
    found = run(list(sizes(limit, args.most_tflop * 1e12, args.ranks)), args, limit)
    for size in found:
        predicted, measured = (each / 2**20 for each in (size.predicted_bytes, size.measured_bytes))
        print(
            f"{size.along:9} {size.value:6}  predicted {predicted:9.1f} MiB  "
            f"measured {measured:9.1f} MiB  {measured / predicted:6.3f}  "
            f"step {size.step_s:8.3f} s  {size.flops / size.step_s * 1e-9:7.1f} GFLOP/s"
        )
    setting = {
        "limit": args.limit,
        "most_tflop": args.most_tflop,
        "ranks": args.ranks,
        "threads": args.threads,
        "plan": {"dp": "ranks"},
        "base": to_dict(BASE),
    }
    finish(args, findings(found), {**setting, "sizes": [asdict(size) for size in found]})
    if args.svg:
        draw(found, args.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
