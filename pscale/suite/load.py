"""From a file to a suite: what it extends, what the command line overrides, what it may say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pscale.errors import SuiteError
from pscale.suite.document import Document, Path_, Place, dotted, read_document, read_value
from pscale.suite.fields import full_name
from pscale.suite.problems import found_by_pydantic, suite_error
from pscale.suite.schema import File
from pscale.suite.suite import Suite

_WHOLE = ("sweep", "exclude", "expect")  # an extending file replaces these, never adds to them


def load_suite(path: Path, overrides: Sequence[str] = ()) -> Suite:
    """Read a suite with all that it extends, and apply overrides such as `model.width=256`.

    Raises SuiteError that lists everything wrong, each with file, line, field and what would be right.
    """
    document = _with_bases(path, ())
    for override in overrides:
        document = _overridden(document, override)
    try:
        file = File.model_validate(document.values)
    except ValidationError as error:
        raise suite_error(found_by_pydantic(error, document.values), document.places) from None
    return Suite(
        name=file.name,
        title=file.title,
        scaling=file.scaling,
        given=document.text,
        resolved=file.model_dump(exclude={"extends"}),
        repeat=file.repeat,
        file=path,
        values=document.values,
        places=document.places,
    )


def _with_bases(path: Path, extending: tuple[Path, ...]) -> Document:
    """Read a file and, below it, the chain of files that it extends."""
    document = read_document(path)
    base = document.values.get("extends")
    if not isinstance(base, str) or not base:
        return document  # `File` says what is wrong with it
    chain = (*extending, path.resolve())
    found = path.parent / base
    place = document.places["extends",]
    if found.resolve() in chain:
        names = " -> ".join(file.name for file in (*chain, found))
        raise SuiteError(f"goes in a circle: {names}", file=path, line=place.line, field="extends")
    if not found.is_file():
        raise SuiteError(f"there is no file '{found}'", file=path, line=place.line, field="extends")
    below = _with_bases(found, chain)
    inherited = {name: value for name, value in below.values.items() if name not in ("name", "extends")}
    values = _merged(inherited, document.values, top=True)
    return Document(values=values, places={**below.places, **document.places}, text=document.text)


def _merged(below: dict[str, Any], above: dict[str, Any], *, top: bool = False) -> dict[str, Any]:
    """Put `above` over `below`, group by group; another kind of model or data starts afresh."""
    if "kind" in above and above["kind"] != below.get("kind"):
        return above
    values = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict) and not (top and name in _WHOLE):
            values[name] = _merged(below[name], above[name])
    return values


def _overridden(document: Document, override: str) -> Document:
    name, equals, text = override.partition("=")
    option = f"--set {override}"
    path = _path(name.strip())
    if not equals or not all(path):
        raise SuiteError(f"{option}: expected field=value, as in --set model.width=256")
    if path[0] in ("name", "extends"):
        raise SuiteError(f"{option}: '{path[0]}' cannot be overridden")
    for swept in _swept(document.values.get("sweep")):
        if full_name(str(swept[-1])) == ".".join(path):
            raise SuiteError(f"{option}: '{dotted(swept)}' sets it too and would win; override that")
    value = read_value(text, option)
    for part in reversed(path):
        value = {part: value}
    written: dict[Path_, Place] = {path[:length]: Place(option=option) for length in range(1, len(path) + 1)}
    kept = {place: where for place, where in document.places.items() if place[: len(path)] != path}
    places = {**written, **kept, path: Place(option=option)}
    return Document(values=_merged(document.values, value), places=places, text=document.text)


def _path(name: str) -> tuple[str, ...]:
    """Return where a name of the command line is in the file; names in a sweep have dots themselves."""
    for group in ("sweep.zip.", "sweep."):
        if name.startswith(group):
            return (*group.removesuffix(".").split("."), name.removeprefix(group))
    return tuple((full_name(name) or name).split("."))


def _swept(sweep: Any) -> Iterator[Path_]:
    """Yield the place of every field that the sweep sets."""
    if not isinstance(sweep, dict):
        return
    yield from (("sweep", name) for name in sweep if name not in ("zip", "cases"))
    zipped, cases = sweep.get("zip"), sweep.get("cases")
    if isinstance(zipped, dict):
        yield from (("sweep", "zip", name) for name in zipped)
    for index, case in enumerate(cases if isinstance(cases, list) else []):
        yield from (("sweep", "cases", index, name) for name in (case if isinstance(case, dict) else []))
