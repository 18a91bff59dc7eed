"""Who waits, when, and for whom."""

from __future__ import annotations

from pscale.analysis.late import hint, sentence
from pscale.analysis.phases import WaitMap
from pscale.report import grids, text
from pscale.report.page.blocks import Block, Head, Section, Sheet, Words
from pscale.report.page.cells import count, line, seconds
from pscale.report.page.context import Context
from pscale.report.page.sheets import MOST_ROWS, sheets

_SPOKEN = 8  # ranks to blame


def waits(context: Context) -> Section | None:
    """Return the map of waiting in the largest case, ranks to blame, and the ranks that compute most."""
    summary = context.summary
    blocks: list[Block] = []
    if summary.wait is not None and len(summary.wait.wait_s) > 1:
        label = text.label(summary.point(summary.wait.case))
        blocks += context.pictures(
            "wait",
            "Wait by rank and step",
            f"A heat map of {label}: a row a rank, a column a measured step; the stronger, the longer the "
            "rank waited. The table below has mean and longest wait of every rank.",
            _by_rank(context, summary.wait, label),
        )
    if late := [
        f"{text.label(summary.point(each.case))}: {sentence(each)}. {hint(each)}" for each in summary.late
    ]:
        blocks.append(Words(title="Ranks that the others wait for", lines=tuple(late[:_SPOKEN])))
    blocks += sheets(grids.ranks(summary), "ranks", files=context.files("ranks", "late"))
    if not blocks:
        return None
    return Section(
        name="waits",
        title="Who waits",
        lead="A rank waits in a call until the ranks that it depends on have come. Look for the row that "
        "is faint where the others are strong: they wait for it.",
        blocks=blocks,
    )


def _by_rank(context: Context, found: WaitMap, label: str) -> Sheet:
    heads = (Head(text="rank"), Head(text="mean wait"), Head(text="longest"), Head(text="in step"))
    rows = []
    for rank, waits_s in enumerate(found.wait_s[:MOST_ROWS]):
        mean_s, longest_s = sum(waits_s) / len(waits_s), max(waits_s)
        step = waits_s.index(longest_s)
        rows.append(line(count(rank), seconds(mean_s, 3), seconds(longest_s, 3), count(step)))
    total = len(found.wait_s)
    return Sheet(
        name="wait-by-rank",
        title=f"Wait of every rank: {label}, launch {found.repeat + 1}",
        heads=heads,
        rows=tuple(rows),
        left_out=f"The first {len(rows):,} of {total:,} ranks." if len(rows) < total else "",
        files=context.files("wait"),
        folded=True,
    )
