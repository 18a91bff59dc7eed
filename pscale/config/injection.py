"""What a case does to its ranks on purpose: delays, to ask what one straggler would cost; computing slept.

A rank burns a delay at the start of a phase; it counts as compute of that phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pscale.config.choices import NonNegativeFloat, NonNegativeInt, Number, Phase, PositiveInt, SecondsOrZero


@dataclass(frozen=True, kw_only=True)
class Inject:
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
class Jitter:
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
class Ghost:
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
