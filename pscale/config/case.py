"""One point of a suite, what makes two of them the same work, and how one is stored."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from pscale.config.choices import (
    Group,
    LossScaling,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    Phase,
    PositiveInt,
    Scaling,
    SecondsOrZero,
)
from pscale.config.launch import Launch, Require, Timing
from pscale.config.plan import Plan
from pscale.config.training import Data, Model, Precision, Train
from pscale.config.workload import ONCE, Program, Workload

JOINT = " · "  # between the parts of a label, and of the name of a series
T = TypeVar("T")
NARROW: frozenset[str] = frozenset({"fp16"})  # types whose least numbers are larger than many gradients
_NOT_THE_WORK = (  # fields of Launch that say where and how long, not what is measured
    *("time_limit_s", "hang_after_s", "memory_limit_bytes", "scheduler", "packing", "partition", "account"),
    *("qos", "constraint", "gpus", "job_time_limit_s", "directives", "modules", "setup", "check_ranks"),
    *("hosts", "warmup"),
)
WATCHED, WARM_UP = "watched", "warm-up"  # how launches have ended that ended well and do not count
UNCOUNTED = (WATCHED, WARM_UP)
RECORDED = ("ok", WATCHED)  # launches of which tables are read


@dataclass(frozen=True, kw_only=True)
class Inject(Group):
    """A delay of one rank, in a phase of the first measured step and of every `every`-th from there."""

    rank: NonNegativeInt = 0
    """Rank to delay."""
    phase: Phase = "backward"
    """Phase at whose start it is delayed, once per step."""
    delay_s: SecondsOrZero = 0.0
    """Length of the delay; 0: none."""
    every: PositiveInt = 1
    """Delay every n-th measured step, from the first on."""

    @property
    def words(self) -> str:
        """Say what is injected; empty if nothing is."""
        if not self.delay_s:
            return ""
        often = "" if self.every == 1 else f", one step of {self.every}"
        return f"{self.delay_s * 1e3:g} ms in {self.phase} of rank {self.rank}{often}"


@dataclass(frozen=True, kw_only=True)
class Jitter(Group):
    """Random delays of some or all ranks in a phase of every measured step, drawn for each rank."""

    distribution: Literal["exponential", "normal", "uniform"] = "exponential"
    """Distribution of the delays, per rank and step: `exponential`; `normal`, with a deviation of a third of
    the mean, from 0 to twice the mean; `uniform`, from 0 to twice the mean."""
    mean_s: SecondsOrZero = 0.0
    """Mean delay; 0: none."""
    phase: Phase = "backward"
    """Phase at whose start ranks are delayed, once per step."""
    ranks: tuple[Annotated[int, Number(ge=0, computed=False)], ...] = ()
    """Ranks to delay; empty: all."""

    @property
    def words(self) -> str:
        """Say what is injected; empty if nothing is."""
        if not self.mean_s:
            return ""
        noun = "rank" if len(self.ranks) == 1 else "ranks"
        whose = f"{noun} {', '.join(map(str, self.ranks))}" if self.ranks else "all ranks"
        return f"{self.distribution} jitter of {self.mean_s * 1e3:g} ms in {self.phase} of {whose}"


@dataclass(frozen=True, kw_only=True)
class Ghost(Group):
    """Computing that is slept instead, while every exchange is real: many ranks fit on few cores."""

    gflops: NonNegativeFloat = 0.0
    """Speed of a rank in GFLOP/s, at which it sleeps for the FLOPs of its kernels; 0: it computes."""
    poll_s: SecondsOrZero = 0.0
    """How long a rank that waits sleeps between two looks; 0: 25 us per rank of a core, at least 50 us."""

    @property
    def words(self) -> str:
        """Say that computing is slept; empty if it is not."""
        return f"ghost computing at {self.gflops:g} GFLOP/s" if self.gflops else ""


def injected_words(inject: Inject, jitter: Jitter) -> str:
    """Say what is injected into a case; empty for a healthy one."""
    return " and ".join(filter(None, (inject.words, jitter.words)))


def stored_words(case: Mapping[str, Any]) -> str:
    """Say what is injected into a case that was stored; one without such fields is healthy."""

    def stored(name: str, kind: type) -> dict[str, Any]:
        names = {field.name for field in fields(kind)}  # other versions may have more
        return {field: value for field, value in case.get(name, {}).items() if field in names}

    jitter = stored("jitter", Jitter)
    if "ranks" in jitter:
        jitter["ranks"] = tuple(jitter["ranks"])
    return injected_words(Inject(**stored("inject", Inject)), Jitter(**jitter))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of a suite: everything that a job needs to know."""

    suite: str
    label: str
    series: str = ""  # cases of one series differ in size alone
    base: bool = False  # the case that efficiencies refer to; none marked: the smallest of the series
    scaling: Scaling = "weak"
    ranks: int = 1
    threads: int = 1
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()  # with the batch of all ranks
    plan: Plan = Plan()
    precision: Precision = Precision()
    timing: Timing = Timing()
    launch: Launch = Launch()
    require: Require = Require()
    inject: Inject = Inject()
    jitter: Jitter = Jitter()
    ghost: Ghost = Ghost()
    workload: Workload = Workload(command="")  # without a command: pscale's trainer
    program: Program = Program()

    @property
    def cores(self) -> int:
        """How many cores its ranks and threads take."""
        return self.ranks * self.threads

    @property
    def uncounted(self) -> int:
        """How many of its launches, the first ones, do not count: warm-ups, then one that is watched."""
        return self.launch.warmup + (self.workload.watch == ONCE)

    def well(self, repeat: int) -> Literal["ok", "watched", "warm-up"]:
        """Return the status of a launch that ends well: `ok` where it counts."""
        if repeat >= self.uncounted:
            return "ok"
        return "warm-up" if repeat < self.launch.warmup else "watched"

    def is_watched(self, repeat: int) -> bool:
        """Tell whether the MPI calls of a launch are recorded."""
        well = self.well(repeat)
        return well == WATCHED or (self.workload.watch is True and well == "ok")

    @property
    def injected(self) -> str:
        """What delays ranks on purpose, in words; empty for a healthy case."""
        return injected_words(self.inject, self.jitter)

    @property
    def altered(self) -> str:
        """What is done to the ranks on purpose, in words: delays, and computing that is slept."""
        return JOINT.join(filter(None, (self.ghost.words, f"injected {self.injected}" * bool(self.injected))))

    @property
    def loss_scale(self) -> LossScaling | float:
        """`none`, `dynamic` or a number: numbers with a narrow range need a scale, others none."""
        asked, model = self.precision.loss_scale, self.model
        scaled = model.dtype in NARROW and model.kind != "collectives"  # which have no loss
        return ("dynamic" if scaled else "none") if asked == "auto" else asked

    @property
    def asks_for_norm(self) -> bool:
        """Whether a step needs the norm of the gradient: to clip it, or to find that it overflowed."""
        return self.train.clip is not None or self.loss_scale != "none"

    @functools.cached_property
    def id(self) -> str:
        """Ten hexadecimal digits of the content: the same work has the same id in every suite."""
        content = _unlike(self, _USUAL)
        for name in ("suite", "label", "series", "base", "require"):
            content.pop(name, None)
        for name in _NOT_THE_WORK:
            content.get("launch", {}).pop(name, None)
        content.get("program", {}).pop("folder", None)
        content.get("train", {}).get("save", {}).pop("folder", None)
        if self.workload.watch == ONCE:  # the launches that count are those without it
            content["workload"].pop("watch")
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


_USUAL = Case(suite="", label="")


def _unlike(value: Any, usual: Any) -> dict[str, Any]:
    """Return the fields that differ from the usual ones, so that a field that is added changes no old id."""
    content: dict[str, Any] = {}
    for name in (each.name for each in fields(value)):
        held, default = getattr(value, name), getattr(usual, name)
        if held == default:
            continue
        if isinstance(held, Mapping):
            held = {key: to_dict(one) if is_dataclass(one) else one for key, one in held.items()}
        content[name] = _unlike(held, default) if is_dataclass(held) else held
    return content


def to_dict(value: Any) -> dict[str, Any]:
    """Turn a configuration into plain dictionaries, for JSON."""
    return dataclasses.asdict(value)


# Groups of a case that say nothing of a program.
OF_TRAINING = ("model", "data", "train", "plan", "precision", "require", "inject", "jitter", "ghost")


def to_document(case: Case) -> dict[str, Any]:
    """Return what the document of a run says of a case: of one that runs a program, nothing of a training."""
    left_out = OF_TRAINING if case.workload.command else ("workload", "program")
    return {name: value for name, value in to_dict(case).items() if name not in left_out} | {"id": case.id}


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a configuration of class `kind` from what `to_dict` made, fields of other versions left out."""
    hints = _hints(cast("Hashable", kind))
    return kind(**{name: _made(hints[name], value) for name, value in values.items() if name in hints})


@functools.cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _made(hint: Any, value: Any) -> Any:
    """Return a value of a type from plain ones: a group, several by name, or a tuple."""
    if is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value)
    if get_origin(hint) is Mapping and is_dataclass(one := get_args(hint)[1]):
        return {name: from_dict(cast("type[Any]", one), each) for name, each in value.items()}
    return tuple(value) if type(value) is list else value
