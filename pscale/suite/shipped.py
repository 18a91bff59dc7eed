"""The suites that come with pscale, which commands take by name."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from pscale.errors import UsageError

_PACKAGE = Path(__file__).parents[1]
_BESIDE = _PACKAGE.parent / "suites"  # of a clone; in a wheel they are in the package
FOLDER = _BESIDE if _BESIDE.is_dir() and not (_PACKAGE / "suites").is_dir() else _PACKAGE / "suites"
_ENDINGS = (".yaml", ".yml")


def suites() -> dict[str, Path]:
    """Return the files of the shipped suites by their names."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def question(path: Path) -> str:
    """Return the question that a shipped suite answers: its comment up to there."""
    comment = re.findall(r"^# (?!yaml-language-server)(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return " ".join(comment).partition("?")[0] + "?"


def suite_file(said: Path, beside: Path = Path()) -> Path:
    """Return the file of a suite from its path, or from a name: that of NAME.yaml in `beside`, else shipped.

    Raises UsageError for a name that is neither, and where a path looks for a shipped suite.
    """
    path, known = beside / said, suites()
    if os.path.exists(path):  # noqa: PTH110 - a path may be too long
        return path
    if said.suffix in _ENDINGS or len(said.parts) > 1:
        if path.stem in known:
            raise UsageError(f"{path} does not exist; the shipped suite is called '{path.stem}'")
        return path
    own = beside / f"{said}.yaml"
    if os.path.isfile(own):  # noqa: PTH113 - as above
        return own
    if said.name not in known:
        raise unknown(said.name)
    return known[said.name]


def unknown(name: str) -> UsageError:
    """Return the error that names the shipped suite with the nearest name."""
    near = difflib.get_close_matches(name, suites(), n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    return UsageError(
        f"there is no suite '{name}': {meant}`pscale suites` lists the shipped ones; a file ends in .yaml"
    )
