"""Arithmetic and conditions that people write in suites and on the command line, and nothing more.

One fence: an expression is compiled node by node from its syntax tree into calls of the operators and
functions at the end of this file, which take numbers alone; what is not listed there is refused before
anything is computed. Names are looked up in the caller's mapping; no attribute of any object is read.
"""

from __future__ import annotations

import ast
import difflib
import functools
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from numbers import Real
from typing import Any

from pscale.errors import UsageError

LONGEST = 500  # characters: bounds the size of whole numbers
DEEPEST = 200  # operations within each other
_LARGEST_BITS = 1023  # of a power, and of a value
_MOST_DIGITS = 15  # of round
_CONSTANTS = {"true": True, "false": False, "none": None}
_Names = Mapping[str, Any]
_Computation = Callable[[_Names], Any]
_Combination = Callable[[list[_Computation], _Names], Any]


def evaluate(text: str, names: _Names) -> Any:
    """Compute an expression over `names`, which may be nested (`model.width`) or have dotted keys.

    Raises UsageError for an unknown name, for anything but arithmetic, and for a value that is not finite.
    """
    try:
        value = _program(text)(names)
    except UsageError as error:
        raise UsageError(f"expression {_shortened(text)}: {error}") from None
    except ZeroDivisionError:
        raise UsageError(f"expression {_shortened(text)}: divides by zero") from None
    except (ArithmeticError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"expression {_shortened(text)} cannot be computed: {error}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"expression {_shortened(text)} gives {value}, not a finite number")
    if isinstance(value, int) and value.bit_length() > _LARGEST_BITS:
        raise UsageError(f"expression {_shortened(text)} gives a number of {value.bit_length()} bits")
    return value


def condition(text: str, names: _Names) -> bool:
    """Compute an expression that must be true or false, such as `ranks * threads > cores`."""
    value = evaluate(text, names)
    if not isinstance(value, bool):
        raise UsageError(
            f"expression {_shortened(text)} gives {value!r}, which is neither true nor false; "
            "compare it with something, as in 'ranks > 1'"
        )
    return value


def names_in(text: str) -> set[str]:
    """Return the names that an expression reads, dotted ones whole; none if it is not an expression."""
    try:
        nodes = list(ast.walk(_parse(text)))
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        named = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
        return {ast.unparse(node) for node in named if id(node) not in called | inner}
    except (UsageError, ValueError, RecursionError, MemoryError):
        return set()  # `evaluate` says why


@functools.lru_cache(maxsize=256)  # conditions are computed for every case
def _program(text: str) -> _Computation:
    return _compiled(_parse(text).body, 1)


def _compiled(node: ast.expr, depth: int) -> _Computation:
    """Return what computes a node from names; raises UsageError for anything but arithmetic."""
    if depth > DEEPEST:
        raise UsageError(f"nests more than {DEEPEST} operations")
    combine: _Combination
    inner: list[ast.expr]
    match node:
        case ast.Constant(value=int() | float() | str() | None as value):
            return lambda _: value
        case ast.Name() | ast.Attribute() if (name := ast.unparse(node)).replace(".", "").isidentifier():
            return lambda names: _look_up(name, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            combine, inner = _chosen, [test, body, orelse]
        case ast.BoolOp(op=used, values=inner):
            combine = functools.partial(_decided, isinstance(used, ast.Or))
        case ast.List(elts=inner) | ast.Tuple(elts=inner):
            combine = _of_values(lambda *values: list(values))
        case ast.UnaryOp(op=used, operand=operand) if type(used) in _OPERATORS:
            combine, inner = _of_values(_OPERATORS[type(used)]), [operand]
        case ast.BinOp(left=left, op=used, right=right) if type(used) in _OPERATORS:
            combine, inner = _of_values(_OPERATORS[type(used)]), [left, right]
        case ast.Compare(left=left, ops=chain, comparators=others) if {*map(type, chain)} <= {*_OPERATORS}:
            combine, inner = _of_values(_chain([_OPERATORS[type(each)] for each in chain])), [left, *others]
        case ast.Call(func=ast.Name(id=called), args=inner, keywords=[]) if called in FUNCTIONS:
            combine = _of_values(_called(called, len(inner)))
        case _:
            raise UsageError(f"{_shortened(ast.unparse(node))} is not allowed: {_advice(node)}")
    parts = [_compiled(each, depth + 1) for each in inner]
    return lambda names: combine(parts, names)


def _of_values(function: Callable[..., Any]) -> _Combination:
    return lambda parts, names: function(*(part(names) for part in parts))


def _chosen(parts: list[_Computation], names: _Names) -> Any:
    test, body, orelse = parts
    return body(names) if test(names) else orelse(names)


def _decided(wanted: bool, parts: list[_Computation], names: _Names) -> Any:
    """Return the first value that decides an `or` (wanted) or an `and`, else the last."""
    for part in parts[:-1]:
        if bool(value := part(names)) is wanted:
            return value
    return parts[-1](names)


def _chain(used: list[Callable[..., Any]]) -> Callable[..., bool]:
    """Compare neighbours, as in 1 < ranks < 4."""
    return lambda *values: all(compare(*pair) for compare, pair in zip(used, pairwise(values), strict=True))


def _called(name: str, count: int) -> Callable[..., Any]:
    """Return a function that is called with so many values."""
    function, least, most = FUNCTIONS[name]
    if not least <= count <= most:
        raise UsageError(f"{name} takes {_COUNTS[least, most]}, not {count or 'none'}")
    numbers = _of_numbers(function)

    def call(*values: Any) -> Any:
        try:
            return numbers(*values)
        except (ValueError, TypeError):
            raise UsageError(f"{name}({', '.join(map(str, values))}) has no value") from None

    return call


def _advice(node: ast.expr) -> str:
    match node:
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            return "the operators are + - * / // % ** == != < <= > >= and or not in"
        case ast.Call():
            return f"the functions are {', '.join(FUNCTIONS)}"
        case ast.Constant():
            return "values are numbers and texts"
    return "use only arithmetic, comparisons, and, or, not, in"


def _parse(text: str) -> ast.Expression:
    if len(text) > LONGEST:
        raise UsageError(f"has {len(text)} characters; at most {LONGEST} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's advice on style is for programs
            return ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        hint = "; '==' compares" if "=" in text.replace("==", "") else ""
        raise UsageError(f"is not arithmetic ({error.msg}){hint}") from None


def _look_up(name: str, names: _Names) -> Any:
    if name in FUNCTIONS and name not in names:
        raise UsageError(f"{name} is a function; write {name}(…)")
    value: Any = names
    for part in [name] if name in names else name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            if name in _CONSTANTS:
                return _CONSTANTS[name]
            raise UsageError(f"unknown name '{name}'; {_suggestion(name, names)}")
        value = value[part]
    if isinstance(value, Mapping):
        members = ", ".join(f"{name}.{key}" for key in value)
        raise UsageError(f"'{name}' is a group; name one of {members}")
    return value.item() if hasattr(value, "item") else value  # a NumPy scalar of a table


def _suggestion(name: str, names: _Names) -> str:
    known = list(_dotted(names))
    fields = {other.rpartition(".")[2]: other for other in known}
    near = difflib.get_close_matches(name, known, n=1) or [
        fields[field] for field in difflib.get_close_matches(name.rpartition(".")[2], fields, n=1)
    ]
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known are {', '.join(sorted(known)) or 'none'}; texts need quotes"


def _dotted(names: _Names, prefix: str = "") -> Iterator[str]:
    for key in names:
        value = names[key] if "." not in key else None
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse texts and lists, whose sums, products and formats can grow without bound."""

    def checked(*values: Any) -> Any:
        for value in values:
            if not isinstance(value, Real):
                raise UsageError(f"{value!r} is not a number")
        return function(*values)

    return checked


def _power(base: Any, exponent: Any) -> Any:
    if base and abs(exponent) * max(1.0, abs(math.log2(abs(base)))) > _LARGEST_BITS:
        raise UsageError(f"{base} ** {exponent} is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise UsageError(f"{base} ** {exponent} is not a real number")
    return value


def _round(value: Any, digits: Any = None) -> Any:
    if digits is not None and abs(digits) > _MOST_DIGITS:
        raise UsageError(f"round keeps at most {_MOST_DIGITS} digits")
    return round(value, digits)


def _comparable(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Refuse the comparison of a number with a text, which is always false and never meant."""

    def checked(left: Any, right: Any) -> Any:
        if isinstance(left, str) != isinstance(right, str) and isinstance(left, Real) != isinstance(
            right, Real
        ):
            raise UsageError(f"compares {left!r} with {right!r}: a number with a text")
        return function(left, right)

    return checked


def _contains(item: Any, items: Any) -> bool:
    if not isinstance(items, list | tuple):
        raise UsageError(f"'in' needs a list such as [1, 2], not {items!r}")
    return any(_OPERATORS[ast.Eq](item, other) for other in items)


def _cbrt(value: float) -> float:
    """Return the cube root, exactly that of a whole cube: libraries may miss that of 27."""
    root = math.cbrt(value)
    whole = round(root)
    return whole if whole**3 == value else root


def _isqrt(value: float) -> int:
    """Return the whole part of the root of a whole number, which may be a quotient, as 8 / 2."""
    return math.isqrt(int(value) if value == int(value) else value)  # type: ignore[arg-type]  # refused


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _of_numbers(operator.add),
    ast.Sub: _of_numbers(operator.sub),
    ast.Mult: _of_numbers(operator.mul),
    ast.Div: _of_numbers(operator.truediv),
    ast.FloorDiv: _of_numbers(operator.floordiv),
    ast.Mod: _of_numbers(operator.mod),
    ast.Pow: _of_numbers(_power),
    ast.USub: _of_numbers(operator.neg),
    ast.UAdd: _of_numbers(operator.pos),
    ast.Not: operator.not_,
    ast.Eq: _comparable(operator.eq),
    ast.NotEq: _comparable(operator.ne),
    ast.Lt: _comparable(operator.lt),
    ast.LtE: _comparable(operator.le),
    ast.Gt: _comparable(operator.gt),
    ast.GtE: _comparable(operator.ge),
    ast.In: _contains,
    ast.NotIn: lambda item, items: not _contains(item, items),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], int, float]] = {  # with the fewest and the most values
    "sqrt": (math.sqrt, 1, 1),
    "cbrt": (_cbrt, 1, 1),
    "isqrt": (_isqrt, 1, 1),
    "log2": (math.log2, 1, 1),
    "min": (lambda *values: min(values), 1, math.inf),
    "max": (lambda *values: max(values), 1, math.inf),
    "round": (_round, 1, 2),
    "ceil": (math.ceil, 1, 1),
    "ceil_div": (lambda value, divisor: -(-value // divisor), 2, 2),
    "floor": (math.floor, 1, 1),
    "int": (int, 1, 1),
    "abs": (abs, 1, 1),
}
_COUNTS = {
    (1, 1): "one value",
    (2, 2): "two values",
    (1, 2): "one or two",
    (1, math.inf): "at least one value",
}
