"""An outlook, what `pscale predict` says, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from pscale.analysis import messages, text
from pscale.analysis.frames import grouped
from pscale.analysis.stats import Estimate
from pscale.predict.outlook import WORDS, Outlook, Row, joined, training_hours
from pscale.report.blocks import Picture, Section, Tile, Tiles, Words, band, listings
from pscale.report.brief import write_changed
from pscale.report.figure_style import INK, KINDS, Vector, wrapped
from pscale.report.page import Head, render, vectors
from pscale.report.table import CASE, Column, Table, Written, listed, print_list, print_table
from pscale.runs.run_folders import prediction_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHORT = {"computation": "compute", "load balance": "balance", "serialisation": "serial."}  # for columns
_NAMED = 3  # labels in a sentence
_GROWS = 0.01  # of the step: less is not worth a sentence
_BAND = 0.2  # opacity
_LABEL, _LEVEL = 18, 6  # characters of a line; labels that stand side by side


def print_outlook(outlook: Outlook, console: Console, goal: float | None, price: float | None) -> None:
    """Print the tables, notes on them, and their accuracy."""
    console.print(Text(text.clean(outlook.title), style="bold"))
    network = f" on the network {outlook.network}" if outlook.network else ""
    console.print(
        Text(text.clean(f"predicted from {outlook.origin} ({outlook.machine}){network}"), style="dim")
    )
    for table in tables(outlook, goal, price):
        print_table(table, console)
    print_list("Notes", list(_notes(outlook)), console)
    print_list("Accuracy", outlook.trust, console)
    console.print()


def tables(outlook: Outlook, goal: float | None, price: float | None) -> Iterator[Table]:
    """Yield steps with their losses, the factors of efficiency by size, and time and price of training."""
    yield from _steps(outlook)
    if outlook.base:
        yield from _factors(outlook)
    if goal is not None:
        yield from _training(outlook, goal, price)


def _steps(outlook: Outlook) -> Iterator[Table]:
    kinds = dict.fromkeys(kind for row in outlook.rows for kind in row.shares)
    columns = (
        CASE,
        Column("ranks", str, get=_ranks),
        Column("step", text.duration_3, get="step_s"),
        Column("90% of launches", str, get=lambda row: _bounds(row.step_s, text.duration_3)),
        *(Column(kind, text.percent, bar=True, wide=kind != "compute", get=_share(kind)) for kind in kinds),
        Column("largest loss", get=lambda row: row.prediction.largest_loss),
    )
    caption = "shares of the mean rank's step; bubble, imbalance and jitter are waits, by cause"
    caption = "; ".join([caption, *_mark(outlook)])
    yield from listed(f"Predicted steps{outlook.by}", outlook.rows, columns, caption=caption)


def _factors(outlook: Outlook) -> Iterator[Table]:
    names = list(dict.fromkeys(name for row in outlook.rows for name in row.factors))
    columns = (
        CASE,
        Column("ranks", str, get=_ranks),
        Column("efficiency", text.percent, band=True, get="efficiency"),
        Column("90% of launches", str, wide=True, get=lambda row: _bounds(row.efficiency, text.percent_0)),
        *(Column(_SHORT.get(name, name), text.percent, band=True, get=_factor(name)) for name in names),
    )
    caption = (
        f"efficiency: work per core-second, relative to {outlook.base}; overall: product of the factors, "
        "which is the efficiency times the overall factor of that case"
    )
    caption = "; ".join([caption, *_mark(outlook)])
    yield from listed(f"Efficiency by size{outlook.by}", outlook.rows, columns, caption=caption)


def _training(outlook: Outlook, goal: float, price: float | None) -> Iterator[Table]:
    def between(row: Row, factor: float, write: Callable[[float], str]) -> Written:
        value = training_hours(row, goal).times(factor)
        bounds = _bounds(value, write)
        return Written(value.value, f"{write(value.value)} [{bounds.text}]" if bounds else write(value.value))

    priced = price is not None
    columns = (
        Column("case", fold=True, get=lambda row: f"{row.label}{'*' * row.unchecked}"),
        Column("time", str, get=lambda row: between(row, 1.0, _days)),
        *[Column("cost", str, get=lambda row: between(row, (price or 0.0) * row.ranks, text.rate))] * priced,
    )
    caption = "; ".join([*[f"cost at {price:g} per rank-hour"] * priced, *_mark(outlook)])
    title = f"Training on {goal / 1e9:,.6g} billion tokens{outlook.by}"
    yield from listed(title, outlook.rows, columns, caption=caption)


def _days(hours: float) -> str:
    days, years = hours / 24, hours / 24 / 365.25
    if years >= 2:
        return f"{years:,.3g} years"
    return f"{days:,.3g} days" if days >= 2 else f"{hours:,.3g} h"


def _share(kind: str) -> Callable[[Row], float]:
    return lambda row: row.shares.get(kind, 0.0)


def _factor(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.factors.get(name)


def _bounds(value: Estimate, write: Callable[[float], str]) -> Written | None:
    if value.low is None or value.high is None:
        return None
    return Written(value.low, f"{write(value.low)} to {write(value.high)}")


def _ranks(row: Row) -> Written:
    return Written(row.ranks, f"{row.ranks:,}{'*' * row.unchecked}")


def _mark(outlook: Outlook) -> set[str]:
    ranks = {row.prediction.checked_ranks for row in outlook.rows if row.unchecked}
    return {f"* {messages.unchecked(each)}" for each in ranks}


def _notes(outlook: Outlook) -> Iterator[str]:
    labels: dict[str, list[str]] = {}
    for row in outlook.rows:
        for note in row.prediction.notes:
            labels.setdefault(note, []).append(row.label)
    for which, notes in grouped(labels, lambda note: tuple(labels[note])).items():
        cases = "" if len(which) == len(outlook.rows) else f"{_some(which)}: "
        yield from (f"{cases}{note}" for note in joined(notes))


def _some(labels: Sequence[str]) -> str:
    more = len(labels) - _NAMED
    return ", ".join(labels[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def write_page(outlook: Outlook, folder: Path, goal: float | None, price: float | None) -> Path:
    """Write the outlook as a page beside the folder of its suite's runs; returns the file."""
    figures = _figures(outlook)
    facts = [("Predicted from", outlook.origin), ("Machine", outlook.machine)]
    facts += [("Network", outlook.network)] if outlook.network else []
    head = Head(
        of="prediction",
        title=outlook.title,
        facts=facts,
        source="from one step of every rank, as the profile's parts and the network's prices make it. "
        "Definitions: docs/prediction.md.",
    )
    sections = _sections(outlook, vectors(figures), goal, price)
    labels = {row.case: row.label for row in outlook.rows}
    folder.parent.mkdir(parents=True, exist_ok=True)
    return write_changed(prediction_file(folder, ".html"), render(head, sections, labels))


def _sections(
    outlook: Outlook, drawn: Mapping[str, Vector], goal: float | None, price: float | None
) -> list[Section]:
    fan = Picture(
        "fan",
        "Step by size" if _by_size(outlook) else "Step by case",
        "The predicted step of every case, where so many ranks were checked with the interval of 90% of "
        "launches, and measured launches.",
        drawn["fan"],
        tuple(listings(_steps(outlook), "steps")),
    )
    timeline = Picture(
        "timeline",
        "One step of some ranks",
        "One row per rank, time to the right: the first and last rank of each class of equal ranks.",
        drawn["timeline"],
    )
    factors = listings(_factors(outlook) if outlook.base else (), "efficiency")
    training = listings(() if goal is None else _training(outlook, goal, price), "training")
    notes, firsts = tuple(_notes(outlook)), tuple(_firsts(outlook))
    product = "Each factor is the share of time that is not lost to its cause."
    sections = (
        Section("findings", "In short", "", [_tiles(outlook), Words("", firsts)]),
        Section("steps", "Predicted steps", "How long a step takes, and where its time goes.", [fan]),
        Section("efficiency", "Efficiency by size", product, factors),
        Section("timeline", "Timeline", "One step, drawn at random.", [timeline]),
        Section("training", "Time to train", "", training),
        Section("trust", "Accuracy", "", [Words("", outlook.trust), *[Words("Notes", notes)] * bool(notes)]),
    )
    return [section for section in sections if section.blocks]


def _tiles(outlook: Outlook) -> Tiles:
    """Return the largest case in large figures."""
    row = max(outlook.rows, key=lambda each: each.ranks)
    step_s, unchecked = row.step_s, "; ".join(_mark(outlook))
    value, unit = text.amount(step_s.value, 3)
    bounds = _bounds(step_s, text.duration_3)
    note = bounds.text if bounds else "no interval"
    items = [Tile(name=f"Step of {row.label}", value=value, unit=unit, note=note)]
    if row.efficiency:
        share = row.efficiency.value
        bounds = _bounds(row.efficiency, text.percent_0)
        note = "; ".join([*([bounds.text] if bounds else []), f"{row.base} is 100%"])
        items.append(Tile(name="Efficiency", value=f"{share:.0%}", note=note, band=band(share)))
    checked = f"{row.prediction.checked_ranks:,}"
    items.append(Tile(name="Checked up to", value=checked, unit="ranks", note=unchecked))
    return Tiles(items=tuple(items))


def _firsts(outlook: Outlook) -> Iterator[str]:
    """Yield what hurts first, cases of which it is the same together, and what grows most with the ranks."""
    for kind, rows in grouped(outlook.rows, lambda row: row.prediction.largest_loss).items():
        labels = _some([row.label for row in rows])
        if not kind:
            yield f"No bottleneck{outlook.by}: {labels}."
            continue
        shares = [row.shares[kind] for row in rows]
        between = " to ".join(dict.fromkeys(text.percent_0(share) for share in (min(shares), max(shares))))
        yield f"First bottleneck{outlook.by} ({labels}): {WORDS[kind]}, {between} of the step."
    least, most = (pick(outlook.rows, key=lambda row: row.ranks) for pick in (min, max))
    grown = {kind: _share(kind)(most) - _share(kind)(least) for kind in WORDS if kind != "compute"}
    kind = max(grown, key=lambda each: grown[each])
    if most.ranks > least.ranks and grown[kind] > _GROWS:
        yield (
            f"Fastest growing{outlook.by} from {least.label} to {most.label}: {WORDS[kind]}, from "
            f"{_share(kind)(least):.0%} to {_share(kind)(most):.0%} of the step."
        )


def _figures(outlook: Outlook) -> dict[str, str]:
    """Return the figures as SVG by name."""
    from pscale.report import drawing
    from pscale.report.drawing import draw_steps, ranks_of

    with drawing.styled():
        shown = max(outlook.rows, key=lambda row: (row.prediction.case.plan.pp, row.ranks))
        timeline = shown.prediction.timeline
        title = f"{shown.label}, {len(ranks_of(timeline))} of {shown.ranks:,} ranks"
        drawn = {"fan": _fan(outlook), "timeline": draw_steps([timeline], [title], "")}
        return {name: drawing.place(figure).inline() for name, figure in drawn.items()}


def _by_size(outlook: Outlook) -> bool:
    ranks = {row.ranks for row in outlook.rows}
    return len(ranks) == len(outlook.rows) > 1


def _fan(outlook: Outlook) -> Figure:
    """Draw the steps with their intervals over the ranks, or side by side where sizes do not differ."""
    from pscale.report import drawing

    figure = drawing.canvas(9.2, 3.2, "")
    axes = figure.subplots()
    ranks = [row.ranks for row in outlook.rows]
    by_size = _by_size(outlook)
    places = ranks if by_size else list(range(len(ranks)))
    order = sorted(range(len(ranks)), key=lambda each: places[each])
    across = [places[each] for each in order]
    blue, no = KINDS["compute"], float("nan")
    steps = [outlook.rows[each].step_s for each in order]
    values = [step.value for step in steps]
    lows, highs = ([getattr(step, end) or no for step in steps] for end in ("low", "high"))
    if by_size:
        axes.plot(across, values, color=blue, linewidth=1.4, marker="o", markersize=4)
        axes.fill_between(across, lows, highs, color=blue, alpha=_BAND, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(across, [f"{each:,}" for each in across])
        axes.set_xlabel("ranks")
        axes.set_ylim(bottom=0)
    else:
        below = [value - low for value, low in zip(values, lows, strict=True)]
        above = [high - value for value, high in zip(values, highs, strict=True)]
        axes.errorbar(across, values, yerr=[below, above], fmt="o", color=blue, markersize=4, capsize=3)
        labels = [wrapped(outlook.rows[each].label, _LABEL, most=2) for each in order]
        axes.set_xticks(across, labels, rotation=0 if len(labels) <= _LEVEL else 90)
    for row, place in zip(outlook.rows, places, strict=True):
        measured = outlook.measured.get(row.case, ())
        axes.plot([place] * len(measured), measured, "x", color=INK, markersize=4)
    axes.set_ylabel("step")
    axes.yaxis.set_major_formatter(lambda value, _: text.duration_3(value))
    checked = not all(row.unchecked for row in outlook.rows)
    named = {"predicted, 90% of launches" if checked else "predicted": blue}
    drawing.below(figure, named | ({"measured launches (×)": INK} if outlook.measured else {}))
    return figure
