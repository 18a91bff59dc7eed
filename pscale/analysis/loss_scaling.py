"""How the scale of the loss went, and how many steps were skipped since gradients overflowed at it."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.analysis.frames import Run, records


@dataclass(frozen=True, kw_only=True)
class LossScaling:
    """The first launch of one case whose loss is scaled. Steps are all of it, warm-up included."""

    case: str
    asked: str  # dynamic or a number
    first_scale: float
    last_scale: float
    skipped: int
    skipped_measured: int  # of these, after the warm-up
    steps: int

    @property
    def words(self) -> str:
        """The course in words: 3 of 30 steps skipped, scale 32768."""
        return f"{self.skipped} of {self.steps} steps skipped, scale {self.last_scale:.10g}"


def loss_scaling(run: Run) -> tuple[LossScaling, ...]:
    """Return every measured case whose loss is scaled."""
    good = run.cases[run.cases["status"] == "ok"].drop_duplicates("case")
    chosen = good[good["loss_scales"].notna()]
    found = []
    for row in records(chosen[["case", "loss_scale", "loss_scales", "skipped_steps", "warmup"]]):
        scales, steps = (
            [float(scale) for scale in row["loss_scales"]],
            [int(step) for step in row["skipped_steps"]],
        )
        found.append(
            LossScaling(
                case=str(row["case"]),
                asked=str(row["loss_scale"]),
                first_scale=scales[0],
                last_scale=scales[-1],
                skipped=len(steps),
                skipped_measured=sum(step >= int(row["warmup"]) for step in steps),
                steps=len(scales),
            )
        )
    return tuple(found)
