"""Where commands print what is more than lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live


class Trimmed(Console):
    """A console that ends no line with spaces, with which tables are filled up, where it is no terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as text:
            super().print(*objects, **options)
        self.file.write(re.sub(" +$", "", text.get(), flags=re.MULTILINE))


def new_console(*, stderr: bool = False, highlight: bool = True) -> Console:
    """Return a console; with `NO_COLOR` it takes no terminal for one: rich itself would keep bold and dim."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Trimmed(stderr=stderr, highlight=highlight, force_terminal=False if plain else None)


@contextmanager
def changing(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Give what shows something in place of the last thing, or below it if this is no terminal."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=1) as live:
            yield live.update
    else:
        yield console.print
