"""What a case may inject to make ranks late on purpose: to ask what one slow rank would cost.

Ranks are late by burning time at the start of a phase, which counts as compute of that phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Phase = Literal["data", "forward", "backward", "sync", "update"]
Distribution = Literal["exponential", "normal", "uniform"]


@dataclass(frozen=True, kw_only=True)
class Inject:
    """One rank computes longer in a phase of the first measured step and of every `every`-th from there."""

    rank: int = 0
    phase: Phase = "backward"
    delay_s: float = 0.0  # 0: nothing is injected
    every: int = 1

    @property
    def words(self) -> str:
        """Say what is injected; empty if nothing is."""
        if not self.delay_s:
            return ""
        often = "" if self.every == 1 else f", one step of {self.every}"
        return f"{milliseconds(self.delay_s)} in {self.phase} of rank {self.rank}{often}"


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """Some or all ranks compute longer in a phase of every measured step, each by times of its own.

    exponential: of that mean; uniform: from 0 to twice the mean; normal: deviation a third of the mean, drawn
    again outside of 0 to twice the mean.
    """

    distribution: Distribution = "exponential"
    mean_s: float = 0.0  # 0: nothing is injected
    phase: Phase = "backward"
    ranks: tuple[int, ...] = ()  # none: all

    @property
    def words(self) -> str:
        """Say what is injected; empty if nothing is."""
        if not self.mean_s:
            return ""
        noun = "rank" if len(self.ranks) == 1 else "ranks"
        whose = f"{noun} {', '.join(map(str, self.ranks))}" if self.ranks else "all ranks"
        return f"{self.distribution} jitter of {milliseconds(self.mean_s)} in {self.phase} of {whose}"


NO_DELAY, NO_JITTER = Inject(), Jitter()


def in_words(inject: Inject, jitter: Jitter) -> str:
    """Say what is injected into a case; empty for a healthy one."""
    said = [words for words in (inject.words, jitter.words) if words]
    return f"injected {' and '.join(said)}" if said else ""


def words_of(case: Mapping[str, Any]) -> str:
    """Say what is injected into a case that was stored; one without such fields is healthy."""
    jitter = dict(case.get("jitter", {}))
    if "ranks" in jitter:
        jitter["ranks"] = tuple(jitter["ranks"])
    return in_words(Inject(**case.get("inject", {})), Jitter(**jitter))


def milliseconds(seconds: float) -> str:
    """Write a delay."""
    return f"{seconds * 1e3:g} ms"
