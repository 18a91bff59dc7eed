"""Options of the command line over a suite: `--set model.width=256`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

from pscale.config import Model
from pscale.errors import SuiteError
from pscale.suite.document import Document, Path_, Place, dotted, merged, read_value
from pscale.suite.fields import fields_of, full_name, params_of
from pscale.suite.file import File
from pscale.suite.problems import nearest_field
from pscale.suite.schema import DATA_OF


class Override(str):
    """A field and its value that another option than `--set` stands for; `option` is that as it was typed."""

    option: str

    def __new__(cls, text: str, option: str) -> Self:
        """Make it."""
        made = super().__new__(cls, text)
        made.option = option
        return made


_FIXED = ("name", "extends")
_LONGEST_SHOWN = 100  # characters of an option in a message


def overridden(document: Document, override: str) -> Document:
    """Apply an override such as `model.width=256`: groups merge, the sweep and its fields are replaced."""
    name, equals, text = override.partition("=")
    typed = override.option if isinstance(override, Override) else f"--set {override}"
    option = typed if len(typed) <= _LONGEST_SHOWN else f"{typed[:_LONGEST_SHOWN]}..."
    params = params_of(document.values)
    path = _path(name.strip(), document.values.get("sweep"), params)
    if not equals or not all(path):
        raise SuiteError(f"{option}: expected field=value, as in --set model.width=256")
    _check(path, document, option, (name.strip(), text.strip()))
    value = read_value(text, option)
    whole = [path] if path[0] == "sweep" else []
    members = value if isinstance(value, dict) and not whole else None
    for part in reversed(path):
        value = {part: value}
    value = _with_kind(value, document.values)
    return Document(
        values=merged(document.values, value, whole),
        places=_places(document.places, path, members, Place(option=option)),
        text=document.text,
    )


def _path(name: str, sweep: Any, params: Collection[str]) -> tuple[str, ...]:
    """Return where a name of the command line is in the file; names in a sweep have dots themselves."""
    for group in (("sweep", "zip"), ("sweep",)):
        prefix = f"{dotted(group)}."
        if name.startswith(prefix):
            field = name.removeprefix(prefix)
            full = full_name(field, params)
            written = [place for place in _swept(sweep) if place[:-1] == group]
            same = [str(last) for *_, last in written if full and full_name(str(last), params) == full]
            return (*group, same[0] if same else field)
    return tuple((full_name(name, params) or name).split("."))


def _check(path: tuple[str, ...], document: Document, option: str, typed: tuple[str, str]) -> None:
    """Raise SuiteError where no field is at `path`, or none whose value would count."""
    if path[0] in _FIXED:
        raise SuiteError(f"{option}: '{path[0]}' cannot be overridden")
    if len(path) == 1 and path[0] not in fields_of(File):
        known = [name for name in fields_of(File) if name not in _FIXED]
        raise SuiteError(f"{option}: a suite has no such field; {nearest_field(path[0], known)}")
    for swept in _swept(document.values.get("sweep")):
        if full_name(str(swept[-1]), params_of(document.values)) == ".".join(path):
            raise SuiteError(f"{option}: {_to_change(swept, *typed)}")


def _to_change(swept: Path_, name: str, text: str) -> str:
    """Say how to change a field that the sweep sets: the values that it sweeps, or which cases run."""
    of_cases = swept[1] == "cases"
    values = "sweep.cases=[…]" if of_cases else f"{dotted(swept)}=[{text}]"
    return (
        f"the suite sweeps this field ({dotted(swept)}); use `--set {values}` instead, or "
        f'`--only "{name} == {text}"` to run only these cases'
    )


def _with_kind(above: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Say the kind of a group that the file leaves out, as its default does."""
    ((group, members),) = above.items()
    if isinstance(values.get(group), dict) or not isinstance(members, dict) or "kind" in members:
        return above
    model = values.get("model")
    kind = str(model.get("kind")) if isinstance(model, dict) else Model.kind
    default = {"model": kind, "data": DATA_OF.get(kind)}.get(group)
    return {group: {"kind": default, **members}} if default else above


def _places(
    places: Mapping[Path_, Place], path: Path_, members: Collection[str] | None, option: Place
) -> dict[Path_, Place]:
    """Return where values were written, now that an option sets `path`, or some `members` of it."""
    depth = len(path)
    above = {path[:length]: option for length in range(1, depth)}
    kept = {
        place: where
        for place, where in places.items()
        if place[:depth] != path
        or (members is not None and len(place) > depth and place[depth] not in members)
    }
    return {**above, **kept, path: option}


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
