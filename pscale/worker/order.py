"""What the launcher asks of a job, as read from `case.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pscale.config import Case, from_dict


@dataclass(frozen=True, kw_only=True)
class Order:
    """A case to run once, and where its results go."""

    case: Case
    task: str  # "measure" or "verify"
    repeat: int
    folder: Path  # of this launch
    data: Path  # of the run's tables
    launched_unix_s: float

    @classmethod
    def read(cls, folder: Path) -> Order:
        """Read the order that the launcher left in `folder`."""
        document = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        return cls(
            case=from_dict(Case, document["case"]),
            task=document["task"],
            repeat=document["repeat"],
            folder=folder,
            data=Path(document["data"]),
            launched_unix_s=document["launched_unix_s"],
        )
