"""A run's findings on a terminal: the verdict first, then the tables, then caveats; figures in characters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate, pairwise

from rich.console import Console
from rich.text import Text

from pscale.analysis import messages, text
from pscale.analysis.findings import Findings
from pscale.report.figure_style import KINDS
from pscale.report.table import print_list, print_topic
from pscale.report.topics import TOPICS
from pscale.report.topics.problems import caution


def render_terminal(findings: Findings, console: Console, *, plot: bool = False) -> None:
    """Print everything that a person wants to know; no text of the suite is taken as markup.

    With `plot` also figures made of characters.
    """
    for line in _header(findings):
        console.print(line)
    for line in _headlines(findings):
        console.print()
        console.print(line)
    if plot:
        console.print()
        render_plots(findings, console)
    render_topics(findings, console, [topic.name for topic in TOPICS])
    console.print()
    console.print(Text(f"Data and logs: {text.clean(findings.path)}", style="dim"), soft_wrap=True)


def render_plots(findings: Findings, console: Console) -> None:
    """Print figures made of characters."""
    for line in plots(findings, console.width):
        console.print(line, no_wrap=True)


def render_topics(findings: Findings, console: Console, names: Collection[str]) -> None:
    """Print the topics of these names; what several say in their captions once."""
    said = set[str]()
    for topic in TOPICS:
        if topic.name not in names:
            continue
        print_topic(topic.paragraphs(findings), topic.tables(findings), console, said)
        for title, lines in topic.lists(findings).items():
            print_list(title, lines, console)


def _header(findings: Findings) -> Iterator[Text]:
    yield Text(text.clean(findings.title), style="bold")
    launches = text.plural(findings.launches, "launch")
    planned = findings.launches + findings.pending
    counted = launches if planned == findings.launches else f"{findings.launches} of {planned} launches"
    yield Text(f"run {text.clean(findings.run)} · {counted}", style="dim")
    for name, value in findings.machine:
        yield Text(f"{name}: {text.clean(value)}", style="dim")


def _headlines(findings: Findings) -> Iterator[Text]:
    if findings.oversubscribed:
        yield Text(findings.oversubscribed, style="bold yellow")
    for headline in findings.headlines:
        line = Text(f"{text.clean(headline.topic)}: " if headline.topic else "", style="bold")
        line.append(text.clean(headline.text), style="bold cyan")
        yield line
    if before := caution(findings):
        yield Text(before, style="yellow")


# Figures in characters

_WIDEST = 96  # characters
_MOST_BARS = 40
_GLYPHS = {"compute": "█", "transfer": "▓", "wait_or_transfer": "▓", "wait": "░", "copy": "▒", "offload": "▚"}
_VISIBLE = 0.005  # of a step
Bar = list[tuple[str, str, float]]  # glyph, style and share of the room of each part


def plots(findings: Findings, width: int) -> Iterator[Text]:
    """Yield a bar a case, at most `width` characters long: its efficiency, and what its step goes to."""
    width = min(width, _WIDEST)
    series = [[point for point in points if point.efficiency] for points in findings.series.values()]
    sizes = [point for points in series if len(points) > 1 for point in points]
    if sizes and not findings.side_by_side:
        ends = {row.case: row.efficiency.stated or (row.efficiency.value,) * 2 for row in sizes}
        top = max(1.0, *(high for _, high in ends.values()))
        bars = {
            case: [("█", "blue", low / top), ("▒", "blue", (high - low) / top)]
            for case, (low, high) in ends.items()
        }
        said = {point.case: messages.efficiency(point.efficiency) for point in sizes}
        yield from _bars(findings, "Efficiency (shaded: 95% interval)", bars, said, width)
        yield Text("")
    shares: dict[str, dict[str, float]] = {}
    for time in findings.rows("phases"):
        of_case = shares.setdefault(time.case, dict.fromkeys(_GLYPHS, 0.0))
        for kind in of_case:
            of_case[kind] += getattr(time, f"{kind}_s") / time.step_s
    if shares:
        kinds = [kind for kind in _GLYPHS if any(each[kind] >= _VISIBLE for each in shares.values())]
        bars = {
            case: [(_GLYPHS[kind], KINDS[kind], each[kind]) for kind in kinds]
            for case, each in shares.items()
        }
        steps = {time.case: text.duration_3(time.step_s) for time in findings.rows("phases")}
        yield from _bars(findings, "Where a step goes", bars, steps, width)
        key = [(f"{_GLYPHS[kind]} ", KINDS[kind]) for kind in kinds]
        names = [(text.KINDS.get(kind, kind), "dim") for kind in kinds]
        yield Text("  ").join(Text.assemble(*each) for each in zip(key, names, strict=True))


def _bars(
    findings: Findings, title: str, bars: Mapping[str, Bar], said: Mapping[str, str], width: int
) -> Iterator[Text]:
    """Yield a bar for each of these cases, between its name and what is said of it."""
    points = [point for point in findings.rows("cases") if point.case in bars][:_MOST_BARS]
    grouped = len(findings.series) > 1 and not findings.side_by_side
    name = (lambda point: point.label) if findings.side_by_side else messages.size
    names = [_cut(name(point), width // 2) for point in points]
    indent, longest = (max(map(len, words)) + 1 for words in (names, said.values()))
    room = width - indent - longest
    yield Text(title, style="bold")
    for before, point, label in zip([None, *points], points, names, strict=False):
        if grouped and (before is None or before.series != point.series):
            yield Text(_cut(point.series or "unnamed", width), style="italic")
        bar = Text(f"{label:>{indent - 1}} ")
        ends = accumulate((share for _, _, share in bars[point.case]), initial=0.0)
        cells = pairwise(min(room, round(end * room)) for end in ends)  # so that errors do not add up
        for (glyph, style, _), (start, stop) in zip(bars[point.case], cells, strict=True):
            bar.append(glyph * (stop - start), style)
        bar.append(" " * (indent + room - len(bar)))
        yield bar.append(f"{said[point.case]:>{longest}}", "dim")


def _cut(name: str, width: int) -> str:
    clean = text.clean(name)
    return clean if len(clean) <= width else f"{clean[: width - 1]}…"
