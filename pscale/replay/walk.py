"""One rank's walk through its own notes with another clock, on another network.

Where the rank depends on others the walk asks, and whoever leads it answers: the ranks of a job by exchanging
clocks (`worker.replay`), those of a recorded run by taking turns in one process (`replay.together`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from typing import NamedTuple

from pscale.replay.script import Action, Script

NEVER = float("-inf")


class Meet(NamedTuple):
    """Asks for the latest clock that any rank of the axis brings to its next call."""

    axis: int
    clock: float


class Post(NamedTuple):
    """Says when this rank's part of a started call can be there. The answer is asked for by `Take`."""

    request: int
    axis: int
    clock: float


class Send(NamedTuple):
    """Says when a message can be with its receiver."""

    axis: int
    partner: int
    clock: float


class Receive(NamedTuple):
    """Expects the next message of a partner. When it came is asked for by `Take`."""

    request: int
    axis: int
    partner: int


class Take(NamedTuple):
    """Asks when a started call was there."""

    request: int


Ask = Meet | Post | Send | Receive | Take
Walk = Generator[Ask, float, list[float]]


def walk(script: Script) -> Walk:
    """Walk through the events; returns the wait of each in ns.

    A rank has one link per axis, which sends one thing after another; it receives at any time. Messages are
    buffered: the sender has to wait for its link alone.
    """
    waited: list[float] = []
    late = 0.0  # by all waits so far
    link: defaultdict[int, float] = defaultdict(lambda: NEVER)  # by axis: when all before is sent
    gone: dict[int, float] = {}  # by request: when a message had left
    for at, action, axis, request, partner, sending, latency, gives, takes in script.events:
        now = until = at + late
        if action is Action.TAKE:
            until = gone.pop(request) if request in gone else (yield Take(request))
        elif action is Action.RECEIVE:
            yield Receive(request, axis, partner)
        else:
            sent = NEVER
            if gives:
                sent = link[axis] = max(now, link[axis]) + sending
            if action is Action.MEET:
                latest = yield Meet(axis, sent + latency)
                until = latest if takes else sent
            elif action is Action.POST:
                yield Post(request, axis, sent + latency)
            else:
                gone[request] = sent
                yield Send(axis, partner, sent + latency)
        waited.append(max(0.0, until - now))
        late += waited[-1]
    return waited
