"""Who waits, when, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.steps import cells
from pscale.report import text
from pscale.report.blocks import MOST_ROWS, Block, Context
from pscale.report.figure_style import CLIPPED, MAP, describe, wrapped
from pscale.report.table import Column, Table, Value, Written, listed
from pscale.report.topics.topic import Topic, TopicFigure, case_column, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VARIANTS = 4  # cases side by side whose ranks are listed
_LATE = 8  # rows on late ranks
_LABELS = 16  # on an axis of the figure, at most
_LINED, _VECTORS = 512, 2048  # cells: up to these they are parted by lines, and drawn one by one
_SHADES = 48  # of a cell; with 50 and more matplotlib draws the scale as a picture
_UNITS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def _known(name: str) -> Callable[[Row], Value]:
    return lambda rank: getattr(rank, name) or (None if rank.wait_or_transfer_s else 0.0)


def tables(findings: Findings) -> Iterator[Table]:
    """Yield the ranks that compute most in the largest case of every series, but not of many variants.

    Then those that the others wait for.
    """
    if findings.side_by_side and len({rank.case for rank in findings.rows("ranks")}) > _VARIANTS:
        return
    columns = (
        case_column(findings),
        "rank",
        Column(get="host", fold=True),
        Column("compute", text.duration, get="compute_s"),
        Column("above median", get="excess"),
        Column("most in", get="phase"),
        Column("wait", text.duration, get=_known("wait_s")),
        Column("transfer", text.duration, wide=True, get=_known("transfer_s")),
        Column(text.WAIT_OR_TRANSFER, text.duration, get=lambda rank: rank.wait_or_transfer_s or None),
        Column("unaccounted", text.percent_2, wide=True, get="unaccounted"),
    )
    yield from listed("Slowest ranks (per step)", _of_largest(findings), columns, filled=True)

    def late_steps(each: Row) -> Written:
        return Written(each.late_steps, f"{each.late_steps} of {each.steps} steps")

    yield from listed(
        "Ranks that the others wait for",
        findings.rows("stragglers")[:_LATE],
        (
            *columns[:3],
            Column("of the step", get="step_share"),
            Column("of all wait", get="wait_share"),
            Column("late in", str, get=late_steps),
            Column("late by", get="late_s"),
            Column("most in", get="phase"),
        ),
        caption="of the step: mean wait of each other rank for this one",
        files=("stragglers",),
    )


def _of_largest(findings: Findings) -> Iterator[Row]:
    of_case = findings.by_case("ranks")
    for points in findings.series.values():
        measured = [point.case for point in points if point.case in of_case]
        yield from of_case[measured[-1]] if measured else ()


def _blocks(context: Context) -> Sequence[Block]:
    """Return the map of waiting in the largest case, late ranks, and the ranks that compute most."""
    findings = context.findings
    blocks: list[Block] = []
    if findings.wait["rank"].max() > 0:
        by_rank = context.listings(_by_rank(findings), "wait-by-rank", "wait", most=MOST_ROWS)
        blocks += picture(context, TOPIC.figure, by_rank) or by_rank
    return [*blocks, *context.listings(tables(findings), "ranks", "ranks")]


def _by_rank(findings: Findings) -> Iterator[Table]:
    case, _, repeat, *_ = findings.wait.iloc[0]
    columns = (
        Column("rank", str, get=lambda row: row[0]),
        Column("mean wait", text.duration_3, get=lambda row: float(row[1].mean())),
        Column("longest", text.duration_3, get=lambda row: float(row[1].max())),
        Column("in step", str, get=lambda row: int(row[1].argmax())),
    )
    title = f"Wait of every rank: {text.label(findings.case(case))}, launch {repeat + 1}"
    return listed(title, enumerate(cells(findings.wait)), columns, case=lambda _: case)


def figure(findings: Findings) -> Figure | None:
    """Draw the waits of the findings's map; None without one, or with one rank, which never waits."""
    import seaborn as sns
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    from pscale.report import drawing

    if not findings.wait["rank"].max() > 0:
        return None
    waits, (case, _, repeat, *_) = cells(findings.wait), findings.wait.iloc[0]
    kind = text.KINDS["wait_or_transfer"] if findings.wait["wait_or_transfer_s"].any() else "wait"
    ranks, steps = waits.shape
    top = float(np.percentile(waits, CLIPPED)) or float(waits.max())
    _, factor, unit = next(scale for scale in _UNITS if waits.max() >= scale[0])
    figure = drawing.canvas(9.2, min(6.0, max(2.0, 1.1 + 0.22 * ranks)), findings.title)
    axes = figure.subplots()
    scale: dict[str, Any] = {"label": f"{kind} ({unit})", "pad": 0.015, "fraction": 0.05, "aspect": 24}
    scale["extend"] = "max" if top < waits.max() else "neither"
    sns.heatmap(
        waits * factor,
        ax=axes,
        vmin=0,
        vmax=top * factor or 1.0,
        cmap=LinearSegmentedColormap.from_list("map", MAP, _SHADES),
        linewidths=0.4 if waits.size <= _LINED else 0,
        rasterized=waits.size > _VECTORS,
        cbar_kws={**scale, "ticks": MaxNLocator(5)},
    )
    figure.axes[-1].spines[:].set_visible(False)
    axes.set_xticks(*_ticks(steps), rotation=0)
    axes.set_yticks(*_ticks(ranks), rotation=0)
    axes.set(xlabel="measured step", ylabel="rank")
    axes.tick_params(length=0)
    name = wrapped(findings.case(case).label, 60, most=1)
    hint = "dark cells wait for a rank with pale cells" if waits.any() else "no rank waited"
    clipped = f"; darkest: more than {text.duration_3(top)}" if top < waits.max() else ""
    describe(axes, f"{name}, launch {repeat + 1}: {hint}{clipped}")
    return figure


def _ticks(count: int) -> tuple[list[float], list[str]]:
    """Return the middles and numbers of evenly spread cells."""
    steps = (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, count)
    every = next(step for step in steps if step * _LABELS >= count)
    return [place + 0.5 for place in range(0, count, every)], [str(place) for place in range(0, count, every)]


TOPIC = Topic(
    name="waits",
    title="Who waits",
    lead="A rank waits in a call until the ranks that it depends on have arrived. A pale row between dark "
    "ones is a straggler: the others wait for it.",
    tables=tables,
    figure=TopicFigure(
        name="wait",
        title="Wait by rank and step",
        description="A heat map of the case that waits most: one row per rank, one column per step; the "
        "darker, the longer the rank waited.",
        draw=figure,
    ),
    blocks=_blocks,
)
