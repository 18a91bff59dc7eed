"""What a case has to satisfy, as data: constraints name fields as a suite does, and quantities that follow.

Settings are text: `zero` is any value but the default, `zero 1|2` one of these, `zero !3` any other. So are
the ways out of a clash: `zero` proposes its values that work, `zero 1|2` these if they work; `heads with
width`, `tx and ty` change two fields at once; ways behind a semicolon are for where none before it works.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pscale.config import Case, Matrix, Model, Plan, Precision, Train
from pscale.config.axes import DEGREES

Get = Callable[[str], Any]  # the value of a field or of a quantity
Values = dict[str, Any]
_GROUPS: Mapping[str, Any] = {
    "model": Model,
    "train": Train,
    "plan": Plan,
    "plan.matrix": Matrix,
    "precision": Precision,
}
_PATHS = {
    **{field.name: f"{group}.{field.name}" for group, kind in _GROUPS.items() for field in fields(kind)},
    "precision": "model.dtype",
    "message": "model.message_bytes",
    "ranks": "ranks",
}
GETTERS: Mapping[str, Callable[[Case], Any]] = {
    **{name: attrgetter(path) for name, path in _PATHS.items()},
    "matrix": lambda case: case.plan.matrix.product if case.plan.matrix.ranks > 1 else "",
    "loss_scale": attrgetter("loss_scale"),
    "keeps_scores": attrgetter("model.keeps_scores"),
    "checkpoint_interval": attrgetter("plan.checkpoint_interval"),
}
_DIVISORS = {"shard": "dp", "ulysses": "cp"}  # of what a field is a divisor, or 0
_TRIES, _SHOWN = 32, 3  # multiples that are tried, and degrees that are named, on either side


def alternatives(values: Sequence[object]) -> str:
    """Write a list of values as a choice: "1, 2 or 4"."""
    *most, last = (str(value) for value in values)
    return f"{', '.join(most)} or {last}" if most else last


def divisors(value: int, least: int = 1) -> list[int]:
    """Return what `value` divides by, from `least` on."""
    small = [size for size in range(1, math.isqrt(value) + 1) if value % size == 0]
    return [size for size in sorted({*small, *(value // size for size in small)}) if size >= least]


class Setting(NamedTuple):
    """A field, or a quantity, and the values that are meant: or all others."""

    name: str
    values: tuple[Any, ...]
    others: bool = False

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Return the setting that `text` says."""
        name, _, values = text.partition(" ")
        if not values:
            return cls(name, (GETTERS[name](Case(suite="", label="")),), others=True)
        return cls(name, _parsed(values.removeprefix("!")), others=values.startswith("!"))


def _parsed(text: str) -> tuple[Any, ...]:
    """Return the values that are written with bars between them."""
    words = {"true": True, "false": False}
    return tuple(int(word) if word.isdigit() else words.get(word, word) for word in text.split("|"))


class Constraint:
    """What has to hold where a case has all settings of `when`.

    `text` words the clash, with values of fields in braces; `ways` name what may be changed for it.
    """

    def __init__(self, *, when: str, text: str, ways: str):
        self.when = [Setting.parse(each) for each in when.split(", ") if each]
        self._text = text
        self.ways = [level.split(", ") for level in ways.split("; ") if level]

    def holds(self, get: Get) -> bool:
        """Tell whether a case satisfies it."""
        for name, values, others in self.when:
            if (get(name) in values) == others:
                return True
        return self._is_met(get)

    def clash(self, get: Get) -> str:
        """Word what does not hold."""
        return self._text.format_map(_Words(get, self._split))

    def numbers(self, name: str, get: Get) -> Iterable[int]:  # noqa: ARG002
        """Return numbers of a field with which it would hold."""
        return ()

    def _is_met(self, get: Get) -> bool:
        raise NotImplementedError

    def _split(self, get: Get) -> str:  # noqa: ARG002
        return ""


class Excludes(Constraint):
    """Settings that no case has together."""

    def __init__(self, first: str, *others: str, why: str = "", ways: str = ""):
        name, *names = (each.split()[0] for each in (first, *others))
        text = f"{name} {{{name}}} does not go with {' and '.join(f'{each} {{{each}}}' for each in names)}"
        ways = ways or ", ".join([name, *names])
        super().__init__(when=", ".join([first, *others]), text=f"{text}: {why}" if why else text, ways=ways)

    def _is_met(self, get: Get) -> bool:  # noqa: ARG002
        return False


class Requires(Constraint):
    """Any other condition."""

    def __init__(self, condition: Callable[[Get], bool], *, text: str, ways: str, when: str = ""):
        super().__init__(when=when, text=text, ways=ways)
        self._condition = condition

    def _is_met(self, get: Get) -> bool:
        return self._condition(get)


class _Product(Constraint):
    """A relation of a number to a product of others."""

    def __init__(self, product: Iterable[str], *, when: str, text: str, ways: str):
        super().__init__(when=when, text=text, ways=ways)
        self._factors = tuple(product)

    def _product(self, get: Get, leave_out: str = "") -> int:
        return math.prod(get(name) for name in self._factors if name != leave_out)

    def _split(self, get: Get) -> str:
        """Write the factors: tp 2 × cp 3 = 6."""
        named = [f"{name} {get(name)}" for name in self._factors if get(name) > 1] or [
            f"{self._factors[0]} 1"
        ]
        return " × ".join(named) + (f" = {self._product(get)}" if len(named) > 1 else "")


class Divides(_Product):
    """A number that has to divide by the product of others."""

    def __init__(self, whole: str, *parts: str, when: str = "", text: str = "", ways: str = ""):
        does = "do" if whole.endswith("s") else "does"
        text = text or f"{whole} {{{whole}}} {does} not divide by {{split}}"
        super().__init__(parts, when=when, text=text, ways=ways or whole)
        self._whole = whole

    def _is_met(self, get: Get) -> bool:
        return bool(get(self._whole) % self._product(get) == 0)

    def numbers(self, name: str, get: Get) -> Iterable[int]:
        """Return multiples on either side of a number, or divisors of the whole."""
        whole = get(self._whole)
        if name in self._factors:
            return divisors(whole)
        step = self._product(get) * (1 if name == self._whole else get(name) // whole)
        nearest = get(name) // step
        return (step * each for each in range(max(1, nearest - _TRIES), nearest + _TRIES))


class AtMost(_Product):
    """A product that a number bounds."""

    def __init__(self, product: str, bound: str, *, when: str = "", text: str = "", ways: str = ""):
        factors = product.split(" * ")
        text = text or f"{{split}} is more than {bound} {{{bound}}}"
        super().__init__(factors, when=when, text=text, ways=ways or ", ".join([*factors, bound]))
        self._bound = bound

    def _is_met(self, get: Get) -> bool:
        return bool(self._product(get) <= get(self._bound))

    def numbers(self, name: str, get: Get) -> Iterable[int]:
        """Return the number with which both sides come closest."""
        if name == self._bound:
            return (self._product(get),)
        return (get(self._bound) // self._product(get, leave_out=name),)


class _Words(dict[str, Any]):
    """Values of fields by name, as people write them."""

    def __init__(self, get: Get, split: Callable[[Get], str]):
        super().__init__()
        self._get, self._split = get, split

    def __missing__(self, name: str) -> Any:
        return self._split(self._get) if name == "split" else _word(self._get(name))


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


class Table:
    """The constraints of all cases, and those of some, and the quantities that they name beside fields."""

    def __init__(
        self,
        constraints: Iterable[Constraint],
        of_some: Callable[[Case], Iterable[Constraint]],
        quantities: Mapping[str, Callable[[Case], Any]],
    ):
        self._of_some, self._getters = of_some, {**GETTERS, **quantities}
        self._groups = [*_grouped(constraints)]  # a search asks for thousands of plans

    def get(self, case: Case) -> Get:
        """Return what has the values of fields and quantities of `case`."""
        return lambda name: self._getters[name](case)

    def clash(self, case: Case) -> Constraint | None:
        """Return the first constraint that does not hold."""
        get = self.get(case)
        for shared, group in self._groups:
            if shared is None or (get(shared.name) in shared.values) != shared.others:
                for each in group:
                    if not each.holds(get):
                        return each
        return next((each for each in self._of_some(case) if not each.holds(get)), None)

    def words(self, constraint: Constraint, case: Case) -> str:
        """Word why a case cannot be, and what would work."""
        clash = constraint.clash(self.get(case))
        for most in range(3):
            for ways in constraint.ways:
                if choices := [text for way in ways if (text := self._choice(way, constraint, case, most))]:
                    listed = any(" or " in text for text in choices) and len(choices) > 1
                    return f"{clash}; {(', or ' if listed else ' or ').join(choices)} would work"
        return clash

    def _is_near(self, constraint: Constraint, case: Case, most: int, values: Values) -> bool:
        """Tell whether a case can be with other values.

        By `most` 1 it may clash about other fields, by 2 in any other way.
        """
        if (other := changed(case, values)) is None:
            return False
        if (then := self.clash(other)) is None:
            return True
        get = self.get(other)
        return most > 0 and constraint.holds(get) and (most > 1 or not named(then.clash(get)) & values.keys())

    def _choice(self, way: str, constraint: Constraint, case: Case, most: int) -> str:
        """Write the values of a way out that are near enough; empty if none is."""
        near = partial(self._is_near, constraint, case, most)
        firsts = (next(filter(near, run), None) for run in _runs(way, constraint, case, self.get(case)))
        return _written([values for values in firsts if values is not None])


def _grouped(constraints: Iterable[Constraint]) -> Iterator[tuple[Setting | None, list[Constraint]]]:
    """Yield runs of constraints with a setting that all of them have; None: a single one without any."""
    group: list[Constraint] = []
    common: list[Setting] = []
    for each in constraints:
        if shared := [setting for setting in common if setting in each.when]:
            group.append(each)
        else:
            yield next(iter(common), None), group
            shared, group = each.when, [each]
        common = shared
    yield next(iter(common), None), group


def changed(case: Case, values: Values) -> Case | None:
    """Return the case with other values, dp taking what other degrees leave of the ranks; None: it cannot.

    Where people give the batch of one replica, it is of as many.
    """
    of: dict[str, Values] = {group: {} for group in ("", *_GROUPS)}
    for name, value in values.items():
        group, _, field = _PATHS[name].rpartition(".")
        of[group][field] = value

    def part(group: str) -> Any:
        return replace(attrgetter(group)(case), **of[group]) if of[group] else attrgetter(group)(case)

    train, model, precision = map(part, ("train", "model", "precision"))
    plan, ranks = replace(part("plan"), matrix=part("plan.matrix")), values.get("ranks", case.ranks)
    if values.keys() & ({"ranks", *DEGREES} - {"dp"}):
        dp, rest = divmod(ranks, plan.ranks // plan.dp)
        if rest or not dp:
            return None
        plan = replace(plan, dp=dp)
    if case.scaling == "weak":
        batch = values.get("batch", train.batch // case.plan.batch_parts)
        train = replace(train, batch=batch * plan.batch_parts)
    return replace(case, ranks=ranks, plan=plan, train=train, model=model, precision=precision)


def named(text: str) -> set[str]:
    """Return the fields that a text names."""
    return _PATHS.keys() & set(re.findall(r"\w+", text))


def _runs(way: str, constraint: Constraint, case: Case, get: Get) -> Iterator[Iterable[Values]]:
    """Yield what a way out names, in runs of which the first that is good is proposed."""
    name, _, more = way.partition(" ")
    joint, _, other = more.partition(" ")
    if joint == "and":
        yield from ([{name: side, other: side}] for side in range(1, math.isqrt(case.ranks) + 1))
    elif joint == "with":
        yield (
            {name: number, other: multiple}
            for number in constraint.numbers(name, get)
            for multiple in itertools.islice(
                itertools.count(get(other) + -get(other) % number, number), _TRIES
            )
            if number >= get(name)
        )
    elif more:
        values, *beside = more.format_map(_Words(get, str)).split(" with ")
        also = {each.name: each.values[0] for each in map(Setting.parse, beside)}
        yield from ([{name: value} | also] for value in _parsed(values))
    elif (choices := _choices(name, case)) is not None:
        yield from ([{name: choice}] for choice in choices)
    else:
        numbers = [*constraint.numbers(name, get)]
        yield ({name: number} for number in reversed(numbers) if 0 < number < get(name))
        yield ({name: number} for number in numbers if number > get(name))


def _choices(name: str, case: Case) -> Iterable[Any] | None:
    """Return the values of a field that has few: words, truths, degrees, divisors; None: it has many."""
    value, others = GETTERS[name](case), case.plan.ranks // case.plan.dp
    group, _, field = _PATHS[name].rpartition(".")
    hint = _hints(group)[field] if group in _GROUPS else int
    if get_origin(hint) is Literal:
        return get_args(hint)
    if isinstance(value, bool):
        return (not value,)
    if name in _DIVISORS:
        return (0, *divisors(GETTERS[_DIVISORS[name]](case), 2))
    if name in ("dp", "ranks"):  # as many as the other degrees ask for
        below = case.ranks - case.ranks % others
        both = [below, below + others] if name == "ranks" else [below // others] * (below == case.ranks)
        return filter(None, both)
    if name in DEGREES:
        room, rest = divmod(case.ranks * value, others)
        near = sorted(() if rest else divisors(room), key=lambda degree: abs(degree - value))
        return sorted(near[: 2 * _SHOWN])
    return None


@cache
def _hints(group: str) -> Mapping[str, Any]:
    return get_type_hints(_GROUPS[group])


def _written(choices: Sequence[Values]) -> str:
    """Write values to choose from: "tp 1 or 2 with dp rest"."""
    if not choices:
        return ""
    names = [*choices[0]]
    rest = " with dp rest" if ({"ranks", *DEGREES} - {"dp"}) & {*names} else ""
    if len(names) == 1:
        return f"{names[0]} {alternatives([_word(each[names[0]]) for each in choices])}{rest}"
    joint = " and " if rest else " with "
    return alternatives(
        [joint.join(f"{name} {_word(value)}" for name, value in each.items()) + rest for each in choices]
    )
