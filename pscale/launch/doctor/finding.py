"""One result of the examination."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """A fact, whether it is good, and what to do if it is not. `fail`: pscale cannot work."""

    level: Level
    topic: str
    text: str
    advice: str = ""


ok = partial(Finding, "ok")  # as it should be
warn = partial(Finding, "warn")  # spoils measurements
fail = partial(Finding, "fail")  # keeps pscale from working
