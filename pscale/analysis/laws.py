"""The laws that a time may follow over its size p: sums of terms with coefficients that are not negative.

The space is the performance-model normal form of Calotoiu et al. 2013 ("Using automated performance modeling
to find scalability bugs in complex codes"), sums of c p^i log2(p)^j, with negative exponents for strong
scaling, plus the two terms of a ring, p - 1 (latency) and 1 - 1/p (bytes), which vanish on one rank. Amdahl's
law and the universal scalability law are such sums; Gustafson's is a term for each serial fraction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations

import numpy as np

from pscale.results.step_time import Vector

MOST_TERMS = 3  # the constant and two that depend on the size
_POWERS = {  # of p, by exponent of log2 p
    0: ("-1", "-2/3", "-1/2", "-1/3", "1/3", "1/2", "2/3", "1", "3/2", "2"),
    1: ("-1", "-1/2", "0", "1/2", "1"),
    2: ("0", "1"),
}
_SERIAL_FRACTIONS = np.arange(0.005, 1.0, 0.005)


@dataclass(frozen=True, kw_only=True, eq=False)
class Term:
    """A function of the size; `text` writes its product with a coefficient, {}."""

    text: str
    value: Callable[[Vector], Vector]
    complexity: int  # of terms that fit equally well the plainest is taken


@dataclass(frozen=True, kw_only=True, eq=False)
class Law:
    """A sum of terms; `kind` is amdahl, gustafson, usl or pmnf."""

    kind: str
    terms: tuple[Term, ...]
    serial_fraction: float | None = None  # of Gustafson's, where it is part of the term

    @property
    def parameters(self) -> int:
        """How many numbers are fitted."""
        return len(self.terms) + (self.serial_fraction is not None)

    @property
    def complexity(self) -> tuple[int, int]:
        """How plain the law is: fewer parameters first, then plainer terms."""
        return self.parameters, sum(term.complexity for term in self.terms)


CONSTANT = Term(text="{}", value=np.ones_like, complexity=0)
INVERSE = Term(text="{}/p", value=lambda size: 1 / size, complexity=1)
SHARED = Term(text="{}·(1 − 1/p)", value=lambda size: 1 - 1 / size, complexity=1)
OTHERS = Term(text="{}·(p − 1)", value=lambda size: size - 1, complexity=1)
PAIRS = Term(text="{}·p(p − 1)", value=lambda size: size * (size - 1), complexity=2)
AMDAHL = Law(kind="amdahl", terms=(CONSTANT, INVERSE))
USL = {
    "strong": Law(kind="usl", terms=(INVERSE, SHARED, OTHERS)),
    "weak": Law(kind="usl", terms=(CONSTANT, OTHERS, PAIRS)),
}


@cache
def laws(scaling: str) -> tuple[Law, ...]:
    """Return every law for strong or weak scaling, or else for any number, the plainest first."""
    found = [*_normal_form(scaling), *([USL[scaling]] if scaling in USL else [])]
    if scaling == "weak":
        found += gustafson()
    return tuple(sorted(found, key=lambda law: law.complexity))


@cache
def gustafson() -> tuple[Law, ...]:
    """Return Gustafson's law, S(p) = s + (1 - s) p, for every serial fraction s in steps of 0.5 %."""
    return tuple(_gustafson(float(fraction)) for fraction in _SERIAL_FRACTIONS)


def _gustafson(fraction: float) -> Law:
    text = f"{{}}/({1 - fraction:.3g} + {fraction:.3g}/p)"
    term = Term(text=text, value=lambda size: 1 / (1 - fraction + fraction / size), complexity=1)
    return Law(kind="gustafson", terms=(term,), serial_fraction=fraction)


def _normal_form(scaling: str) -> Iterator[Law]:
    terms = (INVERSE, *((SHARED, OTHERS) if scaling in USL else ()), *_powers())
    for count in range(MOST_TERMS):
        for chosen in combinations(terms, count):
            yield from _with_constant(chosen, scaling)


def _with_constant(chosen: tuple[Term, ...], scaling: str) -> Iterator[Law]:
    if chosen:
        yield Law(kind="pmnf", terms=chosen)
    amdahl = scaling == "strong" and chosen == (INVERSE,)
    if chosen not in {(SHARED, INVERSE), (INVERSE, SHARED)}:  # with a constant, three terms for two shapes
        yield AMDAHL if amdahl else Law(kind="pmnf", terms=(CONSTANT, *chosen))


def _powers() -> Iterator[Term]:
    for logs, powers in _POWERS.items():
        for power in powers:
            if (power, logs) != ("-1", 0):  # the inverse has a name of its own
                yield _power(Fraction(power), logs)


def _power(power: Fraction, logs: int) -> Term:
    value, plain = float(power), power.denominator == 1
    text = {0: "", 1: "log₂ p", 2: "log₂² p"}[logs]
    if power:
        exponent = "" if power == 1 else f"^{power}" if plain and power > 0 else f"^({power})"
        text = f"p{exponent} {text}".rstrip()
    return Term(
        text="{}·" + text,
        value=lambda size: size**value * np.log2(size) ** logs,
        complexity=(1 if plain and value < 2 else 3 if power.denominator == 3 else 2)
        + (logs if power else logs - 1 if logs else 0),
    )
