"""Pipeline schedules as pictures: a row for each stage, time to the right, what is empty is the bubble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pscale.report import drawing
from pscale.report.figure_style import INK, PHASES, sized, wrapped

_WORDS = {"forward": "forward", "backward": "backward", "weight": "weight gradients, deferred"}
_LABELLED = 0.45  # of a forward: narrower bars have no number


class Bar(NamedTuple):
    """A stage at work: on which micro-batch and chunk, from when to when."""

    kind: str
    micro: int
    chunk: int
    start: float
    stop: float


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A schedule to draw; `chunks` are those of a stage."""

    title: str
    chunks: int
    stages: Sequence[Sequence[Bar]]

    @property
    def wall(self) -> float:
        """Return when the last stage is done."""
        return max(stage[-1].stop for stage in self.stages)


def schedules(pipelines: Sequence[Pipeline], title: str) -> Figure:
    """Draw pipelines below each other, on one scale of time."""
    heights = [0.5 + 0.24 * len(pipeline.stages) for pipeline in pipelines]
    figure = drawing.canvas(9.2, 0.55 + sum(heights), title)
    rows = figure.subplots(len(pipelines), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, pipeline in zip(rows, pipelines, strict=True):
        _draw(axes, pipeline)
    rows[-1].set_xlim(0, max(pipeline.wall for pipeline in pipelines))
    rows[-1].set_xlabel("time, in forwards of a stage")
    rows[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    kinds = {bar.kind for pipeline in pipelines for stage in pipeline.stages for bar in stage}
    patches = [Patch(color=PHASES[kind], label=words) for kind, words in _WORDS.items() if kind in kinds]
    figure.legend(handles=patches, loc="outside upper right", ncols=len(patches), fontsize=sized(8))
    return figure


def _draw(axes: Axes, pipeline: Pipeline) -> None:
    axes.set_title(wrapped(pipeline.title, 110, most=1), fontsize=sized(9))
    for row, stage in enumerate(pipeline.stages):
        spans = [(bar.start, bar.stop - bar.start) for bar in stage]
        colours = [drawing.shade("compute", bar.kind, bar.chunk, pipeline.chunks) for bar in stage]
        axes.broken_barh(spans, (row - 0.42, 0.84), facecolors=colours, edgecolor="white", linewidth=0.8)
        for bar in stage:
            if bar.stop - bar.start >= _LABELLED:
                middle = (bar.start + bar.stop) / 2
                ink = "white" if bar.chunk == 0 and bar.kind == "forward" else INK
                axes.text(middle, row, str(bar.micro), ha="center", va="center", fontsize=sized(7), color=ink)
    axes.set_yticks(range(len(pipeline.stages)), [f"stage {stage}" for stage in range(len(pipeline.stages))])
    axes.set_ylim(len(pipeline.stages) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
