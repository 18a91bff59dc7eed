"""What made the figures: machine, software, commit, the suite as it was given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pscale.report import text
from pscale.report.blocks import Block, Context, Downloads, Facts, Quote
from pscale.report.topics.topic import Topic


def _blocks(context: Context) -> Sequence[Block]:
    """Return where the run comes from, and what no other topic has: this one is the last."""
    findings = context.findings
    first = (("Run", findings.run), ("Suite", findings.suite), ("Launches", f"{findings.launches}"))
    blocks: list[Block] = [Facts(title="This run", items=_clean((*first, *findings.machine)))]
    if findings.provenance:
        blocks.append(Facts(title="Environment", items=_clean(findings.provenance), folded=True))
    if findings.given:
        blocks.append(Quote(title="The suite", text=findings.given))
    if others := context.others():
        blocks.append(Downloads(title="Tables for programs alone", files=others))
    return blocks


def _clean(items: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((text.clean(name), text.clean(value)) for name, value in items if value)


TOPIC = Topic(
    name="provenance",
    title="Provenance",
    lead="Machine, software and suite behind these results.",
    blocks=_blocks,
)
