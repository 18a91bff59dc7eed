"""From the declarations of a suite's fields to what pydantic validates, and to the schema for editors."""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, reduce
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic import Field as PydanticField
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pscale.config import Data, Model, Plan, Workload
from pscale.config.axes import DEGREES, PLAN_AXES
from pscale.config.choices import AnyValue, Number, OneOf, Text
from pscale.config.workload import Value, check_patterns, without_text
from pscale.runs.run_events import KINDS
from pscale.suite.document import DURATION, SHARE, SIZE, Formula, duration_s, quoted, share, size_bytes
from pscale.suite.fields import (
    BY_MEMBER,
    LEAVES,
    PARAMS,
    SHORT,
    Field,
    documentation,
    field_at,
    fields_of,
    fields_of_any_kind,
    kinds_of,
)
from pscale.suite.file import PUBLISHED, File, Precision

# The kind of data that fits a kind of model, where a suite does not say.
DATA_OF = {"gpt": "text", "moe": "text", "block": "synthetic", "linear": "linear", "collectives": "synthetic"}
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_ANY_NAME = r"^[A-Za-z_]\w*$"
_NAMED = r"^(launch\.env|workload\.params)\.\w+$"
_ANY_VALUE: JsonSchemaValue = {"type": ["number", "string", "boolean"]}
_READ: dict[str, Callable[[str], Any]] = {"bytes": size_bytes, "s": duration_s, "share": share}
_NO_SINGLE_VALUE = {  # fields that hold lists or mappings: a sweep cannot set them
    *(
        "launch.env",
        "launch.extra",
        "env",
        "extra",
        "workload.params",
        "params",
        "workload.figures",
        "figures",
    ),
    *("workload.files.in", "in", "workload.files.out", "out"),
}
_PATTERNS = {"bytes": SIZE, "s": DURATION, "share": SHARE}


class Group(BaseModel):
    """Fields that belong together. Nothing is guessed: no other fields, no conversions."""

    model_config = {**_STRICT, "defer_build": True}  # it is built inside the group that holds it


@cache
def model_of(group: type, kind: str = "") -> type[Group]:
    """Return what validates a group of fields, or one kind of it."""
    members: dict[str, Any] = {
        field.name: (Literal[kind], ...) if kind and field.name == "kind" else _declared(field)
        for field in fields_of(group, kind).values()
    }
    name = f"{group.__name__}{kind.capitalize()}"
    rules = _RULES.get(group, {})
    if hasattr(group, "check"):
        rules = rules | {"check": model_validator(mode="after")(_checked(group))}
    with warnings.catch_warnings():  # `json` is an old method of every model, which nobody calls
        warnings.filterwarnings("ignore", 'Field name "json"')
        return create_model(
            name, __base__=Group, __doc__=inspect.getdoc(group), __validators__=rules, **members
        )


def _declared(field: Field) -> tuple[Any, Any]:
    """Return type and default of a field as pydantic wants them."""
    default: Any = field.default
    if default is dataclasses.MISSING:
        default = ...
    elif dataclasses.is_dataclass(default) and not isinstance(default, type):
        kind = {"kind": default.kind} if isinstance(default, Model) else {}
        default = PydanticField(kind, validate_default=True)
    elif isinstance(default, tuple):
        default = list(default)
    elif isinstance(default, str):  # a word that stands for something else, as `rest`
        default = PydanticField(default, validate_default=True)
    return _validated(field.hint), default


def _validated(hint: Any) -> Any:
    """Return the type that pydantic validates for the hint of a declaration."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        models = [model_of(hint, kind) for kind in kinds_of(hint)]
        return Annotated[_any_of(models), Discriminator("kind")] if len(models) > 1 else models[0]
    if origin is Annotated:
        return _marked(arguments[0], arguments[1:])
    if origin is tuple:
        return list[_validated(arguments[0])]  # type: ignore[misc]
    if origin is Mapping:
        return dict[_validated(arguments[0]), _validated(arguments[1])]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return _any_of([_validated(each) for each in arguments])
    return hint


def _any_of(types: list[Any]) -> Any:
    return reduce(operator.or_, types)


def _marked(hint: Any, marks: tuple[Any, ...]) -> Any:
    validators: list[Any] = []
    for mark in marks:
        if isinstance(mark, AnyValue):
            return Annotated[Any, AfterValidator(_single), WithJsonSchema(_ANY_VALUE)]
        if isinstance(mark, BeforeValidator):
            validators.append(mark)
        if isinstance(mark, OneOf):
            validators += [AfterValidator(_Known(mark)), WithJsonSchema(_one_of(mark.words, _ANY_NAME))]
        if isinstance(mark, Text):
            validators += [AfterValidator(_Form(mark)), WithJsonSchema(_text(mark.pattern))]
        if isinstance(mark, Number):
            hint = hint if hint is int else float
            bounds = annotated_types.Interval(ge=mark.ge, gt=mark.gt, lt=mark.lt, le=mark.le)
            validators += [bounds, _Written(mark, hint)]
    return Annotated[(_validated(hint), *validators)] if validators else _validated(hint)


def _one_of(words: Iterable[str], pattern: str) -> dict[str, Any]:
    """Return what accepts some words, which an editor proposes, and others of a form."""
    return {"type": "string", "anyOf": [{"enum": list(words)}, {"pattern": pattern}]}


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^({pattern})$"}


@dataclasses.dataclass(frozen=True)
class _Form:
    """Accepts texts of a form."""

    form: Text

    def __call__(self, value: str) -> str:
        if not re.fullmatch(self.form.pattern, value):
            raise ValueError(f"expected {self.form.expected}, got {quoted(value)}")
        return value


@dataclasses.dataclass(frozen=True)
class _Known:
    """Accepts known words, and what may be a name; the group around it knows which of those there are."""

    known: OneOf

    def __call__(self, value: str) -> str:
        if not re.match(_ANY_NAME, value):
            raise ValueError(f"expected one of {', '.join(self.known.words)}, got {quoted(value)}")
        return value


def _single(value: Any) -> Any:
    """Accept the value of a parameter."""
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"expected a number, a text, true or false, got {_shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("expected a text without null characters")
    return Formula(value) if isinstance(value, str) and value.startswith("=") else value


def _shown(value: Any) -> str:
    return {type(None): "null", dict: "fields", list: "a list"}.get(type(value), repr(value))


@dataclasses.dataclass(frozen=True)
class _Written:
    """Lets a number also be written as an expression, with a unit, or as a word that stands for it."""

    number: Number
    kind: type

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        plain = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(self._read, handler(source), serialization=plain)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        number = self.number
        words = [f"({'|'.join(word for word, _ in number.words)})$"] if number.words else []
        units = [f"{_PATTERNS[number.unit]}$"] if number.unit else []
        texts = ["="] * number.computed + words + units
        one = {"type": "string", "pattern": "^=" if texts == ["="] else f"^({'|'.join(texts)})"}
        return {"anyOf": [handler(schema), one]} if texts else handler(schema)

    def _read(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        number, words = self.number, dict(self.number.words)
        if not isinstance(value, str):
            return inner(without_text(value))
        if number.computed and value.startswith("="):
            return Formula(value)
        if value in words:
            meant = words[value]
            return Formula(meant) if str(meant).startswith("=") else meant
        if number.unit:
            return inner(_READ[number.unit](value))
        if words:
            plain = "a whole number" if self.kind is int else "a number"
            *others, last = [plain, *["an expression"] * number.computed, *words]
            raise ValueError(f"expected {', '.join(others)} or {last}, got {quoted(value)}")
        return inner(value)


def _rest_of_the_ranks(plan: Any) -> Any:
    open_ = [axis for axis in PLAN_AXES if getattr(plan, axis) == "=rest"]
    if len(open_) > 1 and "dp" not in plan.model_fields_set:
        plan.dp = 1
        open_.remove("dp")
    if len(open_) > 1:
        raise ValueError(f"{' and '.join(open_)} cannot both be rest, what the others leave of the ranks")
    for axis in open_:
        others = " * ".join(other for other in DEGREES if other != axis)
        setattr(plan, axis, Formula(f"=max(1, ranks // ({others}))"))
    return plan


def _no_number(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError(
            f"expected a type of numbers, such as float32, got {value}; "
            "how well `repeat: auto` gets to know step times is `known_to`"
        )
    return value


def _checked(group: type) -> Callable[[Any], Any]:
    """Return the rule that asks a group itself whether its fields fit together."""
    members = {field.name: field.member for field in fields_of(group).values()}

    def check(model: Any) -> Any:
        group(**{members[name]: value for name, value in dict(model).items()}).check()
        return model

    return check


def _defaults_that_fit(file: Any) -> Any:
    if file.data is None:
        file.data = _usual_data(DATA_OF[file.model.kind])
    if file.workload is None:
        file.workload = _no_workload()
    if file.precision.type is None:
        usual = "float64" if file.model.kind == "linear" else Model.dtype
        file.precision = file.precision.model_copy(update={"type": usual})
    return file


def _as_published(file: Any) -> Any:
    """Fill in the sizes of the model that the suite's is like."""
    model = file.get("model") if isinstance(file, dict) else None
    if not isinstance(model, dict) or "like" not in model:
        return file
    sizes = PUBLISHED.get(str(model["like"]), {"kind": "gpt"})
    return {**file, "model": {**sizes, **model}}


@cache  # cases share what nobody changes
def _usual_data(kind: str) -> Any:
    return model_of(Data, kind).model_validate({"kind": kind})


@cache
def _no_workload() -> Any:
    found: Any = model_of(Workload).model_validate({"command": "none"})
    found.command = ""
    return found


def _few_patterns(workload: Any) -> Any:
    """Refuse patterns that take too long before any is compiled."""
    if isinstance(workload, dict) and isinstance(figures := workload.get("figures", {}), dict):
        check_patterns(figures.values(), workload.get("success"))
    return workload


_RULES: dict[type, dict[str, Any]] = {
    Workload: {"patterns": model_validator(mode="before")(_few_patterns)},
    Plan: {"rest": model_validator(mode="after")(_rest_of_the_ranks)},
    Precision: {"number": model_validator(mode="before")(_no_number)},
    File: {
        "published": model_validator(mode="before")(_as_published),
        "defaults": model_validator(mode="after")(_defaults_that_fit),
    },
}


def validate(values: Mapping[str, Any], group: type = File) -> dict[str, Any]:
    """Return validated values with all defaults, sizes in bytes and times in seconds.

    Raises pydantic's ValidationError, which `pscale.suite.problems` puts into words.
    """
    return model_of(group).model_validate(values).model_dump()


@cache
def adapter(leaf: str) -> TypeAdapter[Any]:
    """Return what validates the value of a single field, by its dotted name."""
    if leaf.startswith(PARAMS):
        return TypeAdapter(_validated(Value))
    field = field_at(leaf)
    return TypeAdapter(_validated(field.hint if field else str), config=_STRICT)


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of a suite file: names complete, mistakes are underlined while typing.

    It asks for less than `load_suite` where an editor cannot see what a file extends.
    """
    schema = model_of(File).model_json_schema()
    definitions = schema["$defs"]
    for group in (schema, *definitions.values()):
        group["required"] = [name for name in group.get("required", []) if name != "kind"]
        for field in group["properties"].values():
            field.pop("title", None)  # the name of the field again
    schema["required"] = ["name"]
    schema["anyOf"] = [{"required": ["scaling"]}, {"required": ["extends"]}]
    schema["properties"]["model"] = {"anyOf": schema["properties"]["model"]["oneOf"]}
    schema["properties"]["data"] = {"anyOf": schema["properties"]["data"]["anyOf"][0]["oneOf"]}
    for group, member in BY_MEMBER.items():
        value = definitions[group.capitalize()]["properties"][member]
        schema["properties"][group] = {"anyOf": [value, schema["properties"][group]]}
    definitions["Launch"]["properties"]["env"]["additionalProperties"] = False
    _describe(File, schema, definitions)
    sweep = definitions["Sweep"]
    values = sweep["additionalProperties"]
    fields = dict.fromkeys(sorted({*LEAVES, *SHORT} - _NO_SINGLE_VALUE), values)
    sweep |= {
        "properties": {**sweep["properties"], **fields},
        "patternProperties": {_ANY_NAME: values, _NAMED: values},
        "additionalProperties": False,
    }
    schema |= {  # only in what a suite with a workload says, or extends, can names be those of parameters
        "if": {"not": {"anyOf": [{"required": ["workload"]}, {"required": ["extends"]}]}},
        "then": {"properties": {"sweep": {"propertyNames": _one_of(sweep["properties"], _NAMED)}}},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "pscale suite"}


def event_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line that `pscale run --events` writes."""
    lines = []
    for name, kind in KINDS.items():
        schema, said = TypeAdapter(kind).json_schema(), documentation(kind)
        common = {
            "event": {"const": name},
            "run": {"type": "string", "description": "Name of the run."},
            "unix_s": {"type": "number", "description": "Time of the event."},
        }
        fields = {field: {**each, "description": said[field]} for field, each in schema["properties"].items()}
        required = [*common, *schema.get("required", [])]
        lines.append(
            {
                "description": inspect.getdoc(kind),
                "properties": {**common, **fields},
                "required": required,
            }
        )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pscale events",
        "type": "object",
        "anyOf": lines,
    }


def _describe(group: type, schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Add the documentation of fields, which editors show beside them."""
    said = documentation(group)
    for field in fields_of_any_kind(group).values():
        if field.name in schema["properties"] and field.member in said:
            schema["properties"][field.name]["description"] = said[field.member]
        if inner := field.group:
            for kind in kinds_of(inner):
                _describe(inner, definitions[model_of(inner, kind).__name__], definitions)
