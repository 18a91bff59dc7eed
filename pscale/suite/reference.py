"""A file of reference values, as it is kept beside a suite: read whole, wrong entries named by their line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pscale.suite.document import Path_, Place, read_document
from pscale.suite.problems import found_by_pydantic, place_of, suite_error
from pscale.suite.schema.file import References


@dataclass(frozen=True, kw_only=True)
class ReferenceFile:
    """The entries of a file, each as `expect:` of a suite has them; `suite` is empty if it names none."""

    file: Path
    suite: str
    entries: tuple[Mapping[str, Any], ...]
    places: Mapping[Path_, Place]

    def place(self, entry: int) -> str:
        """Return file, line and field of an entry, for messages."""
        line = place_of(("expect", entry), self.places).line
        return f"{self.file}:{line}: expect[{entry}]"


def load_references(path: Path) -> ReferenceFile:
    """Read a file of reference values; raises SuiteError with all that is wrong in it."""
    document = read_document(path)
    try:
        known = References.model_validate(document.values)
    except ValidationError as error:
        problems = found_by_pydantic(error, document.values, References)
        raise suite_error(problems, document.places) from None
    return ReferenceFile(
        file=path,
        suite=known.suite,
        entries=tuple(entry.model_dump() for entry in known.expect),
        places=document.places,
    )
