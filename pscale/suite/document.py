"""A YAML file as plain values, and the line of each.

YAML 1.2 as editors read it: `yes`, `on`, `010` and `1:30` are texts, `1e-3` is a number. No tags, no aliases,
no duplicate keys: a suite is data from somebody else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pscale.config.workload import with_text
from pscale.errors import SuiteError
from pscale.runs.atomic_files import open_file
from pscale.suite.fields import fields_at

Path_ = tuple[str | int, ...]
LARGEST_BYTES = 1 << 19
MOST_VALUES = 20_000  # with names of fields and groups: PyYAML takes 40 µs of each
DEEPEST = 50  # groups and lists within each other
LONGEST_TEXT = 10_000  # characters of a text or a name, so that no pattern that sees it takes long
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # no path has the first, no file the others
_LONGEST_NUMBER = 308  # characters: a whole number of so many digits is still finite as a float


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a value was written: a line of a file, or an option of the command line."""

    file: Path | None = None
    line: int | None = None
    option: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """Values as written, and the place of each by its path."""

    values: dict[str, Any]
    places: Mapping[Path_, Place]
    text: str = ""

    def over(self, below: Document, whole: Collection[Path_] = ()) -> Document:
        """Return this document over another, group by group except at the paths in `whole`."""
        values = merged(below.values, self.values, whole)
        return Document(values=values, places={**below.places, **self.places}, text=self.text)


_TAG = "tag:yaml.org,2002:"
_READ: dict[str, Callable[[str], Any]] = {
    "null": lambda _: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": int,
    "float": lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower())),
    "str": str,
}


class _Loader(yaml.SafeLoader):
    """Composes nodes with the scalars of YAML 1.2 and without aliases, which can grow without bound."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's interface
    _values = _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._values, self._depth = self._values + 1, self._depth + 1
        if problem := self._refusal(self.peek_event()):  # type: ignore[no-untyped-call]
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refusal(self, event: yaml.Event) -> str:
        """Say why the value that begins here is not read; empty if it is."""
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST_TEXT:
            return f"a text of {len(event.value)} characters; at most {LONGEST_TEXT} are allowed"
        if isinstance(event, yaml.ScalarEvent) and (found := _NO_TEXT.search(event.value)):
            return f"character {ord(found[0]):#x} is not allowed"
        if isinstance(event, yaml.AliasEvent):
            return "aliases are not allowed; repeat the value"
        if self._depth > DEEPEST:
            return f"nested too deeply; at most {DEEPEST} levels are allowed"
        return f"more than {MOST_VALUES} values" if self._values > MOST_VALUES else ""


for _kind, _pattern, _first in (
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"^(?:{_pattern})$"), _first)


def merged(
    below: dict[str, Any], above: dict[str, Any], whole: Collection[Path_], path: Path_ = ()
) -> dict[str, Any]:
    """Put `above` over `below`, group by group except at the paths in `whole`.

    Another kind of model or data starts afresh, but for the published model that it is like.
    """
    is_other = "kind" in above and above["kind"] != below.get("kind")
    if is_other and not ("like" in below and above["kind"] in fields_at(("model", "like"))):
        return above
    values = {**below, **above}
    for name in below.keys() & above.keys():
        place = (*path, name)
        if isinstance(below[name], dict) and isinstance(above[name], dict) and place not in whole:
            values[name] = merged(below[name], above[name], whole, place)
    return values


def read_document(path: Path) -> Document:
    """Read a suite file. Raises SuiteError with the line for anything but a mapping of plain values."""
    text = _read_text(path)
    values, places = _parse(text, path)
    if not isinstance(values, dict):
        found = "nothing" if values is None else "a list" if isinstance(values, list) else "a single value"
        raise SuiteError(f"expected fields such as 'name: weak', found {found}", file=path, line=1)
    return Document(values=values, places=places, text=text)


def document_of(text: str, places: Mapping[Path_, Place]) -> Document:
    """Return the document of a text that pscale wrote; `places` are the options that its values are from."""
    values, _ = _parse(text, None)
    return Document(values=values, places=places, text=text)


def read_value(text: str, option: str) -> Any:
    """Read the value of an override, such as `256` or `[1, 2]`."""
    try:
        return _parse(text, None)[0]
    except SuiteError as error:
        raise SuiteError(f"{option}: {error}") from None


def _read_text(path: Path) -> str:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not a file" if path.exists() else "does not exist"
        raise SuiteError(f"{what}; expected a YAML file", file=path)
    try:
        with open_file(path) as file:
            raw = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_BYTES + 1))
    except OSError as error:
        raise SuiteError(f"cannot be read: {error.strerror}", file=path) from None
    if len(raw) > LARGEST_BYTES:
        message = f"has more than {LARGEST_BYTES >> 10} KiB, too many for a suite"
        raise SuiteError(message, file=path, line=1)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SuiteError(f"byte {raw[error.start]:#x} is not UTF-8 text", file=path, line=line) from None


def _parse(text: str, path: Path | None) -> tuple[Any, dict[Path_, Place]]:
    try:
        node = _Loader(text).get_single_node()
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        message = f"character {ord(text[error.position]):#x} is not allowed in YAML"
        raise SuiteError(message, file=path, line=line) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(part for part in (error.context, error.problem) if part)
        raise SuiteError(f"not YAML: {message}", file=path, line=mark.line + 1 if mark else None) from None
    except RecursionError:
        raise SuiteError("nested too deeply", file=path) from None
    reader = _Values(path)
    return (None if node is None else reader.value(node, ())), reader.places


class _Values:
    """Turns nodes into values, and notes the line of each."""

    def __init__(self, file: Path | None):
        self.file = file
        self.places: dict[Path_, Place] = {}

    def value(self, node: yaml.Node, path: Path_) -> Any:
        self.places.setdefault(path, Place(file=self.file, line=node.start_mark.line + 1))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        raise self._error(f"the tag {node.tag} is not allowed", node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error("a field name must be text", key, path)
            name, member = str(key.value), (*path, str(key.value))
            if name in values:
                first = self.places[member].line
                raise self._error(f"is given twice, first in line {first}", key, member)
            self.places[member] = Place(file=self.file, line=key.start_mark.line + 1)
            values[name] = self.value(item, member)
        return values

    def _scalar(self, node: yaml.ScalarNode, path: Path_) -> Any:
        text, kind = str(node.value), node.tag.removeprefix(_TAG)
        if kind in ("int", "float") and len(text) > _LONGEST_NUMBER:
            raise self._error(f"a number of {len(text)} characters", node, path)
        if kind not in _READ:
            raise self._error(f"the tag {node.tag} is not allowed", node, path)
        try:
            value = _READ[kind](text)
            return with_text(value, text) if kind in ("int", "float") else value
        except (ValueError, KeyError):  # an explicit tag that its text does not fit
            raise self._error(f"'{text}' is not of the kind {node.tag}", node, path) from None

    def _error(self, message: str, node: yaml.Node, path: Path_) -> SuiteError:
        return SuiteError(message, file=self.file, line=node.start_mark.line + 1, field=dotted(path))


def dotted(path: Path_) -> str:
    """Write a path as people do: `train.steps`, `sweep.ranks[1]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
