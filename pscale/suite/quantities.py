"""Numbers as people write them in a suite: plain, with a unit, or as an expression."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    AfterValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from pscale.config import choices

_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SECONDS = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"([0-9]+) ?(B|KiB|MiB|GiB)")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")


class Formula(str):
    """An expression that stands for a number; begins with "="."""

    __slots__ = ()


@dataclass(frozen=True)
class Computed:
    """Lets a number also be written as an expression, or as a text that `read` understands."""

    read: Callable[[str], Any] | None = None
    pattern: str = "^="

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def number(value: Any, inner: Callable[[Any], Any]) -> Any:
            if isinstance(value, str) and value.startswith("="):
                return Formula(value)
            read = self.read(value) if self.read and isinstance(value, str) else value
            return read if isinstance(read, Formula) else inner(read)

        as_it_is = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(number, handler(source), serialization=as_it_is)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": self.pattern}]}


def size_bytes(text: str) -> int:
    """Read a size such as 4MiB."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a size such as 512KiB or 4MiB, or a number of bytes, got '{text}'")
    return int(match[1]) * _SIZES[match[2]]


def duration_s(text: str) -> float:
    """Read a time such as 90s or 1h30m."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"expected a time such as 10ms, 90s or 1h30m, or a number of seconds, got '{text}'")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def degree(text: str) -> Any:
    """Read the degree of a mesh axis that takes all ranks, or those that the other axes leave."""
    if text not in ("ranks", "rest"):
        raise ValueError(f"expected a whole number, an expression, ranks or rest, got '{text}'")
    return Formula(f"={text}")


def gpus(text: str) -> int:
    """Read how many GPUs a node is to have, where that is said in a word."""
    if text != "none":
        raise ValueError(f"expected a whole number, an expression or none, got '{text}'")
    return 0


def repeats(value: Any) -> Any:
    """Accept how often a case is launched: a number, or "auto" for as often as `known_to` needs."""
    if value == "auto" or (type(value) is int and 1 <= value <= MOST_REPEATS):
        return value
    shown = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
    raise ValueError(f"expected a whole number from 1 to {MOST_REPEATS}, or auto, got {shown}")


def checkpoint(value: Any) -> Any:
    """Accept what backward computes again."""
    if isinstance(value, str) and _CHECKPOINT.fullmatch(value):
        return value
    shown = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
    hint = "; every-1 is full" if value == "every-1" else ""
    raise ValueError(f"expected none, selective, full, or every-2, every-3 and so on, got {shown}{hint}")


def loss_scale(value: Any) -> Any:
    """Accept how many times larger the loss is made: a number, or a word for how it is found."""
    if isinstance(value, str) and value.startswith("="):
        return Formula(value)
    if value in LOSS_SCALES:
        return value
    if type(value) in (int, float) and 0 < value <= LARGEST_SCALE:
        return float(value)
    shown = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
    raise ValueError(
        f"expected {', '.join(LOSS_SCALES)}, or a number above 0 and up to {LARGEST_SCALE}, got {shown}"
    )


LOSS_SCALES = ("auto", "none", "dynamic")
LARGEST_SCALE = 1 << 24  # of a loss: beyond it the inverse may vanish


def folder(value: str) -> str:
    """Accept a folder that means the same wherever a rank runs; empty stands for the usual one."""
    if value and not value.startswith("/"):
        raise ValueError(f"expected a folder that begins with /, got '{value}'")
    if "\0" in value:
        raise ValueError("a folder holds no null character")
    return value


MOST_REPEATS = 1000
_MOST = 10**9  # of anything: more is a slip of the finger
Count = Annotated[int, Ge(1), Le(_MOST), Computed()]
Degree = Annotated[int, Ge(1), Le(_MOST), Computed(degree, "^(=|(ranks|rest)$)")]
OneOrTwo = Annotated[int, Ge(1), Le(2), Computed()]
CountOrNone = Annotated[int, Ge(0), Le(_MOST), Computed()]
Gpus = Annotated[int, Ge(0), Le(_MOST), Computed(gpus, "^(=|none$)")]
Seed = Annotated[int, Ge(0), Le(2**32 - 1), Computed()]
Positive = Annotated[float, Gt(0), Computed()]
NotNegative = Annotated[float, Ge(0), Computed()]
Fraction = Annotated[float, Ge(0), Lt(1), Computed()]
Share = Annotated[float, Ge(0), Le(1), Computed()]
SomeShare = Annotated[float, Gt(0), Le(1), Computed()]
Bytes = Annotated[int, Ge(1), Le(1 << 40), Computed(size_bytes, "^(=|[0-9]+ ?(B|KiB|MiB|GiB)$)")]
_TIME = r"^(=|([0-9]+(\.[0-9]+)?(ms|[smhd]))+$)"
Seconds = Annotated[float, Gt(0), Computed(duration_s, _TIME)]
SecondsOrNone = Annotated[float, Ge(0), Computed(duration_s, _TIME)]
_REPEAT_SCHEMA = {
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_REPEATS}, {"const": "auto", "type": "string"}]
}
_CHECKPOINT = re.compile(r"none|selective|full|every-([2-9]|[1-9][0-9]{1,8})")
Checkpoint = Annotated[
    str,
    PlainValidator(checkpoint),
    WithJsonSchema({"type": "string", "pattern": f"^({_CHECKPOINT.pattern})$"}),
]
_SCALE_SCHEMA = {
    "anyOf": [
        {"enum": list(LOSS_SCALES)},
        {"type": "number", "exclusiveMinimum": 0, "maximum": LARGEST_SCALE},
        {"type": "string", "pattern": "^="},
    ]
}
LossScale = Annotated[
    choices.LossScaling | float,
    PlainValidator(loss_scale),
    PlainSerializer(lambda value: value, return_type=Any),
    WithJsonSchema(_SCALE_SCHEMA),
]
Scale = Annotated[float, Gt(0), Le(LARGEST_SCALE), Computed()]
Folder = Annotated[str, AfterValidator(folder), WithJsonSchema({"type": "string", "pattern": "^(/.*)?$"})]
Repeat = Annotated[int | Literal["auto"], PlainValidator(repeats), WithJsonSchema(_REPEAT_SCHEMA)]
