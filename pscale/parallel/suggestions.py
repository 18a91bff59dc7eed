"""The nearest values that would work, which refusals name beside those that clash."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pscale.config import Model, Plan


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


def nearest(values: Sequence[int], to: int) -> list[int]:
    """Return the last of ascending `values` that is less, and the first that is more."""
    below = [value for value in values if value < to]
    return below[-1:] + [value for value in values if value > to][:1]


def degrees(plan: Plan, axis: str, values: Sequence[int]) -> str:
    """Write those of `values` that an axis can have on the ranks of the plan, dp taking what they leave."""
    room = getattr(plan, axis) * plan.dp
    return f"{axis} {alternatives([value for value in values if room % value == 0])} with dp rest"


def heads(model: Model, parts: int, of_width: int = 1) -> str:
    """Write the nearest numbers of heads that divide by `parts`, with a width that divides if need be."""
    near = nearest([count for count in divisors(model.width) if count % parts == 0], model.heads)
    if near:
        return f"heads {alternatives(near)}"
    wanted = model.heads + -model.heads % parts
    return f"heads {wanted} with width {model.width + -model.width % math.lcm(wanted, of_width)}"
