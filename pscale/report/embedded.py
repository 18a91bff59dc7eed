"""What a page draws by itself: recorded steps, maps of ranks and steps, as packed JSON of bounded size."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.findings import Findings
from pscale.analysis.frames import Run
from pscale.analysis.recorded_step import CODES, RecordedStep, recorded_steps
from pscale.analysis.steps import by_waiting, cells, wait_maps
from pscale.report import text
from pscale.report.figure_style import CLIPPED, DELAY, KINDS, MAP, of_phases

MOST_EVENTS, MOST_CELLS = 60_000, 200_000  # on a page; one step has at most a half of them
_MOST_STEPS, _MOST_MAPS = 24, 60
_LEVELS = 4000  # of a map, from nothing to its largest value
_NUMBERS = ("kind", "axis", "verb", "bytes", "request", "partner")
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
    found = recorded_steps(run, MOST_EVENTS // 2)
    return map(_step, _within(found, MOST_EVENTS, _MOST_STEPS, lambda each: sum(map(len, each.labels))))


def _within(found: Iterable[T], most: int, count: int, size: Callable[[T], int]) -> Iterator[T]:
    """Yield the first of these that have room, `count` at most."""
    room = most
    for place, each in enumerate(found):
        room -= size(each)
        if room < 0 or place == count:
            return
        yield each


def _step(each: RecordedStep) -> Json:
    """Return a step with its events rank after rank; ends are differences, as these are short."""
    names = list(dict.fromkeys(chain.from_iterable(each.labels)))
    places = {name: place for place, name in enumerate(names)}
    rows, positions = each.recorded.rows, each.recorded.positions
    return {
        **{name: getattr(each, name) for name in ("case", "repeat", "step", "ranks", "stages", "simulated")},
        "of": each.of_ranks,
        "ns": each.length_ns,
        "axes": each.recorded.axes,
        "groups": [[position.group for position in of_rank] for of_rank in positions],
        "sizes": [[position.size for position in of_rank] for of_rank in positions],
        "names": [text.clean(name) for name in names],
        "count": [len(labels) for labels in each.labels],
        "name": [places[name] for labels in each.labels for name in labels],
        **{code: np.concatenate([of_rank[code] for of_rank in rows]).tolist() for code in _NUMBERS},
        "leave": np.concatenate([np.diff(of_rank["leave"], prepend=0) for of_rank in rows]).tolist(),
        "length": np.concatenate([of_rank["leave"] - of_rank["enter"] for of_rank in rows]).tolist(),
        "wait": np.concatenate([of_rank["wait"] for of_rank in rows]).tolist(),
    }


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
