"""Where a step goes, by phase and kind of time."""

from __future__ import annotations

from pscale.analysis.phases import PhaseTime
from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.page.blocks import Block, Cell, Head, Section, Sheet
from pscale.report.page.cells import line, seconds, words
from pscale.report.page.context import Context
from pscale.report.page.sheets import chosen

_KINDS = ("compute", "transfer", "wait", "together", "copy", "offload", "hidden")


def phases(context: Context) -> Section | None:
    """Return the breakdown of every case."""
    summary = context.summary
    if not summary.phases:
        return None
    per_case = len(summary.phases) / len({time.case for time in summary.phases})
    some, left_out = chosen(summary, per_case)
    table = _table(some, left_out, context)
    blocks: list[Block] = [
        *context.pictures(
            "breakdown",
            "Shares of the step",
            "One bar a case, from 0 to 100 percent of its mean step: compute, transfer, wait, copies and "
            "stalls of offload, each by phase. The table below has the times.",
            table,
        )
    ]
    return Section(
        name="phases",
        title="Where a step goes",
        lead="Every moment of a step belongs to one kind: compute, transfer (in a call, once all ranks "
        "have come), wait (before they have), copy, or offload (a stall until a file is read or "
        "written). Means over ranks and steps.",
        blocks=blocks or [table],
    )


def _table(summary: Summary, left_out: str, context: Context) -> Sheet:
    kinds = [kind for kind in _KINDS if any(getattr(time, f"{kind}_s") for time in summary.phases)]
    heads = (
        *(Head(text="case", right=False, words=True), Head(text="phase", right=False), Head(text="of step")),
        *(Head(text=text.KINDS.get(kind, kind)) for kind in kinds),
    )
    labels = {point.case: text.label(point) for point in summary.points}
    rows = tuple(
        line(words(labels[time.case]), words(time.phase), _share(time), *_times(time, kinds))
        for time in summary.phases
    )
    return Sheet(
        name="phase-times",
        title="Time by phase and kind",
        heads=heads,
        rows=rows,
        caption="Per step. Hidden: communication under way during compute; beside the others, not added.",
        left_out=left_out,
        files=context.files("phases"),
        folded=True,
    )


def _share(time: PhaseTime) -> Cell:
    share = time.inside_s / time.step_s if time.step_s else 0.0
    return Cell(text=text.percent(share, 1), order=share, bar=min(share, 1.0))


def _times(time: PhaseTime, kinds: list[str]) -> list[Cell]:
    return [seconds(getattr(time, f"{kind}_s"), 3) for kind in kinds]
