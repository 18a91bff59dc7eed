"""Mutations of YAML documents that know the grammar of suites, and of the bytes of any file."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import yaml

Path_ = tuple[Any, ...]

WORDS = """
~ null true yes x ranks rest auto none =ranks =1/0 4MiB 4XiB 1h30m 1e999s / ../../etc/passwd /dev/zero /*/*/*
~nobody/x %s%n {0.__class__} `id` [red]x[/red] [/] <script> (a+)+$ (?P<x a{99999} {n {here}/../x ' \\ [!]
=ranks.__class__ =[].sort() =__import__('os') =2**99999
"""
TEXTS = (
    *("", " ", "\0", "a\0b", "\t", "a\nb", "\x7f", "\ud800", "\u202e\u2066", "\x1b]0;x\x07", "é" * 100),
    *("=ranks +", "='a' * 10**9", "=cmd|' /C'!A0", "$(touch pwned)", "=" + "(" * 99, "=" + "1+" * 300 + "1"),
    *("9" * 70, "9" * 5000, "a" * 9999, *WORDS.split()),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 64, 1000, 10**6, 10**9, 10**10, 2**63, 10**399, -(10**18)),
    *(0.0, 0.5, -0.5, 1e-300, 1e300, 1e308, float("inf"), float("-inf"), float("nan")),
)
SCALARS = (None, True, False, *NUMBERS, *TEXTS)


def value(draw: random.Random, depth: int = 0) -> Any:
    """Draw a value of any kind."""
    kind = draw.random()
    if kind < 0.75 or depth > 3:
        return draw.choice(SCALARS)
    if kind < 0.88:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {str(draw.choice(TEXTS))[:50]: value(draw, depth + 1) for _ in range(draw.randrange(4))}


def places(document: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every value, the document itself first."""
    yield path
    if isinstance(document, dict | list):
        for name, inner in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(inner, (*path, name))


def at(document: Any, path: Path_) -> Any:
    """Return the value at a path."""
    for part in path:
        document = document[part]
    return document


def mutated(document: dict[str, Any], fields: list[str], draw: random.Random) -> Any:
    """Return a copy with one to three changes; `fields` are dotted names that may be set."""
    found: Any = copy.deepcopy(document)
    for _ in range(draw.randint(1, 3)):
        if not isinstance(found, dict):
            break
        found = _once(found, fields, draw)
    return found


def _once(document: dict[str, Any], fields: list[str], draw: random.Random) -> Any:
    everywhere = list(places(document))
    path = draw.choice(everywhere)
    where = draw.randrange(6)
    if where == 0 or not path:  # a field of the grammar, at its place or in the sweep
        name = draw.choice(fields)
        if draw.random() < 0.3:
            swept = document.setdefault("sweep", {})
            if isinstance(swept, dict):
                swept[name] = draw.choice([value(draw), [value(draw), value(draw)]])
            return document
        return _set(document, tuple(name.split(".")), value(draw))
    holder, last = at(document, path[:-1]), path[-1]
    if where in (1, 2):  # another value in its place
        holder[last] = value(draw)
    elif where == 3:  # nothing
        del holder[last]
    elif where == 4 and isinstance(holder, dict):  # another name
        holder[draw.choice([*TEXTS, "kind", str(last) + "s", str(last)[1:], str(last).upper()])] = holder.pop(
            last
        )
    else:  # what is elsewhere in the document
        holder[last] = copy.deepcopy(at(document, draw.choice(everywhere)))
    return document


def _set(document: dict[str, Any], path: Path_, what: Any) -> dict[str, Any]:
    holder: Any = document
    for part in path[:-1]:
        holder = holder.setdefault(part, {})
        if not isinstance(holder, dict):
            return document
    holder[path[-1]] = what
    return document


def as_yaml(document: Any, draw: random.Random) -> str:
    """Write a document in one of the styles of YAML."""
    return yaml.safe_dump(
        document, allow_unicode=True, sort_keys=False, default_flow_style=draw.choice([True, False, None])
    )


_PIECES = (
    *(b"\t", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc2\x85", b"\xe2\x80\xa8", b"\xed\xa0\x80"),
    *(b"---\n", b"...\n", b"|\n", b">-\n", b"%YAML 9.9\n", b"!!python/object/apply:os.system ['id']"),
    *(b"!!binary x", b"!x ", b"&a ", b"*a", b"<<: ", b"? ", b"- ", b": ", b"1" * 300),
    *(bytes([each]) for each in b"{}[]'\"#@`="),
    b"\\x",
)


def mutated_bytes(raw: bytes, draw: random.Random) -> bytes:
    """Return bytes with a few changed, lost, repeated or added."""
    found = bytearray(raw)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(found) + 1)
        stop = min(len(found), start + draw.choice([0, 1, 1, 4, 40]))
        match draw.randrange(5):
            case 0:
                found[start:stop] = draw.choice(_PIECES)
            case 1:
                found[start:stop] = b""
            case 2:
                found[start:stop] = draw.randbytes(stop - start)
            case 3:
                found[start:start] = found[start:stop] * 2
            case 4:
                del found[start:]
    return bytes(found)
