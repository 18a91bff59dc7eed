"""Tables of mistakes in suites, and of what the message about each has to say."""

from __future__ import annotations

from typing import Any

import pytest


def mistakes(table: str) -> list[Any]:
    """Read changes of a suite, `old => new` with \\n for a new line, and the parts of each message.

    They are in the indented lines below the change, divided by an ellipsis.
    """
    found: list[tuple[str, str, list[str]]] = []
    for line in table.strip("\n").splitlines():
        if line.startswith("    "):
            found[-1][2].extend(part.strip() for part in line.split("…"))
        elif not line.startswith("#"):
            old, _, new = line.replace("\\n", "\n").partition(" =>")
            found.append((old, new.removeprefix(" "), []))
    return [pytest.param(*row, id=f"{row[0]} => {row[1]}") for row in found]
