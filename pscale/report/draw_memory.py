"""What the fullest rank of every case holds, by kind, and what the system measured."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pscale.analysis.memory import KINDS, Memory
from pscale.analysis.summary import Summary
from pscale.report import style, text
from pscale.report.look import narrow, sized

_BAR, _AXIS = 0.28, 1.15  # inches: a bar with its gap, the axis and the legend
_MOST = 48  # bars
_LEAST_BYTES = 16 << 20  # a run whose ranks all hold less tells nothing of memory
_COLOURS = dict(zip(KINDS, ("#0072b2", "#56b4e9", "#e69f00", "#009e73", "#b4478a"), strict=True))
_FAINT = 0.35  # of a bar that is predicted alone


def memory(summary: Summary) -> Figure | None:
    """Draw one bar a case; None where no rank holds much."""
    known = [memory for memory in summary.memory if memory.expected][:_MOST]
    largest = max((_total(memory) for memory in known), default=0)
    if largest < _LEAST_BYTES:
        return None
    unit, name = (1 << 30, "GiB") if largest >= 4 << 30 else (1 << 20, "MiB")
    figure = style.canvas(9.2, _BAR * len(known) + _AXIS, summary.title)
    axes = figure.subplots()
    for row, memory in enumerate(known):
        alpha, left = 1.0 if memory.counted else _FAINT, 0.0
        for kind, colour in _COLOURS.items():
            width = (memory.expected or {}).get(kind, 0) / unit
            axes.barh(
                row,
                width,
                left=left,
                height=0.72,
                color=colour,
                alpha=alpha,
                edgecolor="white",
                linewidth=0.5,
            )
            left += width
        if memory.measured_bytes is not None:
            axes.plot(memory.measured_bytes / unit, row, "D", color=style.INK, markersize=4.5, zorder=5)
        axes.text(
            _total(memory) / unit + 0.015 * largest / unit,
            row,
            _label(memory),
            va="center",
            fontsize=sized(8.5),
        )
    axes.set_yticks(
        range(len(known)), [style.wrapped(_name(summary, memory), 52 if narrow() else 38) for memory in known]
    )
    axes.set_ylim(len(known) - 0.5, -0.5)
    axes.set_xlim(0, 1.2 * largest / unit)
    axes.set_xlabel(f"memory of the fullest rank, {name}")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    _legend(figure, known)
    return figure


def _legend(figure: Figure, known: list[Memory]) -> None:
    handles: list[Patch | Line2D] = [Patch(color=colour) for colour in _COLOURS.values()]
    names = list(KINDS)
    if any(memory.measured_bytes is not None for memory in known):
        handles.append(Line2D([], [], marker="D", color=style.INK, linestyle="none", markersize=4.5))
        names.append("measured")
    if any(memory.counted is None for memory in known):
        handles.append(Patch(color=style.QUIET, alpha=_FAINT))
        names.append("pale: predicted alone")
    style.below(figure, handles, names)


def _total(memory: Memory) -> int:
    """Return where the bar or the mark of what was measured ends, whichever is longer."""
    return max(sum((memory.expected or {}).values()), memory.measured_bytes or 0)


def _label(memory: Memory) -> str:
    """Return the size at the mark, if there is one, else at the end of the bar."""
    if memory.measured_bytes is not None:
        return text.size_of(memory.measured_bytes)
    total = text.size_of(sum((memory.expected or {}).values()))
    return total if memory.counted else f"{total}, predicted"


def _name(summary: Summary, memory: Memory) -> str:
    return summary.point(memory.case).label
