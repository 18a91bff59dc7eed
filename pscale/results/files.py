"""Small JSON documents beside the tables, written so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any) -> None:
    """Write `document` to a temporary name and rename it; not-a-number becomes null."""
    temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(document, indent=1, allow_nan=True), encoding="utf-8")
    os.replace(temporary, path)  # noqa: PTH105 - atomic, also over an older document
