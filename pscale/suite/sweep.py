"""What varies in a suite: the field `sweep` and the combinations that it asks for."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema


def _scalar(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise ValueError("expected a single value: a number, a text, true, false or null")
    return value


def _values(value: list[Any]) -> list[Any]:
    if not value:
        raise ValueError("expected at least one value, as in [1, 2, 4]")
    twice = [item for place, item in enumerate(value) if item in value[:place]]
    if twice:
        raise ValueError(f"lists {twice[0]!r} twice")
    return value


def _settings(value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        raise ValueError("expected at least one field, as in {ranks: 2}")
    return value


def _in_step(value: dict[str, list[Any]]) -> dict[str, list[Any]]:
    if len({len(values) for values in value.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in value.items())
        raise ValueError(f"expected lists of equal length, since they go in step; {lengths}")
    if [] in value.values():
        raise ValueError("expected at least one value in every list")
    return value


def _cases(value: list[Any] | None) -> list[Any] | None:
    return None if value is None else _values(value)


_ANY_SCALAR = WithJsonSchema({"type": ["number", "string", "boolean", "null"]})
Scalar = Annotated[Any, AfterValidator(_scalar), _ANY_SCALAR]
Values = Annotated[list[Scalar], AfterValidator(_values)]
Settings = Annotated[dict[str, Scalar], AfterValidator(_settings)]


class Sweep(BaseModel):
    """What varies: every combination of the fields' values; `zip` goes in step, `cases` lists by hand."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Values] = Field(init=False)
    zip: Annotated[dict[str, list[Scalar]], AfterValidator(_in_step)] = {}
    cases: Annotated[list[Settings] | None, AfterValidator(_cases)] = None
