"""What may be chosen: words, numbers within bounds, texts of a form; and how a suite writes them.

A field of a suite is declared once, as an annotated field of a dataclass with its documentation below it.
Validation, JSON Schema, completion, labels and the tables of docs/suites.md follow from that declaration;
`pscale.suite.fields` reads it. Here are the marks of such annotations, of the standard library alone.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal

MOST = 10**9  # of anything: more is a slip of the finger
MOST_LAUNCHES = 1_000_000  # of a run, over all cases
MOST_PARTS = 10_000  # of what a step does one after another: a dry run does each too
MOST_RANKS = 1_000_000
LARGEST_SCALE = 1 << 24  # of a loss: beyond it the inverse may vanish


@dataclass(frozen=True, kw_only=True)
class Number:
    """Bounds of a number, and the texts that may stand for it in a suite.

    The name of a field with a `unit` ends in it; a suite leaves that out and writes `10ms` or `4MiB`.
    """

    ge: float | None = None
    gt: float | None = None
    lt: float | None = None
    le: float | None = None
    unit: Literal["", "bytes", "s"] = ""
    words: tuple[tuple[str, Any], ...] = ()  # with what they stand for, which may be an expression
    computed: bool = True  # may be an expression: "=2 * ranks"


@dataclass(frozen=True)
class Text:
    """A text of a form: a pattern without nested repetition, and what a message calls it."""

    pattern: str
    expected: str


@dataclass(frozen=True)
class OneOf:
    """One of some words that are known only when the program runs, or a name that the file itself gives."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class AnyValue:
    """A number, a text without null characters, true or false; a text with "=" in front is an expression."""


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
Scale = Annotated[float, Number(gt=0, le=LARGEST_SCALE)]
Bytes = Annotated[int, Number(ge=1, le=1 << 40, unit="bytes")]
Seconds = Annotated[float, Number(gt=0, unit="s")]
SecondsOrZero = Annotated[float, Number(ge=0, unit="s")]
NonEmpty = Annotated[str, Text(r"[\s\S]+", "a non-empty text")]
Word = Annotated[str, Text(r"""[^\s'"`$\\]+""", "one word without quotes")]
WordOrNothing = Annotated[str, Text(r"""[^\s'"`$\\]*""", "one word without quotes, or nothing")]
Option = Annotated[str, Text(r"-[^\n\r\0]+", "one option of the scheduler such as '--exclusive'")]
Host = Annotated[
    str,
    Text(
        r"[\w.-]+:[1-9][0-9]{0,5}|[^\0:]+",
        "a host and its cores, such as 'lab1:16', or the name of a file with such lines",
    ),
]
Folder = Annotated[str, Text(r"(/[^\0]*)?", "a folder that begins with /, or nothing")]
BlasChoice = Annotated[
    str,
    Text(
        r"auto|numpy|openblas|blis|mkl|/[^\0]+",
        "auto, numpy, openblas, blis, mkl, or the path of a library, which begins with /",
    ),
    InSuite(named=True),
]
Command = Annotated[
    str,
    Text(r"[^\0]*[^\s\0][^\0]*", "a program with its arguments, such as './a.out {n}'"),
    InSuite(default=MISSING),
]
Variable = Annotated[str, Text(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
Setting = Annotated[str, Text(r"[^\0]*", "a text without null characters")]
Checkpoint = Annotated[
    str,
    Text(
        r"none|selective|full|every-([2-9]|[1-9][0-9]{1,8})",
        "none, selective, full, or every-2, every-3 and so on (every-1 is full)",
    ),
]

Scaling = Literal["weak", "strong", "throughput"]
Loading = Literal["memory", "mpi-io", "scatter", "files"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Context = Literal["ring", "ulysses", "all-gather", "unified"]
Placement = Literal["zigzag", "contiguous"]
MatrixAlgorithm = Literal["axonn", "agarwal", "summa", "cannon"]
Optimizer = Literal["sgd", "adam", "adamw", "lamb", "adafactor", "lion", "muon"]
Dtype = Literal["float32", "float64", "fp16", "bf16"]
LossScaling = Literal["auto", "none", "dynamic"]
SchedulerChoice = Literal["auto", "none", "slurm", "flux", "pbs", "lsf"]
KernelsChoice = Literal["auto", "fused", "numpy"]
Published = Literal[
    "none",
    "gpt2",
    "gpt2-xl",
    "gpt3-175b",
    "llama-2-7b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3-70b",
    "mixtral-8x7b",
    "mingpt-10m",
    "mingpt-19m",
    "mingpt-26m",
    "mingpt-102m",
    "mingpt-152m",
    "mingpt-203m",
    "mingpt-808m",
]
Phase = Literal["data", "forward", "backward", "sync", "update"]
