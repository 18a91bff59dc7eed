"""The elements of a page, read as strictly as HTML goes: every tag that is opened is closed in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "input", "hr", "img"}


@dataclass
class Element:
    """An element with its attributes, and the text and elements in it, in order."""

    tag: str
    attributes: dict[str, str]
    parts: list[str | Element] = field(default_factory=list)

    @property
    def children(self) -> list[Element]:
        """Its elements."""
        return [part for part in self.parts if isinstance(part, Element)]

    def all(self, tag: str) -> list[Element]:
        """Return all elements of that tag below this one, in order."""
        found = []
        for child in self.children:
            found += [child] if child.tag == tag else []
            found += child.all(tag)
        return found

    @property
    def words(self) -> str:
        """All text below, with single spaces."""
        texts = [part if isinstance(part, str) else part._apart for part in self.parts]
        return " ".join("".join(texts).split())

    @property
    def _apart(self) -> str:
        return self.words if self.attributes.get("class") == "value" else f" {self.words} "


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        assert len(element.attributes) == len(attrs), f"<{tag}> states an attribute twice"
        self.open[-1].parts.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> ends <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def read(page: str) -> Element:
    """Return the root of a page; AssertionError where its tags do not nest."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert [element.tag for element in reader.open] == ["page"]
    return reader.open[0]
