"""From a file to a suite: what it extends, what the command line overrides, what it may say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from pscale.errors import SuiteError
from pscale.suite.document import Document, read_document
from pscale.suite.fields import BY_MEMBER
from pscale.suite.override import merged, overridden
from pscale.suite.problems import found_by_pydantic, suite_error
from pscale.suite.schema.file import File
from pscale.suite.site import Site
from pscale.suite.suite import Auto, Suite

# With fewer launches an interval is narrow by chance too often: launching until it was narrow would leave
# less than 95 % of the intervals with the truth in them, as simulations show.
FEWEST_AUTO = 5


def load_suite(path: Path, overrides: Sequence[str] = (), site: Site | None = None) -> Suite:
    """Read a suite with all that it extends, above a site's profile; apply overrides such as `width=256`.

    Raises SuiteError that lists everything wrong, each with file, line, field and what would be right.
    """
    document = _with_bases(path, ())
    if site:
        document = site.below(document)
    for override in overrides:
        document = overridden(document, override)
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
        repeat=min(FEWEST_AUTO, file.max_repeats) if file.repeat == "auto" else file.repeat,
        auto=Auto(precision=file.known_to, most=file.max_repeats) if file.repeat == "auto" else None,
        file=path,
        values=document.values,
        places=document.places,
    )


def _spelled_out(document: Document) -> Document:
    """Make a group of a single value that stands for one."""
    values = dict(document.values)
    for group, member in BY_MEMBER.items():
        if isinstance(values.get(group), str):
            values[group] = {member: values[group]}
    return replace(document, values=values)


def _with_bases(path: Path, extending: tuple[Path, ...]) -> Document:
    """Read a file and, below it, the chain of files that it extends."""
    document = _spelled_out(read_document(path))
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
    values = merged(inherited, document.values, whole=[("sweep",)])
    return Document(values=values, places={**below.places, **document.places}, text=document.text)
