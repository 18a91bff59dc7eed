"""Draw memory and step time against width, sequence and layers, up to a limit, beside what is predicted.

    python benchmarks/memory.py --limit 24GiB --json memory.json --svg memory.svg

A case a size, each doubled until a rank would need more than the limit; all are run by `pscale run`, one rank
with --threads threads. Measured memory is the peak above the process without its model. The summary has, for
each of the three, the largest deviation of measured from predicted memory, and by how much faster memory and
time grow than the formulas say from the smallest size that counts to the largest: 1 is exactly so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import yaml

from pscale.config import Case, Model, Train
from pscale.parallel.memory import memory_bytes
from pscale.parallel.predict import executed_flops
from pscale.results.store import read_table
from pscale.suite.quantities import size_bytes

BASE = Model(kind="gpt", layers=4, width=256, heads=4, sequence=256, vocabulary=256)
TRAIN = Train(batch=4)
HEAD = 64  # features of a head, at every width
START = {"width": 128, "sequence": 128, "layers": 1}
COUNTS = 64 << 20  # smaller cases are drawn, and not summed up: beside them Python itself is not small
GOALS = {"deviation": 0.05, "memory": 0.05, "time": 0.25}


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


def sizes(limit: int) -> Iterator[Size]:
    for along, start in START.items():
        for doublings in range(40):
            value = start << doublings
            case = Case(suite="memory", label="", model=model_of(along, value), train=TRAIN)
            predicted = sum(memory_bytes(case, 0).values())
            if predicted > limit:
                break
            yield Size(along=along, value=value, predicted_bytes=predicted, flops=executed_flops(case))


def suite(wanted: list[Size], threads: int, limit: int) -> dict[str, Any]:
    models = {(size.along, size.value): model_of(size.along, size.value) for size in wanted}
    names = ("layers", "width", "heads", "sequence")
    cases = {tuple(getattr(model, name) for name in names) for model in models.values()}
    return {
        "name": "memory",
        "scaling": "throughput",
        "threads": threads,
        "model": {"kind": BASE.kind, "vocabulary": BASE.vocabulary},
        "data": {"kind": "synthetic"},
        "train": {"batch": TRAIN.batch, "steps": 3, "warmup": 1},
        "timing": {"overhead_steps": 0},
        "sweep": {"cases": [dict(zip(names, case, strict=True)) for case in sorted(cases)]},
        "repeat": 1,
        "launch": {"oversubscribe": True, "time_limit": "1h", "memory_limit": 2 * limit + (1 << 30)},
    }


def run(wanted: list[Size], threads: int, limit: int) -> list[Size]:
    """Return the sizes with what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "memory.yaml")
        path.write_text(yaml.safe_dump(suite(wanted, threads, limit)))
        command = [sys.executable, "-m", "pscale", "run", str(path), "--reports", folder]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.stdout)
        (document,) = Path(folder).glob("memory/*/run.json")
        data = document.parent / "data"
        ranks = {row["case"]: row for row in read_table(data, "ranks").to_pylist()}
        rows = {
            (row["layers"], row["width"], row["sequence"]): row
            for row in read_table(data, "cases").to_pylist()
        }
    found = []
    for size in wanted:
        model = model_of(size.along, size.value)
        row = rows[model.layers, model.width, model.sequence]
        rank = ranks[row["case"]]
        measured = rank["peak_rss_bytes"] - rank["empty_rss_bytes"]
        found.append(replace(size, measured_bytes=measured, step_s=row["step_s"]))
    return found


def summary(found: list[Size]) -> dict[str, float]:
    """Return the named ratios."""
    ratios = {}
    for along in START:
        own = [size for size in found if size.along == along and size.predicted_bytes >= COUNTS]
        if len(own) < 2:
            continue
        first, last = own[0], own[-1]
        deviations = [abs(size.measured_bytes / size.predicted_bytes - 1) for size in own]
        ratios[f"{along}: largest deviation of memory"] = max(deviations)
        foreseen = last.predicted_bytes / first.predicted_bytes
        ratios[f"{along}: growth of memory"] = last.measured_bytes / first.measured_bytes / foreseen
        work = last.flops / first.flops
        ratios[f"{along}: growth of time"] = last.step_s / first.step_s / work
    return ratios


def missed(ratios: dict[str, float]) -> list[str]:
    """Return the ratios that do not reach their goal."""
    goals = [(name, value, name.rpartition(" ")[2], "deviation" in name) for name, value in ratios.items()]
    return [
        name
        for name, value, of, deviation in goals
        if (value if deviation else abs(value - 1)) > GOALS["deviation" if deviation else of]
    ]


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
                axes.set_xticks(values, [str(value) for value in values])
                axes.grid(visible=True, color="#e6e6e6")
        panels[0, 0].set_ylabel("memory, GiB")
        panels[1, 0].set_ylabel("step, s")
        for axes in panels[:, 0]:
            axes.legend(frameon=False)
        figure.suptitle(
            f"A rank's memory and step: {BASE.layers} layers, width {BASE.width}, sequence {BASE.sequence}, "
            f"batch {TRAIN.batch}, where the axis does not say otherwise",
            fontsize=11,
        )
        figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", default="3GiB", help="of the predicted memory of a rank, such as 24GiB")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--svg", type=Path, help="draw there")
    args = parser.parse_args()
    limit = size_bytes(args.limit)
    found = run(list(sizes(limit)), args.threads, limit)
    ratios = summary(found)
    for size in found:
        predicted, measured = (each / 2**20 for each in (size.predicted_bytes, size.measured_bytes))
        print(
            f"{size.along:9} {size.value:6}  predicted {predicted:9.1f} MiB  "
            f"measured {measured:9.1f} MiB  {measured / predicted:6.3f}  "
            f"step {size.step_s:8.3f} s  {size.flops / size.step_s * 1e-9:7.1f} GFLOP/s"
        )
    for name, value in ratios.items():
        print(f"{name:42} {value:6.3f}{'  MISSED' if name in missed(ratios) else ''}")
    if args.json:
        content = {
            "benchmark": "memory",
            "setting": {"limit_bytes": limit, "threads": args.threads, "base": asdict(BASE)},
            "ratios": ratios,
            "sizes": [asdict(size) for size in found],
        }
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    if args.svg:
        draw(found, args.svg)
    return 1 if missed(ratios) else 0


if __name__ == "__main__":
    sys.exit(main())
