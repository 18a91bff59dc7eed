"""Predict published training times by data sheets: what a prediction without any measurement is worth.

    python benchmarks/published.py [steps | trainings]    predict; write the tables of docs/machines.md

Steps are of Korthikanti et al., Reducing activation recomputation in large transformer models (2022), tables
3 and 5: their plans are known. Of the trainings only models, tokens and hours are; they are predicted as if
one accelerator that has the memory did all: the hours of its computing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.config import Case, Data, Model, Plan, Train
from pscale.predict.datasheet import profile_by_sheet
from pscale.predict.engine import predict
from pscale.simulator.network import Network
from pscale.suite.file import PUBLISHED
from pscale.suite.network import load_data_sheet

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "figures" / "published.json"
DOCUMENT = ROOT / "docs" / "machines.md"
MARKS = "<!-- published -->", "<!-- end of published -->"
MICRO_BATCHES = 8  # of a training's step: time by token hardly depends on how many there are
HOURS_OF_A_YEAR = 24 * 365.25
SMALL = 0.01  # of a step: less is not named

# Layers, width, heads; ranks of a pipeline; sequences of a micro-batch, micro-batches, virtual stages;
# seconds with full recomputation, and with sequence parallelism and a selective one. By eight tensor ranks.
STEPS = {
    "22B": ((48, 6144, 64), 1, (4, 1, 1), (1.42, 1.10)),
    "GPT-3 175B": ((96, 12288, 96), 8, (1, 64, 3), (18.13, 13.75)),
    "MT-NLG 530B": ((105, 20480, 128), 35, (1, 280, 3), (49.05, 37.83)),
    "1T": ((128, 25600, 160), 64, (1, 512, 1), (94.42, 71.49)),
}
LLAMA = PUBLISHED["llama-2-7b"]
_65B = {"layers": 80, "width": 8192, "heads": 64, "mlp_width": 22016}
# Data sheet; sizes; billions of tokens; hours of an accelerator; source.
TRAININGS: dict[str, tuple[str, Mapping[str, Any], int, float, str]] = {
    "GPT-3 175B": ("v100", PUBLISHED["gpt3-175b"], 300, 10_000 * 14.8 * 24, "arxiv.org/abs/2104.10350"),
    "LLaMA 7B": ("a100", {**LLAMA, "sequence": 2048}, 1000, 82_432, "arxiv.org/abs/2302.13971"),
    "LLaMA 65B": ("a100", {**LLAMA, **_65B, "sequence": 2048}, 1400, 1_022_362, "arxiv.org/abs/2302.13971"),
    "Llama 2 7B": ("a100", LLAMA, 2000, 184_320, "arxiv.org/abs/2307.09288"),
    "Llama 2 70B": ("a100", PUBLISHED["llama-2-70b"], 2000, 1_720_320, "arxiv.org/abs/2307.09288"),
    "Llama 3.1 8B": (
        "h100",
        PUBLISHED["llama-3-8b"],
        15_000,
        1.46e6,
        "huggingface.co/meta-llama/Llama-3.1-8B",
    ),
    "Llama 3.1 70B": (
        "h100",
        PUBLISHED["llama-3-70b"],
        15_000,
        7e6,
        "huggingface.co/meta-llama/Llama-3.1-70B",
    ),
}


def case_of(name: str, model: Model, plan: Plan, train: Train) -> Case:
    """Return a case of synthetic tokens."""
    data = Data(kind="synthetic")
    return Case(
        suite="published", label=name, ranks=plan.ranks, model=model, plan=plan, train=train, data=data
    )


def steps() -> Iterator[dict[str, Any]]:
    """Yield predicted and published seconds of steps on A100s."""
    sheet = load_data_sheet(ROOT / "examples" / "machines" / "a100.yaml")
    assert sheet.network is not None
    for name, ((layers, width, heads), stages, (sequences, count, parts), published) in STEPS.items():
        sizes = {"layers": layers, "width": width, "heads": heads, "sequence": 2048, "vocabulary": 51200}
        model = Model(**sizes, dtype="fp16", attention="plain")
        train = Train(batch=sequences * count, micro_batches=count)
        staged = {"schedule": "interleaved", "virtual_stages": parts} if parts > 1 else {"schedule": "1f1b"}
        for recomputed, published_s in zip(("full", "selective"), published, strict=True):
            plan = Plan(
                tp=8,
                pp=stages,
                checkpoint=recomputed,
                sp=recomputed == "selective",
                **(staged if stages > 1 else {}),
            )
            case = case_of(name, model, plan, train)
            made = predict(case, profile_by_sheet(sheet, case), Network(tiers=sheet.network), draws=2)
            yield {
                "model": name,
                "ranks": case.ranks,
                "recomputation": recomputed,
                "predicted_s": made.step_s.value,
                "published_s": published_s,
                "losses_s": dict(made.losses),
            }


def trainings() -> Iterator[dict[str, Any]]:
    """Yield predicted and published hours of an accelerator for whole trainings."""
    for name, (file, sizes, tokens, hours, source) in TRAININGS.items():
        sheet = load_data_sheet(ROOT / "examples" / "machines" / f"{file}.yaml")
        model = Model(**sizes, dtype="fp16" if file == "v100" else "bf16")
        train = Train(batch=MICRO_BATCHES, micro_batches=MICRO_BATCHES)
        case = case_of(name, model, Plan(), train)
        made = predict(case, profile_by_sheet(sheet, case), draws=2)
        steps = tokens * 1e9 / (model.sequence * MICRO_BATCHES)
        yield {
            "model": name,
            "machine": sheet.name,
            "tokens": tokens * 1e9,
            "predicted_h": made.step_s.value * steps / 3600,
            "published_h": hours,
            "source": source,
        }


def table(content: Mapping[str, Any]) -> str:
    """Return the tables of the page."""
    return "\n".join([*_steps(content["steps"]), "", *_trainings(content["trainings"])])


def _steps(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| model | A100s | recomputation | predicted | published | error | lost as predicted |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        lost = ", ".join(
            f"{kind} {seconds / row['predicted_s']:.0%}"
            for kind, seconds in row["losses_s"].items()
            if kind != "compute" and seconds / row["predicted_s"] >= SMALL
        )
        predicted, published = row["predicted_s"], row["published_s"]
        yield (
            f"| {row['model']} | {row['ranks']} | {row['recomputation']} "
            f"| {predicted:.2f} s | {published:.2f} s | {predicted / published - 1:+.0%} | {lost} |"
        )


def _trainings(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| model | tokens | machine | predicted | published | error | published in years of one |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        predicted, published = row["predicted_h"], row["published_h"]
        yield (
            f"| [{row['model']}](https://{row['source']}) | {row['tokens'] / 1e9:,.0f} billion "
            f"| {row['machine']} "
            f"| {predicted:,.0f} h | {published:,.0f} h | {predicted / published - 1:+.0%} "
            f"| {published / HOURS_OF_A_YEAR:,.0f} |"
        )


def in_document(text: str, content: Mapping[str, Any]) -> str:
    """Return a page with the tables between its marks."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{table(content)}\n{MARKS[1]}{after}"


def main() -> None:
    """Predict what is asked for, keep it beside what was kept, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", nargs="*", choices=("steps", "trainings", []))
    which = parser.parse_args().which or ["steps", "trainings"]
    content = json.loads(KEPT.read_text()) if KEPT.exists() else {"steps": [], "trainings": []}
    for name in which:
        content[name] = list({"steps": steps, "trainings": trainings}[name]())
        KEPT.write_text(json.dumps(content, indent=1) + "\n")
    DOCUMENT.write_text(in_document(DOCUMENT.read_text(), content))


if __name__ == "__main__":
    main()
