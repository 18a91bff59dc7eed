"""What a suite file may say: the groups of a case, and around them what varies and what is expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from pscale import config
from pscale.config import Data, Ghost, Inject, Jitter, Launch, Plan, Require, Timing, Train, Workload
from pscale.config.choices import (
    MOST_RANKS,
    Dtype,
    Group,
    InSuite,
    NonEmpty,
    Number,
    PositiveInt,
    Scaling,
    Text,
)
from pscale.config.metrics import METRICS, conversion, unit_of

MOST_REPEATS = 1000


def _scalar(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise ValueError("expected a single value: a number, a text, true, false or null")
    return value


def _values(value: list[Any] | None) -> list[Any] | None:
    if value == []:
        raise ValueError("expected at least one value, as in [1, 2, 4]")
    seen = set()
    for item in value or []:
        if (same := frozenset(item.items()) if isinstance(item, dict) else item) in seen:
            raise ValueError(f"lists {item!r} twice")
        seen.add(same)
    return value


def _settings(value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        raise ValueError("expected at least one field, as in {ranks: 2}")
    return value


def _zipped(value: dict[str, list[Any]]) -> dict[str, list[Any]]:
    if len({len(values) for values in value.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in value.items())
        raise ValueError(f"expected lists of equal length, since they vary together; {lengths}")
    if [] in value.values():
        raise ValueError("expected at least one value in every list")
    return value


_ANY_SCALAR = WithJsonSchema({"type": ["number", "string", "boolean", "null"]})
Scalar = Annotated[Any, AfterValidator(_scalar), _ANY_SCALAR]
Values = Annotated[list[Scalar], AfterValidator(_values)]
Settings = Annotated[dict[str, Scalar], AfterValidator(_settings)]


class Sweep(BaseModel):
    """What varies: every combination of the fields' values; `zip` varies together, `cases` lists by hand."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Values] = Field(init=False)
    zip: Annotated[dict[str, list[Scalar]], AfterValidator(_zipped)] = {}
    cases: Annotated[list[Settings] | None, AfterValidator(_values)] = None


@dataclass(frozen=True, kw_only=True)
class Expect(Group):
    """A demand on a metric of the report, in `unit`, of the cases that `where` selects or `case` names."""

    metric: Annotated[str, Text(r"[A-Za-z_]\w*", f"one of {', '.join(METRICS)}", words=(*METRICS,))]
    """Metric, see the table below, or a figure of the workload by its name."""
    where: str = ""
    """Condition that selects cases; empty: all that run."""
    case: str = ""
    """Instead of `where`: the label of one case as `pscale show` prints it, or its id."""
    at_least: float | None = None
    """Lower bound, with or without `at_most`."""
    at_most: float | None = None
    """Upper bound, with or without `at_least`."""
    value: float | None = None
    """Instead: a reference value, with `lower`, `upper` or both."""
    lower: float | None = None
    """Lower bound below `value`."""
    upper: float | None = None
    """Upper bound above `value`."""
    unit: str | None = None
    """Unit of the numbers; default: the first of the metric."""

    def check_fields(self) -> None:
        """Raise ValueError for a demand that makes no sense."""
        if self.where and self.case:
            raise ValueError("expected where or case, not both")
        plain = self.at_least is not None or self.at_most is not None
        around = self.lower is not None or self.upper is not None
        if not plain and not around:
            raise ValueError("expected at_least or at_most, or value with lower or upper")
        if plain and (around or self.value is not None):
            raise ValueError("expected at_least and at_most, or value with lower and upper, not both")
        if around and self.value is None:
            expected = "expected value too, or at_least and at_most"
            raise ValueError(f"lower and upper lie around a value: {expected}")
        known = [self.at_least, self.lower, self.value, self.upper, self.at_most]
        ordered = [bound for bound in known if bound is not None]
        if ordered != sorted(ordered):
            raise ValueError(f"nothing lies between {' and '.join(f'{bound:g}' for bound in ordered)}")
        own = unit_of(self.metric)
        if self.metric in METRICS and conversion(self.unit or own, own) is None:
            expected = f"expected one of {', '.join(METRICS[self.metric].units)}"
            raise ValueError(f"{self.metric} is not measured in '{self.unit}'; {expected}")


@dataclass(frozen=True, kw_only=True)
class References(Group):
    """A file of demands, as `pscale check --update` writes it."""

    suite: str = ""  # that they are about
    expect: tuple[Expect, ...] = ()


def _gpt(layers: int, width: int, heads: int, sequence: int, **others: Any) -> dict[str, Any]:
    sizes = {"layers": layers, "width": width, "heads": heads, "sequence": sequence}
    return {"kind": "gpt", **sizes, **others}


_GPT = {"vocabulary": 50257, "tied": True}
_LLAMA = {"norm": "rmsnorm", "bias": False, "mlp": "swiglu", "positions": "rope"}
_LLAMA_3 = {"kv_heads": 8, "vocabulary": 128256, "rope_base": 500_000.0, **_LLAMA}  # Grattafiori et al., 2024
_MIXTRAL = {"kind": "moe", "experts": 8, "top_k": 2, "every": 1, "rope_base": 1_000_000.0}
_IMAGES = {"sequence": 1023, "vocabulary": 512}  # of 32 x 32 pixels, in 512 colours
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "gpt2": _gpt(12, 768, 12, 1024, **_GPT),  # Radford et al., 2019
    "gpt2-xl": _gpt(48, 1600, 25, 1024, **_GPT),
    "gpt3-175b": _gpt(96, 12288, 96, 2048, **_GPT),  # Brown et al., 2020
    "llama-2-7b": _gpt(32, 4096, 32, 4096, mlp_width=11008, vocabulary=32000, **_LLAMA),  # Touvron, 2023
    "llama-2-70b": _gpt(80, 8192, 64, 4096, kv_heads=8, mlp_width=28672, vocabulary=32000, **_LLAMA),
    "llama-3-8b": _gpt(32, 4096, 32, 8192, mlp_width=14336, **_LLAMA_3),
    "llama-3-70b": _gpt(80, 8192, 64, 8192, mlp_width=28672, **_LLAMA_3),
    "mixtral-8x7b": _gpt(  # Jiang et al., 2024; the base is that of config.json beside the released weights
        32, 4096, 32, 32768, kv_heads=8, mlp_width=14336, vocabulary=32000, **_MIXTRAL, **_LLAMA
    ),
    "mingpt-10m": _gpt(12, 256, 8, **_IMAGES),
    "mingpt-19m": _gpt(24, 256, 8, **_IMAGES),
    "mingpt-26m": _gpt(32, 256, 8, **_IMAGES),
    "mingpt-102m": _gpt(32, 512, 8, **_IMAGES),
    "mingpt-152m": _gpt(48, 512, 8, **_IMAGES),
    "mingpt-203m": _gpt(64, 512, 8, **_IMAGES),
    "mingpt-808m": _gpt(64, 1024, 32, **_IMAGES),
}
if TYPE_CHECKING:
    Published = str
else:
    Published = Literal[("none", *PUBLISHED)]


@dataclass(frozen=True, kw_only=True)
class Model(config.Model):
    """Sizes of the network; a kind without a field has one layer, no vocabulary, and so on."""

    like: Annotated[Published, InSuite(kinds=("gpt", "moe"))] = "none"
    """Kind and sizes of a published model, which fields beside it override:
    [published models](#published-models)."""


@dataclass(frozen=True, kw_only=True)
class Precision(config.Precision):
    """Number types and loss scaling. In a suite, `precision: float64` is `precision: {type: float64}`."""

    type: Dtype | None = None
    """Type of parameters, gradients and activations, as stored and sent: [precision.md](precision.md); null:
    float32, for linear float64."""

    @classmethod
    def check_written(cls, values: Any) -> None:
        """Raise ValueError for a number, which is of another field."""
        if isinstance(values, int | float):
            raise ValueError(
                f"expected a type of numbers, such as float32, got {values}; "
                "how well `repeat: auto` gets to know step times is `known_to`"
            )


@dataclass(frozen=True, kw_only=True)
class File(Group):
    """A suite: one experiment whose cases differ in what `sweep` names.

    `scaling: weak` gives every data-parallel rank a `batch` of its own; with `strong` and `throughput` all
    ranks share one, and `throughput` has no ideal to be compared with.
    """

    name: Annotated[
        str,
        Text(
            "[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
            "letters, digits, '.', '_' and '-' (a folder is named after it)",
        ),
    ]
    """Folder of the results; at most 64 characters, the first a letter or digit; not inherited."""
    title: str = ""
    """Heading of the report."""
    extends: NonEmpty | None = None
    """Another suite to build on: a file, relative to this one, or the name of a shipped suite."""
    scaling: Scaling
    """What `batch` and efficiency mean."""
    ranks: Annotated[int, Number(ge=1, le=MOST_RANKS)] = 1
    """MPI processes."""
    threads: PositiveInt = 1
    """BLAS threads of each rank."""
    model: Model = Model()
    data: Data | None = None
    """The samples; null: text for gpt and moe, synthetic for block and collectives, linear for linear."""
    train: Train = Train()
    plan: Plan = Plan()
    precision: Precision = Precision()
    timing: Timing = Timing()
    launch: Launch = Launch()
    require: Require = Require()
    inject: Inject = Inject()
    jitter: Jitter = Jitter()
    ghost: Ghost = Ghost()
    workload: Workload | None = None
    """A program to measure in place of pscale's trainer; null: none."""
    sweep: Sweep = field(default_factory=Sweep)
    exclude: tuple[str, ...] = ()
    """Conditions; a case that meets one is left out."""
    base: str | None = None
    """Condition that marks the base case, at most one per series; default: the smallest case of the series.
    If it fails, the series has no efficiency."""
    repeat: Annotated[int, Number(ge=1, le=MOST_REPEATS, words=(("auto", "auto"),), computed=False)] = 3
    """Launches of each case, in rounds of random order; `auto`: until its efficiency or step time is
    known to `known_to`."""
    known_to: Annotated[float, Number(gt=0, lt=1, unit="share", computed=False)] = 0.02
    """`repeat: auto`: target half-width of the 95 % interval, relative to the value."""
    max_repeats: Annotated[int, Number(ge=1, le=MOST_REPEATS, computed=False)] = 30
    """`repeat: auto`: maximum launches per case; the minimum is 6, or these if fewer."""
    budget: Annotated[float, Number(gt=0, unit="s", computed=False)] | None = None
    """`repeat: auto`: time that launches may take; each case is launched once all the same."""
    expect: tuple[Expect, ...] = ()
    """Thresholds for `pscale check`."""
