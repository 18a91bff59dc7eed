"""What a site asks of everyone: a profile in `sites.yaml`, chosen by name or by the name of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

from pscale.config import Launch
from pscale.config.choices import Number
from pscale.errors import UsageError
from pscale.runs import atomic_files
from pscale.suite.document import Document, Path_, Place, read_document
from pscale.suite.problems import validated

FILE = "sites.yaml"
Count = Annotated[int, Number(ge=1, computed=False)]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One site: the hosts where it is meant, what a scheduler does not tell, defaults for `launch`."""

    hosts: tuple[str, ...] = ()  # patterns of their names
    poll_s: Annotated[float, Number(gt=0, unit="s", computed=False)] = (
        30.0  # between questions to the scheduler
    )
    nodes: Count | None = None
    cores_per_node: Count | None = None
    launch: Launch = Launch()


@dataclass(frozen=True, kw_only=True)
class Site:
    """A profile in force; without a name there is none. `launch` holds what it says, as written."""

    name: str = ""
    poll_s: float = Profile.poll_s
    nodes: int | None = None
    cores_per_node: int | None = None
    launch: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[Path_, Place] = field(default_factory=dict, repr=False)

    def below(self, document: Document) -> Document:
        """Put the profile below a suite: what that says itself is left alone."""
        places = {("launch", *path): place for path, place in self.places.items()}
        return document.over(
            Document(values={"launch": dict(self.launch)} if self.launch else {}, places=places)
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
            profile = validated(document.values[site], document.places, Profile, within=(site,))
            known.append(site)
            if site == name or (name is None and any(fnmatch(host, pattern) for pattern in profile["hosts"])):
                return _site(document, site, profile)
    if name is None:
        return Site()
    places = " or ".join(str(path) for path in files(folder))
    raise UsageError(f"--site {name}: no such profile in {places}; known: {', '.join(known) or 'none'}")


def files(folder: Path) -> Sequence[Path]:
    """Return where profiles are looked for, the first match wins."""
    configuration = atomic_files.user_folder("XDG_CONFIG_HOME", ".config")
    return folder / FILE, configuration / "pscale" / FILE


def _site(document: Document, name: str, profile: Mapping[str, Any]) -> Site:
    within = (name, "launch")
    return Site(
        name=name,
        poll_s=profile["poll"],
        nodes=profile["nodes"],
        cores_per_node=profile["cores_per_node"],
        launch=document.values[name].get("launch", {}),
        places={
            path[2:]: place for path, place in document.places.items() if path[:2] == within and path[2:]
        },
    )
