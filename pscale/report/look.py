"""What figures are made for: a screen, or one column of a journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Look:
    """Sizes and fonts; `width` is in inches, None where every figure has the width that suits it.

    A figure without title is described where it is printed.
    """

    width: float | None = None
    scale: float = 1.0  # of texts, lines and bars
    family: str = "DejaVu Sans"  # comes with matplotlib: the same widths on every machine
    titled: bool = True


KINDS = {  # colours of the kinds of time, after Okabe and Ito
    "compute": "#0072b2",
    "transfer": "#e69f00",
    "wait": "#b4478a",
    "copy": "#009e73",
    "offload": "#8dd3c7",
    "together": "#cd7345",  # between wait and transfer
}
ON_PALE = "on-pale"  # the group of a dark text on a pale colour, which is pale on dark paper too
PAPER, TITLE = "paper", "title"  # groups of what is behind a figure and above it; a page has its own
SCREEN = Look()
_COLUMN = 3.5  # inches: IEEE, ACM and Nature have 3.3 to 3.5
LOOKS = {
    "screen": SCREEN,
    "publication": Look(width=_COLUMN, scale=7 / 9, titled=False),
    "publication-serif": Look(width=_COLUMN, scale=7.8 / 9, family="STIXGeneral", titled=False),  # like Times
}
_WIDE = 9.2  # inches: of an ordinary figure
_current: ContextVar[Look] = ContextVar("look", default=SCREEN)


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Make figures inside the block look so."""
    token = _current.set(look)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Look:
    """Return how figures are to look."""
    return _current.get()


def sized(size: float) -> float:
    """Return the size of a text or line that has `size` points on a screen."""
    return size * current().scale


def narrow() -> bool:
    """Tell whether a figure has no room for two panels side by side."""
    return current().width is not None


def room(count: int) -> int:
    """Return how many of `count` characters, or legends side by side, there is room for."""
    width = current().width
    return count if width is None else max(1, round(count * width / (_WIDE * current().scale)))
