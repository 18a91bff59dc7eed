"""What a page is made of, before the templates write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pscale.report.grid import Tone
from pscale.report.page.vector import Vector

Band = Literal["", "high", "good", "fair", "low"]  # of an efficiency


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A file inside the page; without `address` it was too large for that, and the page says where it is."""

    name: str
    size: int
    address: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table: what it says, where it stands in order, and a second, smaller line."""

    text: str
    order: float | None = None
    band: Band = ""
    note: str = ""
    bar: float | None = None  # drawn under the number, as a share of the cell
    number: str = ""  # before the text, as of a chapter
    indent: int = 0


Line = tuple[Tone, tuple[Cell, ...]]  # of a table


@dataclass(frozen=True, kw_only=True)
class Head:
    """The heading of a column."""

    text: str
    right: bool = True
    words: bool = False  # may take several lines


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table; of more rows than `listed` a page says that they are left out."""

    kind: ClassVar = "sheet"
    name: str
    title: str
    heads: tuple[Head, ...]
    rows: tuple[Line, ...]
    caption: str = ""
    left_out: str = ""
    files: tuple[Attachment, ...] = ()
    folded: bool = False
    ordered: bool = True  # rows may be put in another order; not those of a tree

    @property
    def long(self) -> bool:
        """Whether a box to filter rows is worth its place."""
        return self.ordered and len(self.rows) > 8


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with the table of what it shows."""

    kind: ClassVar = "picture"
    name: str
    title: str
    says: str  # what it shows, for those who do not see it
    vector: Vector
    data: tuple[Sheet, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Words:
    """A list of sentences, or of quotations if they are not for reading in one line."""

    kind: ClassVar = "words"
    title: str
    lines: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with what they are."""

    kind: ClassVar = "facts"
    title: str
    items: tuple[tuple[str, str], ...]
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Quote:
    """Text as it is in a file."""

    kind: ClassVar = "quote"
    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Headlines:
    """Topics and sentences in large letters; `more` of them are folded."""

    kind: ClassVar = "headlines"
    warning: str
    lines: tuple[tuple[str, str], ...]
    more: tuple[tuple[str, str], ...] = ()
    untold: int = 0  # that there is no room for
    marks: tuple[tuple[str, Tone], ...] = ()  # of failures and doubts, told of elsewhere


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure in large letters, with its name and what is to be known of it."""

    name: str
    value: str
    unit: str = ""
    note: str = ""
    band: Band = ""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Figures side by side."""

    kind: ClassVar = "tiles"
    items: tuple[Tile, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a whole."""

    kind: str
    name: str
    share: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A bar whose parts add up to one."""

    kind: ClassVar = "stack"
    title: str
    says: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Key:
    """What the colours of efficiencies mean."""

    kind: ClassVar = "key"


Block = Sheet | Picture | Words | Facts | Quote | Headlines | Tiles | Stack | Key


@dataclass(frozen=True, kw_only=True)
class Section:
    """A chapter of the page."""

    name: str
    title: str
    lead: str
    blocks: Sequence[Block]
