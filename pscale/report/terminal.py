"""A run's findings on a terminal: the verdict first, then the tables, then caveats; figures in characters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, log2

from rich.console import Console
from rich.text import Text

from pscale.analysis import messages, text
from pscale.analysis.findings import Findings
from pscale.report.figure_style import KINDS
from pscale.report.table import print_list, print_table
from pscale.report.topics import TOPICS
from pscale.report.topics.problems import caution, warnings


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
    said = [f"{about}: {words}" if about else words for about, words in warnings(findings.rows("warnings"))]
    for title, lines in (("Warnings", said), ("Notes", findings.notes)):
        print_list(title, lines, console)
    console.print()
    console.print(Text(f"Data and logs: {text.clean(findings.path)}", style="dim"), soft_wrap=True)


def render_plots(findings: Findings, console: Console) -> None:
    """Print figures made of characters."""
    for line in plots(findings, console.width):
        console.print(line, no_wrap=True)


def render_topics(findings: Findings, console: Console, names: Collection[str]) -> None:
    """Print the topics of these names; what several say in their captions once."""
    said = {""}
    for topic in TOPICS:
        if topic.name not in names:
            continue
        for paragraph in topic.paragraphs(findings):
            console.print()
            console.print(Text(paragraph))
        for table in topic.tables(findings):
            print_table(replace(table, caption="") if table.caption in said else table, console)
            said.add(table.caption)


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

_ROWS = 12  # of the plot
_WIDEST = 96  # characters
_AXIS = 6  # characters to the left of the plot: "100% ┤"
_MARKS = "●▲■◆○△□◇"  # of series, distinguished without colours
_COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow")
_GLYPHS = {"compute": "█", "transfer": "▓", "wait_or_transfer": "▓", "wait": "░", "copy": "▒", "offload": "▚"}
_MOST_BARS = 40
_VALUE = 9  # characters of a step time
_MARGIN = 0.02  # of the width, beside the smallest and largest size
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a character, by row and column
_BRAILLE = 0x2800

Place = tuple[float, float]  # shares of width and height, from the lower left


def plots(findings: Findings, width: int) -> Iterator[Text]:
    """Yield the lines of all plots that the run has data for, at most `width` characters each."""
    width = min(width, _WIDEST)
    yield from _efficiency(findings, width)
    yield from _breakdown(findings, width)


def _efficiency(findings: Findings, width: int) -> Iterator[Text]:
    """Yield efficiency over size with its intervals; nothing where cases are not sizes of something."""
    measured = {
        name: [(point.cores, point.efficiency) for point in points if point.efficiency]
        for name, points in findings.series.items()
    }
    series = {name: known for name, known in measured.items() if len(known) > 1}
    if findings.side_by_side or not series:
        return
    everything = [each for known in series.values() for each in known]
    top = max(1.0, ceil(10 * max(share.value for _, share in everything)) / 10)
    low, high = (log2(pick(cores for cores, _ in everything)) for pick in (min, max))
    dots = Dots(width - _AXIS, _ROWS)

    def at(cores: int, share: float) -> Place:
        return _MARGIN + (1 - 2 * _MARGIN) * (log2(cores) - low) / ((high - low) or 1.0), share / top

    dots.line((0.0, 1 / top), (1.0, 1 / top), "dim")
    for place, known in enumerate(series.values()):
        style = _COLOURS[place % len(_COLOURS)]
        for (cores, share), (following, after) in pairwise(known):
            dots.line(at(cores, share.value), at(following, after.value), style)
        for cores, share in known:
            if share.low is not None and share.high is not None:
                dots.line(at(cores, share.low), at(cores, share.high), style)
            dots.mark(at(cores, share.value), _MARKS[place % len(_MARKS)], style)
    yield from _framed(dots, top)
    yield _sizes({cores: at(cores, 0)[0] for cores, _ in everything}, dots.width)
    if len(series) > 1:
        yield from (_named(place, name, width) for place, name in enumerate(series))
    yield Text("")


def _named(place: int, name: str, width: int) -> Text:
    mark = (f"{_MARKS[place % len(_MARKS)]} ", _COLOURS[place % len(_COLOURS)])
    return Text.assemble(" " * _AXIS, mark, _cut(name or "unnamed", width - _AXIS - 2))


def _framed(dots: Dots, top: float) -> Iterator[Text]:
    """Yield a plot with its title and an axis in percent."""
    yield Text("Efficiency, with 95% intervals", style="bold")
    ticks = {round((1 - share / top) * (4 * _ROWS - 1)) // 4: share for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
    for row, line in enumerate(dots.rows()):
        name = f"{ticks[row]:4.0%} ┤" if row in ticks else "     │"
        yield Text.assemble((name, "dim"), line)


def _sizes(places: Mapping[int, float], width: int) -> Text:
    """Return the sizes below their places, from the largest on as far as they stay apart."""
    letters, free = [" "] * width, width + 1
    for size, place in sorted(places.items(), reverse=True):
        name = str(size)
        start = min(max(0, round(place * (width - 1)) - len(name) // 2), width - len(name))
        if start + len(name) < free:
            letters[start : start + len(name)] = name
            free = start
    return Text(f"{'cores':<{_AXIS}}{''.join(letters).rstrip()}", style="dim")


def _breakdown(findings: Findings, width: int) -> Iterator[Text]:
    """Yield a bar a case: what its step goes to, in shares."""
    shares: dict[str, dict[str, float]] = {}
    steps = {time.case: time.step_s for time in findings.rows("phases")}
    for time in findings.rows("phases"):
        of_case = shares.setdefault(time.case, dict.fromkeys(_GLYPHS, 0.0))
        for kind in of_case:
            of_case[kind] += getattr(time, f"{kind}_s") / time.step_s
    points = [point for point in findings.rows("cases") if point.case in shares][:_MOST_BARS]
    if not points:
        return
    grouped = len(findings.series) > 1 and not findings.side_by_side
    name = (lambda point: point.label) if findings.side_by_side else messages.size
    names = [_cut(name(point), width // 2) for point in points]
    indent = max(map(len, names)) + 1
    room = width - indent - _VALUE
    kinds = [kind for kind in _GLYPHS if any(round(known[kind] * room) for known in shares.values())]
    yield Text("Where a step goes", style="bold")
    for before, point, label in zip([None, *points], points, names, strict=False):
        if grouped and (before is None or before.series != point.series):
            yield Text(_cut(point.series or "unnamed", width), style="italic")
        bar = Text(f"{label:>{indent - 1}} ")
        for kind, cells in zip(
            kinds, _cells([shares[point.case][kind] for kind in kinds], room), strict=True
        ):
            bar.append(_GLYPHS[kind] * cells, KINDS[kind])
        bar.append(" " * (indent + room - len(bar)))
        yield bar.append(f"{text.duration(steps[point.case], 3):>{_VALUE}}", "dim")
    yield _key(kinds, indent, width)


def _key(kinds: Sequence[str], indent: int, width: int) -> Text:
    key = Text()
    for kind in kinds:
        key.append(f"{_GLYPHS[kind]} ", KINDS[kind]).append(f"{text.KINDS.get(kind, kind)}  ", "dim")
    key.rstrip()
    return Text(" " * max(0, min(indent, width - len(key)))) + key


def _cells(shares: Sequence[float], room: int) -> list[int]:
    """Return how many characters each share gets: ends are rounded, so that errors do not add up."""
    ends, total = [0], 0.0
    for share in shares:
        total += share
        ends.append(min(room, round(total * room)))
    return [stop - start for start, stop in pairwise(ends)]


def _cut(name: str, width: int) -> str:
    clean = text.clean(name)
    return clean if len(clean) <= width else f"{clean[: width - 1]}…"


class Dots:
    """A sheet of braille characters, 2 × 4 dots each, with marks on top."""

    def __init__(self, width: int, height: int):
        self.width, self.height = width, height
        self._cells = [[0] * width for _ in range(height)]
        self._marks: dict[tuple[int, int], str] = {}
        self._styles: dict[tuple[int, int], str] = {}

    def line(self, start: Place, stop: Place, style: str) -> None:
        """Draw from one place to another; what lies outside is drawn on the edge."""
        (x0, y0), (x1, y1) = self._dot(*start), self._dot(*stop)
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(steps + 1):
            x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
            row, column = y // 4, x // 2
            self._cells[row][column] |= _DOTS[y % 4][x % 2]
            self._styles[row, column] = style

    def mark(self, at: Place, letter: str, style: str) -> None:
        """Put a letter in place of dots."""
        x, y = self._dot(*at)
        self._marks[y // 4, x // 2] = letter
        self._styles[y // 4, x // 2] = style

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        across, up = 2 * self.width - 1, 4 * self.height - 1
        return round(min(1.0, max(0.0, x)) * across), round((1 - min(1.0, max(0.0, y))) * up)

    def rows(self) -> Iterator[Text]:
        """Yield the lines, the uppermost first."""
        for row, cells in enumerate(self._cells):
            line = Text()
            for column, dots in enumerate(cells):
                letter = self._marks.get((row, column)) or (chr(_BRAILLE + dots) if dots else " ")
                line.append(letter, self._styles.get((row, column), ""))
            yield line
