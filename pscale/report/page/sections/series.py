"""Several series: all of them in two sentences, and a row for each."""

from __future__ import annotations

from collections import Counter
from statistics import median

from pscale.analysis.losses import Losses
from pscale.analysis.summary import Summary
from pscale.analysis.verdict import size
from pscale.report import text
from pscale.report.page.blocks import Cell, Head, Line, Sheet
from pscale.report.page.cells import efficiency, line, seconds, share, words
from pscale.report.page.context import Context
from pscale.report.page.sheets import MOST_CASES, counted

PARTS = {
    "useful": "useful computing",
    "threads": "idle threads",
    "scaling": "computing beyond the base case",
    "imbalance": "load imbalance",
    "serialisation": "serialisation",
    "transfer": "transfer",
    "together": "serialisation or transfer",
    "copy": "copies",
    "offload": "waiting for what is offloaded",
    "unaccounted": "unaccounted",
}
_CAUSES = {**PARTS, "": "none worth a name"}


def overview(summary: Summary) -> str:
    """Say how series scale, from the worst to the best, and what costs most of them; nothing of plans."""
    if summary.side_by_side:
        return ""
    largest = [(summary.point(each.case), each) for each in summary.verdicts if each.case]
    known = sorted(
        (point.efficiency.value, each.series)
        for point, each in largest
        if point.efficiency and not point.base
    )
    if not known:
        return ""
    (low, worst), (high, best) = known[0], known[-1]
    middle = median(value for value, _ in known)
    (cause, count), *_ = Counter(each.cause for _, each in largest).most_common()
    return text.clean(
        f"At their largest size, {len(known)} series keep {low:.0%} ({worst}) to {high:.0%} ({best}) of the "
        f"efficiency of their base, half of them {middle:.0%} or more. Most often the largest loss is "
        f"{_CAUSES[cause]}: in {count} of {len(largest)}."
    )


def _loss(losses: Losses | None, cause: str) -> float | None:
    """Return the share of the step that a cause costs."""
    return getattr(losses, cause, None) if cause else None


def table(context: Context) -> Sheet:
    """Return a row a series: how far it was measured, how well it scales, what it loses most by."""
    summary = context.summary
    heads = (
        *(Head(text="series", right=False, words=True), Head(text="largest case"), Head(text="step")),
        *(Head(text="efficiency"), Head(text="largest loss", right=False), Head(text="of the step")),
    )
    lost = {losses.case: losses for losses in summary.losses}
    rows: list[Line] = []
    for each in summary.verdicts[:MOST_CASES]:
        series = words(each.series or "unnamed")
        if not each.case:
            rows.append(("bad", (series, words("none"), *[words(text.MISSING)] * 4)))
            continue
        point = summary.point(each.case)
        rows.append(
            line(
                series,
                Cell(text=size(point), order=point.cores),
                seconds(point.step_s.value if point.step_s else None),
                efficiency(None if point.base else point.efficiency),
                words(_CAUSES.get(each.cause, each.cause)),
                share(_loss(lost.get(each.case), each.cause)),
            )
        )
    left_out = counted(len(rows), len(summary.verdicts)) if len(rows) < len(summary.verdicts) else ""
    return Sheet(
        name="series",
        title="Every series",
        heads=heads,
        rows=tuple(rows),
        left_out=left_out,
        files=context.files("verdicts"),
    )
