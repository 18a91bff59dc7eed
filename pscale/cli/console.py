"""Consoles of rich: tables, progress and colours where there is a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

from pscale.errors import clean


class Trimmed(Console):
    """A console that strips the spaces at the ends of lines where it is no terminal.

    Control characters are its own alone: those in texts become spaces, whoever wrote them.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text == "\n" or segment.text.isprintable():
                yield segment
            else:
                lines = map(clean, segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as text:
            super().print(*objects, **options)
        self.file.write(re.sub(" +$", "", text.get(), flags=re.MULTILINE))


def new_console(*, stderr: bool = False, highlight: bool = True) -> Console:
    """Return a console; with `NO_COLOR` it is never a terminal: rich itself would keep bold and dim."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Trimmed(stderr=stderr, highlight=highlight, force_terminal=False if plain else None)


@contextmanager
def changing(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that shows something in place of the last, or below it where there is no terminal."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=1) as live:
            yield live.update
    else:
        yield console.print


def say(console: Console, text: str) -> None:
    """Print a text as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
