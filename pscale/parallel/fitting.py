"""The nearest values that would work, which refusals name beside those that clash."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Model


def alternatives(values: Sequence[int]) -> str:
    """Write a list of values as a choice: "1, 2 or 4"."""
    *most, last = (str(value) for value in values)
    return f"{', '.join(most)} or {last}" if most else last


def divisors(value: int, least: int = 1) -> list[int]:
    """Return what `value` divides by, from `least` on."""
    return [size for size in range(least, value + 1) if value % size == 0]


def multiples(value: int, divisor: int, times: int = 1) -> str:
    """Write the multiples of `divisor` next to `value` as a choice, each `times` itself."""
    below = value - value % divisor
    return alternatives([fit * times for fit in (below, below + divisor) if fit])


def heads(model: Model, parts: int) -> str:
    """Write the nearest numbers of heads that divide by `parts`, with another width if need be."""
    fits = [count for count in divisors(model.width) if count % parts == 0]
    below = [count for count in fits if count < model.heads][-1:]
    above = [count for count in fits if count > model.heads][:1]
    if below or above:
        return f"heads {alternatives(below + above)}"
    wanted = model.heads + -model.heads % parts
    return f"heads {wanted} with width {model.width + -model.width % wanted}"
