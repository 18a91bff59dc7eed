"""What a kernel does with its arguments, declared beside it: its cost, and its forms in C and for 16 bits.

A cost is of floating-point operations, and bytes to and from memory. Bytes are what a cache cannot save: each
operand that is read counts once, each that is written once, and one that is updated in place twice. What a
kernel reads again because a cache does not hold it, or keeps in scratch memory, is not counted, so that FLOPs
over bytes is the arithmetic intensity of the roofline model (Williams, Waterman and Patterson 2009,
https://doi.org/10.1145/1498765.1498785). An operation on a number counts one, whichever it is: a sum, a
square root, a tanh. Of attention only the matrix products count, masked scores included, so that products
and attention together are `counts.executed_flops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

from pscale.nn.buffers import Array
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands

F = TypeVar("F", bound=Callable[..., Any])
Mode = Literal["read", "write", "change"]


class Cost(NamedTuple):
    """What one call costs, and the class of kernels that it belongs to."""

    kernel: str
    flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A kernel of class `kind`, with what it does to the arrays among its `arguments`, by name.

    Those in `rows` have as many rows, none of which depends on another.
    """

    kind: str
    arguments: tuple[str, ...]
    modes: Mapping[str, Mode]
    rows: frozenset[str]
    flops: Callable[..., int]
    moved: Callable[..., int] | None

    def bind(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, in order; None for one that is missing."""
        values = {**dict(zip(self.arguments, given, strict=False)), **named}
        return {name: values.get(name) for name in self.arguments}

    def cost(self, *given: Any, **named: Any) -> Cost:
        """Return what a call with such arguments costs."""
        values = self.bind(given, named)
        kind = "reduction" if self.kind == "product" and values["a"].ndim == 1 else self.kind
        moved = self.moved(**values) if self.moved else self._bytes(values)
        return Cost(kind, self.flops(**values), moved)

    @cached_property
    def sums(self) -> list[str]:
        """The arrays to which sums over all rows are added."""
        return [name for name, mode in self.modes.items() if mode == "change" and name not in self.rows]

    def like(self, values: Mapping[str, Any]) -> Array:
        """Return a matrix among the arguments whose rows are those of the kernel."""
        return next(x for name, x in values.items() if name in self.rows and x is not None and x.ndim == 2)

    def _bytes(self, values: Mapping[str, Any]) -> int:
        times = ((values[name], 2 if mode == "change" else 1) for name, mode in self.modes.items())
        return sum(x.nbytes * count for x, count in times if x is not None)


KERNELS: dict[str, Declaration] = {}  # by name


def kernel(
    kind: str, arrays: str, flops: Callable[..., int], moved: Callable[..., int] | None = None
) -> Callable[[F], F]:
    """Declare a kernel: FLOPs, and bytes if its arrays do not tell them, from arguments by name.

    `arrays` names what is read, after > what is written, after + what is updated; * marks those in rows.
    """

    def declare(function: F) -> F:
        code, mode = function.__code__, "read"
        modes: dict[str, Any] = {}
        for word in arrays.split():
            if word in (">", "+"):
                mode = "write" if word == ">" else "change"
            else:
                modes[word.rstrip("*")] = mode
        KERNELS[function.__name__] = Declaration(
            kind=kind,
            arguments=code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount],
            modes=modes,
            rows=frozenset(word[:-1] for word in arrays.split() if word.endswith("*")),
            flops=flops,
            moved=moved,
        )
        return function

    return declare


def attention_flops(of: AttentionOperands) -> int:
    """Return those of two products for each score; of four on the way back, or five if it is found again."""
    B, heads, _, width = of.inputs[0].shape
    products = 2 if not isinstance(of, AttentionGradients) else 4 if of.keeps_scores else 5
    flops: int = 2 * products * B * heads * of.block.scores(kept=of.keeps_scores) * width
    return flops


def attention_bytes(of: AttentionOperands) -> int:
    """Return what moves: scores where they are kept, and what earlier blocks have left."""
    softmax, result = of.softmax, of.y
    arrays: list[Array | None] = [*of.inputs, of.y, softmax.factors, softmax.exponentials]
    if isinstance(of, AttentionGradients):
        arrays += [of.dy, *of.grads, *(() if of.first_of_keys else of.grads[1:])]
        result = of.grads[0]
    else:
        arrays += [softmax.maximum, softmax.total] * 2
    return sum(x.nbytes for x in (*arrays, None if of.first else result) if x is not None)
