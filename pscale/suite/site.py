"""What a site asks of everyone: a profile in `sites.yaml`, chosen by name or by the name of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt
from pydantic import BeforeValidator, Field, ValidationError

from pscale.errors import SuiteError, UsageError
from pscale.suite.document import Document, Path_, Place, dotted, read_document
from pscale.suite.override import merged
from pscale.suite.quantities import duration_s
from pscale.suite.schema.group import Group
from pscale.suite.schema.launch import Launch

FILE = "sites.yaml"
_POLL_S = 30.0

Interval = Annotated[
    float, Gt(0), BeforeValidator(lambda value: duration_s(value) if isinstance(value, str) else value)
]


class Profile(Group):
    """One site: the hosts where it is meant, what a scheduler does not tell, defaults for `launch`."""

    hosts: list[str] = Field(default_factory=list)
    poll: Interval = _POLL_S
    nodes: Annotated[int, Field(ge=1)] | None = None
    cores_per_node: Annotated[int, Field(ge=1)] | None = None
    launch: Launch = Launch()


@dataclass(frozen=True, kw_only=True)
class Site:
    """A profile in force; without a name there is none. `launch` holds what it says, as written."""

    name: str = ""
    poll_s: float = _POLL_S
    nodes: int | None = None
    cores_per_node: int | None = None
    launch: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[Path_, Place] = field(default_factory=dict, repr=False)

    def below(self, document: Document) -> Document:
        """Put the profile below a suite: what that says itself is left alone."""
        said = document.values.get("launch", {})
        if not self.launch or not isinstance(said, dict):
            return document
        launch = merged(dict(self.launch), said, whole=())
        places = {("launch", *path): place for path, place in self.places.items()}
        return Document(
            values={**document.values, "launch": launch},
            places={**places, **document.places},
            text=document.text,
        )


def find_site(name: str | None, folder: Path, host: str) -> Site:
    """Return the profile called `name`, or the first that is meant for `host`, or none.

    Looked for in sites.yaml in `folder`, that of the suite, then in the user's configuration. Raises
    SuiteError for a file that says something impossible, UsageError for a name that is in neither.
    """
    known = []
    for path in files(folder):
        if not path.is_file():
            continue
        document = read_document(path)
        for site in document.values:
            profile = _profile(document, site, path)
            known.append(site)
            if site == name or (name is None and any(fnmatch(host, pattern) for pattern in profile.hosts)):
                return _site(document, site, profile)
    if name is None:
        return Site()
    places = " or ".join(str(path) for path in files(folder))
    raise UsageError(f"--site {name}: no such profile in {places}; known: {', '.join(known) or 'none'}")


def files(folder: Path) -> Sequence[Path]:
    """Return where profiles are looked for, the first match wins."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return folder / FILE, Path(configuration) / "pscale" / FILE


def _profile(document: Document, name: str, path: Path) -> Profile:
    try:
        return Profile.model_validate(document.values[name])
    except ValidationError as error:
        raise SuiteError("\n".join(_problems(document, name, path, error))) from None


def _problems(document: Document, name: str, path: Path, error: ValidationError) -> Iterator[str]:
    for found in error.errors(include_url=False):
        place: Path_ = (name, *found["loc"])
        known = next(place[:end] for end in range(len(place), 0, -1) if place[:end] in document.places)
        text = found["msg"].removeprefix("Value error, ")
        yield str(SuiteError(text, file=path, line=document.places[known].line, field=dotted(known)))


def _site(document: Document, name: str, profile: Profile) -> Site:
    written = document.values[name].get("launch", {})
    within = (name, "launch")
    return Site(
        name=name,
        poll_s=profile.poll,
        nodes=profile.nodes,
        cores_per_node=profile.cores_per_node,
        launch=written,
        places={
            path[2:]: place for path, place in document.places.items() if path[:2] == within and path[2:]
        },
    )
