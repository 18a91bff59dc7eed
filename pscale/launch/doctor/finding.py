"""One thing found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fact, whether it is good, and what to do if it is not. `fail`: pscale cannot work."""

    topic: str
    level: Level
    text: str
    remedy: str = ""
