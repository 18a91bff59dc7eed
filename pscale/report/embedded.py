"""What a page draws by itself: recorded steps, maps of ranks and steps, as packed JSON of bounded size."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run
from pscale.analysis.steps import by_waiting, cells, wait_maps
from pscale.analysis.timeline import Traced, launch_events, shown, since_start, stages, traced, typical_step
from pscale.analysis.what_if import launch_of
from pscale.errors import ResultsError
from pscale.report import text
from pscale.report.figure_style import CLIPPED, DELAY, KINDS, MAP, of_phases
from pscale.runs.events import BETWEEN_TWO, FROM_ROOT, TO_ROOT, VERBS, Kind

CODES = {  # what the numbers in the rows of a step mean, for those who have no Python
    "kinds": {kind.name: int(kind) for kind in Kind},
    "verbs": [verb.replace("_", "-") for verb in VERBS],
    "sides": {
        name: [VERBS.index(verb) for verb in verbs]
        for name, verbs in (("to", TO_ROOT), ("from", FROM_ROOT), ("pair", BETWEEN_TWO))
    },
}
MOST_EVENTS, MOST_CELLS = 60_000, 200_000  # on a page; one step has at most a half of them
_MOST_STEPS, _MOST_MAPS = 24, 60
_LEVELS = 4000  # of a map, from nothing to its largest value
_NUMBERS = ("kind", "axis", "verb", "bytes", "request", "partner")
_TIMES = ("enter", "leave", "wait")
Json = dict[str, Any]
T = TypeVar("T")


def embedded(findings: Findings) -> str:
    """Return what the page needs to draw steps and maps, packed; empty where there is nothing of both."""
    run = findings.source
    order = by_waiting(findings.rows("cases"), findings.rows("phases"))
    several = [case for case in order if findings.case(case).ranks > 1]
    steps = sorted(_steps(run), key=lambda step: order.index(step["case"]) if step["case"] in order else 0)
    maps = list(_maps(run, several))
    if not steps and not maps:
        return ""
    phases = of_phases(time.phase for time in findings.rows("phases"))
    document = {
        **CODES,
        "colours": {**KINDS, "injected": DELAY, "phases": phases, "map": MAP},
        "clipped": CLIPPED,
        "steps": steps,
        "maps": maps,
        "cases": len(order),
        "several": len(several),
    }
    packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)
    return base64.b64encode(packed).decode()


def _steps(run: Run) -> Iterator[Json]:
    steps = recorded_steps(run, MOST_EVENTS // 2)
    for step in _within(steps, MOST_EVENTS, _MOST_STEPS, lambda step: len(step[1])):
        yield _step(run, *step)


def _within(found: Iterable[T], most: int, count: int, size: Callable[[T], int]) -> Iterator[T]:
    """Yield the first of these that have room, `count` at most."""
    room = most
    for place, each in enumerate(found):
        room -= size(each)
        if room < 0 or place == count:
            return
        yield each


def recorded_steps(run: Run, most_events: int) -> Iterator[tuple[Traced, pd.DataFrame, int]]:
    """Yield a launch, the events of its step of typical length and that length, both in ns since it began.

    These are the first traced launch of each case, those that the report draws first. A step has at most
    `most_events` events: of more ranks than that has room for, some, evenly spread.
    """
    launches = traced(run)
    first = {launch.case: launch for launch in reversed(launches)}
    drawn = {launch.case: launch for launch in shown(run, launches)}
    others = sorted(first.values(), key=lambda launch: -launch.ranks)
    for launch in {**drawn, **{launch.case: launch for launch in others}}.values():
        with suppress(ResultsError):  # a file that is cut; `pscale trace` says so
            step = typical_step(run, launch)
            events, length_ns = since_start(launch_events(run, launch, steps=range(step, step + 1)))
            kept = events[events["rank"] % -(-len(events) // most_events) == 0]
            times_s = {f"{name}_s": kept[name] * 1e-9 for name in _TIMES}
            yield launch, kept.assign(**times_s).sort_values("rank", kind="stable"), length_ns


def _step(run: Run, launch: Traced, events: pd.DataFrame, length_ns: int) -> Json:
    """Return a step with its events rank after rank; ends are differences, as these are short.

    It can be simulated if it has all ranks, and every call that is completed in it was started in it.
    """
    by_rank = [rows for _, rows in events.groupby("rank")]
    labels = [rows["label"].tolist() for rows in by_rank]
    names = list(dict.fromkeys(chain.from_iterable(labels)))
    places = {name: place for place, name in enumerate(names)}
    recorded = launch_of(events)
    return {
        "case": launch.case,
        "repeat": launch.repeat,
        "step": int(events["step"].iloc[0]),
        "ranks": [int(rows["rank"].iloc[0]) for rows in by_rank],
        "stages": stages(run, launch.case),
        "simulated": len(by_rank) == launch.ranks and all(map(_closed, by_rank)),
        "of": launch.ranks,
        "ns": length_ns,
        "axes": recorded.axes,
        "groups": [[position.group for position in of_rank] for of_rank in recorded.positions],
        "sizes": [[position.size for position in of_rank] for of_rank in recorded.positions],
        "names": [text.clean(name) for name in names],
        "count": [len(of_rank) for of_rank in labels],
        "name": [places[name] for name in chain.from_iterable(labels)],
        **{code: np.concatenate([of_rank[code] for of_rank in recorded.rows]).tolist() for code in _NUMBERS},
        "leave": np.concatenate([np.diff(rows["leave"], prepend=0) for rows in by_rank]).tolist(),
        "length": (events["leave"] - events["enter"]).tolist(),
        "wait": events["wait"].tolist(),
    }


def _closed(rows: pd.DataFrame) -> bool:
    """Tell whether every call that a rank completes was started before, in these rows."""
    completed, posted = (set(rows.loc[rows["kind"] == kind, "request"]) for kind in ("completed", "posted"))
    return completed <= posted


def _maps(run: Run, cases: Sequence[str]) -> Iterator[Json]:
    return map(_map, _within(wait_maps(run, cases), MOST_CELLS, _MOST_MAPS, lambda each: 2 * len(each)))


def _map(each: pd.DataFrame) -> Json:
    case, repeat, *_ = each.iloc[0]
    waits = cells(each)
    wait = "wait_or_transfer" if each["wait_or_transfer_s"].any() else "wait"
    return {
        "case": case,
        "repeat": int(repeat),
        "shape": waits.shape,
        "kinds": {wait: _levels(waits), "compute": _levels(cells(each, "compute_s"))},
    }


def _levels(values: NDArray[np.float64]) -> Json:
    """Return values as whole multiples of a unit in seconds."""
    unit = float(values.max()) / _LEVELS or 1.0
    return {"unit": unit, "values": np.rint(values / unit).astype(int).ravel().tolist()}
