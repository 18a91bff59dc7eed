"""Training loss, which shows whether every case learns the same."""

from __future__ import annotations

from math import isfinite

from pscale.report.page.blocks import Head, Section, Sheet
from pscale.report.page.cells import count, line, number, words
from pscale.report.page.context import Context
from pscale.report.page.sheets import chosen


def loss(context: Context) -> Section | None:
    """Return the loss curves."""
    summary = context.summary
    some, left_out = chosen(summary, 1)
    points = [point for point in some.points if point.losses]
    if not points:
        return None
    heads = (
        *(Head(text="case", right=False, words=True), Head(text="steps")),
        *(Head(text="first"), Head(text="last"), Head(text="lowest"), Head(text="guessing by frequency")),
    )
    rows = []
    for point in points:
        known = [value for value in point.losses if isfinite(value)]
        values = (point.losses[0], point.losses[-1], min(known, default=None), point.loss_unigram)
        rows.append(line(words(point.label), count(len(point.losses)), *map(number, values)))
    table = Sheet(
        name="losses",
        title="First and last loss",
        heads=heads,
        rows=tuple(rows),
        left_out=left_out,
        files=context.files("loss"),
        folded=True,
    )
    drawn = context.pictures(
        "loss",
        "Loss by step",
        "One curve for each case, or one for several that are equal; the dashed line is what guessing by "
        "frequency costs.",
        table,
    )
    return Section(
        name="loss",
        title="Loss",
        lead="Equal curves mean equal work. Cases that differ in how they learn, by optimizer, precision or "
        "compression, have curves of their own.",
        blocks=[*drawn] or [table],
    )
