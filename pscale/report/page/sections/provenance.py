"""What made the figures: machine, software, commit, the suite as it was given."""

from __future__ import annotations

from pscale.report import text
from pscale.report.page.blocks import Block, Facts, Quote, Section
from pscale.report.page.context import Context


def provenance(context: Context) -> Section:
    """Return where the run comes from."""
    summary = context.summary
    first = (
        *(("Run", summary.run), ("Suite", summary.suite), ("Launches", f"{summary.launches}")),
        *summary.machine,
    )
    blocks: list[Block] = [Facts(title="This run", items=_clean(first))]
    if summary.provenance:
        blocks.append(Facts(title="Circumstances", items=_clean(summary.provenance), folded=True))
    if summary.given:
        blocks.append(Quote(title="The suite", text=summary.given))
    return Section(
        name="provenance",
        title="Provenance",
        lead="What these figures were made with and on.",
        blocks=blocks,
    )


def _clean(items: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((text.clean(name), text.clean(value)) for name, value in items if value)
