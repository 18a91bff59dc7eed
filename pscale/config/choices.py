"""What may be chosen: words, numbers within bounds, texts of a form; and how a suite writes them.

A field of a suite is declared once, as an annotated field of a dataclass with its documentation below it.
pydantic reads the dataclass as it is; JSON Schema, completion, labels and the tables of docs/suites.md follow
from the same declaration. Here are the marks of such annotations, of the standard library alone: pydantic
asks them for its schemas, which are dictionaries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pscale.config.metrics import DURATION, SHARE, SIZE, duration_s, quoted, share, size_bytes

MOST = 10**9  # of anything: more is a slip of the finger
MOST_LAUNCHES = 1_000_000  # of a run, over all cases
MOST_PARTS = 10_000  # of what a step does one after another: a dry run does each too
MOST_RANKS = 1_000_000
LARGEST_SCALE = 1 << 24  # of a loss: beyond it the inverse may vanish


Reader = Callable[[Any], Any]
_READ: Mapping[str, Callable[[str], float]] = {"bytes": size_bytes, "s": duration_s, "share": share}
_PATTERNS = {"bytes": SIZE, "s": DURATION, "share": SHARE}


class Formula(str):
    """An expression that stands for a number; begins with "="."""

    __slots__ = ()


def suite_name(member: str) -> str:
    """Return what a suite calls a field: its name without the unit, or the underscore of a keyword."""
    return re.sub(r"_(bytes|s|)$", "", member)


class Group:
    """Fields that belong together, as a dataclass that pydantic reads: no other fields, no conversions."""

    __pydantic_config__: ClassVar = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
        "alias_generator": suite_name,
    }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Reader) -> dict[str, Any]:
        schema = handler(source)
        schema["strict"] = False
        for field in schema["schema"]["fields"]:
            inner = field["schema"]
            while inner["type"] != "tuple" and "schema" in inner:
                inner = inner["schema"]
            inner |= {"strict": False} if inner["type"] == "tuple" else {}
        return _function("wrap", cls._read, schema)

    @classmethod
    def _read(cls, values: Any, inner: Reader) -> Any:
        cls.check_written(values)
        group = inner(values)
        group.check_fields()
        return group

    @classmethod
    def check_written(cls, values: Any) -> None:
        """Raise ValueError for what must not be looked at any further."""

    def check_fields(self) -> None:
        """Raise ValueError for fields that do not fit together."""


def _function(when: Literal["wrap", "after"], function: Callable[..., Any], schema: Any) -> dict[str, Any]:
    """Return pydantic's schema of a function around another, or after it."""
    return {
        "type": f"function-{when}",
        "function": {"type": "no-info", "function": function},
        "schema": schema,
    }


@dataclass(frozen=True, kw_only=True)
class Number:
    """Bounds of a number, and the texts that may stand for it in a suite.

    The name of a field with a `unit` ends in it; a suite leaves that out and writes `10ms` or `4MiB`.
    """

    ge: float | None = None
    gt: float | None = None
    lt: float | None = None
    le: float | None = None
    unit: Literal["", "bytes", "s", "share"] = ""
    words: tuple[tuple[str, Any], ...] = ()  # with what they stand for, which may be an expression
    computed: bool = True  # may be an expression: "=2 * ranks"

    def __get_pydantic_core_schema__(self, source: Any, handler: Reader) -> dict[str, Any]:
        kind = "int" if source is int else "float"
        bounds = {name: getattr(self, name) for name in ("ge", "gt", "lt", "le")}
        plain = {"type": kind, **{name: bound for name, bound in bounds.items() if bound is not None}}
        return _function("wrap", partial(self.read, kind=kind), plain)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Reader) -> dict[str, Any]:
        words = [f"({'|'.join(word for word, _ in self.words)})$"] if self.words else []
        units = [f"{_PATTERNS[self.unit]}$"] if self.unit else []
        texts = ["="] * self.computed + words + units
        one = {"type": "string", "pattern": "^=" if texts == ["="] else f"^({'|'.join(texts)})"}
        return {"anyOf": [handler(schema["schema"]), one]} if texts else handler(schema["schema"])

    def read(self, value: Any, inner: Reader = lambda value: value, kind: str = "float") -> Any:
        """Return a value of a suite as a plain number or an expression; raises ValueError for other texts."""
        words = dict(self.words)
        if not isinstance(value, str):
            return inner(value.real if hasattr(value, "text") else value)
        if self.computed and value.startswith("="):
            return Formula(value)
        if value in words:
            meant = words[value]
            return Formula(meant) if str(meant).startswith("=") else meant
        if self.unit:
            return inner(_READ[self.unit](value))
        if words:
            plain = "a whole number" if kind == "int" else "a number"
            *others, last = [plain, *["an expression"] * self.computed, *words]
            raise ValueError(f"expected {', '.join(others)} or {last}, got {quoted(value)}")
        return inner(value)


@dataclass(frozen=True)
class Text:
    """A text of a form: a pattern without nested repetition, and what a message calls it.

    An editor offers the `words` that have it.
    """

    pattern: str
    expected: str
    words: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: Reader) -> dict[str, Any]:
        return _function("after", self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Reader) -> dict[str, Any]:
        pattern = f"^({self.pattern})$"
        return one_of(self.words, pattern) if self.words else {"type": "string", "pattern": pattern}

    def _read(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"expected {self.expected}, got {quoted(value)}")
        return value


def one_of(words: Iterable[str], pattern: str) -> dict[str, Any]:
    """Return the JSON Schema of some words and of others of a form."""
    return {"type": "string", "anyOf": [{"enum": list(words)}, {"pattern": pattern}]}


@dataclass(frozen=True)
class AnyValue:
    """A number, a text without null characters, true or false; a text with "=" in front is an expression."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Reader) -> dict[str, Any]:
        return _function("after", self.read, {"type": "any"})

    def __get_pydantic_json_schema__(self, schema: Any, handler: Reader) -> dict[str, Any]:
        return {"type": ["number", "string", "boolean"]}

    def read(self, value: Any) -> Any:
        """Return a value of a suite; raises ValueError for one that is not possible."""
        if not isinstance(value, bool | int | float | str):
            shown = {type(None): "null", dict: "fields", list: "a list"}.get(type(value), repr(value))
            raise ValueError(f"expected a number, a text, true or false, got {shown}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("expected a finite number")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("expected a text without null characters")
        return Formula(value) if isinstance(value, str) and value.startswith("=") else value


@dataclass(frozen=True)
class Hint(AnyValue):
    """What MPI is told: a whole number, a size, true, false or words, as a text."""

    def read(self, value: Any) -> Any:  # noqa: D102
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int):
            return str(value.real)
        if not isinstance(value, str) or not re.fullmatch(r"(?!=)[!-~][ -~]{0,254}", value):
            raise ValueError(
                f"expected a whole number, a size such as 4MiB, or words, got {quoted(str(value))}"
            )
        return str(size_bytes(value)) if re.fullmatch(SIZE, value) else value


@dataclass(frozen=True, kw_only=True)
class InSuite:
    """What is special about a field in a suite, and in the labels of cases."""

    kinds: tuple[str, ...] = ()  # of the group, that have it; none: all
    default: Any = None  # where it is another one than that of a job
    omitted: bool | None = None  # whether labels omit the default; None: unless it is a word or has a unit
    named: bool = False  # whether labels say the name of the field before a word
    axes: tuple[str, ...] = ()  # fields of the group; where all of them are 1 it means nothing


PositiveInt = Annotated[int, Number(ge=1, le=MOST)]
Parts = Annotated[int, Number(ge=1, le=MOST_PARTS)]
NonNegativeInt = Annotated[int, Number(ge=0, le=MOST)]
PositiveFloat = Annotated[float, Number(gt=0)]
NonNegativeFloat = Annotated[float, Number(ge=0)]
Fraction = Annotated[float, Number(ge=0, lt=1)]
Degree = Annotated[int, Number(ge=1, le=MOST, words=(("ranks", "=ranks"), ("rest", "=rest")))]
Bytes = Annotated[int, Number(ge=1, le=1 << 40, unit="bytes")]
Seconds = Annotated[float, Number(gt=0, unit="s")]
SecondsOrZero = Annotated[float, Number(ge=0, unit="s")]
NonEmpty = Annotated[str, Text(r"[\s\S]+", "a non-empty text")]

Scaling = Literal["weak", "strong", "throughput"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Context = Literal["ring", "ulysses", "all-gather", "unified"]
Placement = Literal["zigzag", "contiguous"]
MatrixAlgorithm = Literal["axonn", "agarwal", "summa", "cannon"]
Optimizer = Literal["sgd", "adam", "adamw", "lamb", "adafactor", "lion", "muon"]
Dtype = Literal["float32", "float64", "fp16", "bf16"]
LossScaling = Literal["auto", "none", "dynamic"]
SchedulerChoice = Literal["auto", "none", "slurm", "flux", "pbs", "lsf", "cobalt"]
KernelsChoice = Literal["auto", "fused", "numpy"]
Phase = Literal["data", "forward", "backward", "sync", "update"]
